// Bounds, to first order, of what the rounding of one step does to a filter's means: each number of
// a column by which x changes is off by a unit of roundoff of its row of X, and so are those that
// the next elements of y are less. Where an observation tells much, a unit of what was known before
// is much beside what is known then; what two ways of rounding agree in shows here alone.
#ifndef BLOCKD_ENGINE_SMOOTHER_ORTHOGONAL_FILTER_BOUNDS_H_
#define BLOCKD_ENGINE_SMOOTHER_ORTHOGONAL_FILTER_BOUNDS_H_

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "engine/smoother/orthogonal/factored_step.h"
#include "engine/smoother/orthogonal/numbers.h"
#include "engine/smoother/orthogonal/storage.h"
#include "engine/smoother/orthogonal/system.h"

namespace blockd::orthogonal::BLOCKD_KERNEL_NAMESPACE {

template <typename N>
class FilterBounds {
 public:
  FilterBounds(const System& system, int64_t packs)
      : system_(system),
        n_(system.state_size),
        packs_(packs),
        states_(n_),
        moved_(n_),
        noises_(system.is_diagonal ? 0 : system.observation_size),
        innovations_(system.observation_size) {}

  void Begin() {
    states_.Clear();
    noises_.Clear();
  }
  // An element, by whose innovation x and the noises that follow change by so much of a column.
  // `sizes`: of the rows of X.
  void Take(int64_t t, const Elimination<N>& made, const typename N::Pack* column,
            const StepArrays& arrays, const double* sizes, int64_t a, const Four& innovation) {
    const Four size = Absolute(innovation);
    const double* const h = StepArrays::Doubles(arrays.h(made.row));
    Four off{};
    if (noises_.size() > 0) off = noises_[a];
    for (int64_t i = 0; i < n_; ++i) off += Spread(std::fabs(h[i])) * states_[i];
    off = off / Spread(std::fabs(High(made.scale))) + Spread(4 * N::kUnit) * size;
    innovations_[a] = off;
    const auto add = [&](double by, double row, Four* to) {
      *to += Spread(std::fabs(by)) * off + Spread(N::kUnit * row) * size;
    };
    for (int64_t i = 0; i < n_; ++i) add(High(N::Get(column, i)), sizes[i], &states_[i]);
    const std::vector<int32_t>& rows = *system_.rows[static_cast<size_t>(t)];
    const double* const r = system_.observation_covariance.at(t);
    for (int64_t b = a + 1; noises_.size() > 0 && b < std::ssize(rows); ++b) {
      const int64_t row = rows[static_cast<size_t>(b)];
      const double own = std::sqrt(r[row * (system_.observation_size + 1)]);
      add(High(N::Get(column + packs_, b)), own, &noises_[b]);
    }
  }
  void Skip(int64_t a) { innovations_[a] = Four{}; }
  // From x(t) to x(t+1).
  void Move(const StepArrays& arrays) {
    for (int64_t i = 0; i < n_; ++i) {
      moved_[i] = Four{};
      const SparseLines::Entry* const end = arrays.f_rows().end(i);
      for (const SparseLines::Entry* e = arrays.f_rows().begin(i); e != end; ++e) {
        moved_[i] += Spread(std::fabs(e->value)) * states_[e->place];
      }
    }
    std::copy_n(moved_.data(), n_, states_.data());
  }

  const Four& state(int64_t i) const { return states_[i]; }
  const Four& innovation(int64_t a) const { return innovations_[a]; }

 private:
  static Four Absolute(const Four& a) {
    Four size;
    for (int k = 0; k < kLanes; ++k) size[k] = std::fabs(a[k]);
    return size;
  }

  const System& system_;
  const int64_t n_, packs_;
  Buffer<Four> states_, moved_, noises_, innovations_;
};

}  // namespace blockd::orthogonal::BLOCKD_KERNEL_NAMESPACE

#endif  // BLOCKD_ENGINE_SMOOTHER_ORTHOGONAL_FILTER_BOUNDS_H_
