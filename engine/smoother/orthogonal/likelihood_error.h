// The first-order error of the log-determinant's part of the log-likelihood, -1/2 sum tr(N dG): dG
// is the residual of each innovation's covariance, N the covariance of the multipliers. It is found
// of draws: multipliers that belong to innovations nu ~ N(0, I) imply noises whose squares are
// |nu|^2 but for dG.
#ifndef BLOCKD_ENGINE_SMOOTHER_ORTHOGONAL_LIKELIHOOD_ERROR_H_
#define BLOCKD_ENGINE_SMOOTHER_ORTHOGONAL_LIKELIHOOD_ERROR_H_

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "engine/smoother/orthogonal/draws.h"
#include "engine/smoother/orthogonal/factorization.h"
#include "engine/smoother/orthogonal/numbers.h"
#include "engine/smoother/orthogonal/storage.h"
#include "engine/smoother/orthogonal/system.h"

namespace blockd::orthogonal::BLOCKD_KERNEL_NAMESPACE {

template <typename N>
class LikelihoodError {
 public:
  explicit LikelihoodError(const Factorization<N>& factorization)
      : system_(factorization.system()),
        f_(factorization),
        n_(system_.state_size),
        arrays_(system_),
        r_(n_),
        moved_(n_),
        multipliers_(factorization.noise_packs() * kLanes) {}

  // The largest of four draws.
  double Run() {
    for (int64_t t = system_.num_steps - 1; t >= 0; --t) {
      if (t + 1 < system_.num_steps) MoveBack(t);
      const FactoredStep<N>& step = f_.step(t);
      if (step.first_elimination < step.last_elimination) Observe(t, step);
    }
    for (int64_t j = 0; j < system_.initial_columns; ++j) {
      LongFourSum sum;
      for (int64_t i = 0; i < n_; ++i) {
        const int64_t at = j * n_ + i;
        sum.Add(Long{system_.initial_factor[at], system_.initial_low[at]}, r_[i]);
      }
      Take(sum.value());
    }
    double most = 0;
    for (int k = 0; k < kLanes; ++k) Raise(&most, std::fabs(sum_.high[k]) / 2);
    return most;
  }

 private:
  void Take(const LongFour& noise) { sum_ = sum_ - noise * noise; }

  void MoveBack(int64_t t) {
    arrays_.LoadTransition(t);
    for (int64_t j = 0; j < arrays_.noises(); ++j) {
      Take(arrays_.AddFactorColumn<LongFourSum>(LongFour{}, j, r_.data()));
    }
    for (int64_t j = 0; j < n_; ++j) {
      moved_[j] = AddLine<LongFourSum>(LongFour{}, arrays_.f_columns(), j, r_.data());
    }
    std::copy_n(moved_.data(), n_, r_.data());
  }

  void Observe(int64_t t, const FactoredStep<N>& step) {
    arrays_.LoadObservation(t);
    for (int64_t i = step.last_elimination; i-- > step.first_elimination;) {
      const Elimination<N>& made = f_.elimination(i);
      const int64_t a = i - step.first_elimination;
      if (!system_.is_diagonal) multipliers_[a] = {};
      if (made.kind == Elimination<N>::Kind::kSkipped) continue;
      const LongFour multiplier = Draw(made, a, step.last_elimination - step.first_elimination);
      if (system_.is_diagonal) {
        LongFourSum noise;
        noise.Add(f_.NoiseOf(t, made.row), multiplier);
        Take(noise.value());
      } else {
        multipliers_[a] = multiplier;
      }
      AddLineTo<LongFourSum>(arrays_.h_rows(), made.row, multiplier, r_.data());
    }
    if (!system_.is_diagonal) TakeNoises(t);
  }

  // lambda = (nu - x_c' r - sum of the later elements') / s, and nu as it is then.
  LongFour Draw(const Elimination<N>& made, int64_t a, int64_t rows) {
    const auto* const column = f_.columns(made.column);
    LongFourSum sum;
    for (int64_t i = 0; i < n_; ++i) sum.Add(N::Get(column, i), r_[i]);
    for (int64_t b = a + 1; !system_.is_diagonal && b < rows; ++b) {
      sum.Add(N::Get(column + f_.packs(), b), multipliers_[b]);
    }
    const LongFour implied = sum.value();
    const bool observed = made.kind == Elimination<N>::Kind::kObserved;
    const LongFour drawn = {observed ? draws_.Next() : Four{}, Four{}};
    const LongFour scale = Spread(LongOf(made.scale));
    const LongFour multiplier = (drawn - implied) / scale;
    if (observed) {
      const LongFour nu = implied + scale * multiplier;
      sum_ = sum_ + nu * nu;
    }
    return multiplier;
  }
  void TakeNoises(int64_t t) {
    const std::vector<int32_t>& rows = *system_.rows[static_cast<size_t>(t)];
    const double* const s = system_.observation_factor.matrices.at(t);
    const double* const low = system_.observation_factor.low.at(t);
    for (int64_t j = 0; j < f_.noises_observed(t); ++j) {
      LongFourSum sum;
      for (size_t a = 0; a < rows.size(); ++a) {
        const int64_t at = j * system_.observation_size + rows[a];
        sum.Add(Long{s[at], low[at]}, multipliers_[static_cast<int64_t>(a)]);
      }
      Take(sum.value());
    }
  }

  const System& system_;
  const Factorization<N>& f_;
  const int64_t n_;
  StepArrays arrays_;
  Buffer<LongFour> r_, moved_, multipliers_;
  Draws draws_;
  LongFour sum_;
};

}  // namespace blockd::orthogonal::BLOCKD_KERNEL_NAMESPACE

#endif  // BLOCKD_ENGINE_SMOOTHER_ORTHOGONAL_LIKELIHOOD_ERROR_H_
