// The Kalman filter's numbers: each state before and after its observations, and each observation
// before it comes. Covariances are X X', as the forward pass has it; means are summed in
// double-double, whatever the precision of X, so that their rounding does not pile up. The mirror
// of the system tells what the rounding of X does.
#ifndef BLOCKD_ENGINE_SMOOTHER_ORTHOGONAL_FILTER_H_
#define BLOCKD_ENGINE_SMOOTHER_ORTHOGONAL_FILTER_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <utility>

#include "engine/smoother/orthogonal/factorization.h"
#include "engine/smoother/orthogonal/filter_bounds.h"
#include "engine/smoother/orthogonal/lanes.h"
#include "engine/smoother/orthogonal/numbers.h"
#include "engine/smoother/orthogonal/reflection.h"
#include "engine/smoother/orthogonal/storage.h"
#include "engine/smoother/orthogonal/system.h"

namespace blockd::orthogonal::BLOCKD_KERNEL_NAMESPACE {

// The means of four series, step by step, and their innovations.
template <typename N>
class FilterPass {
 public:
  // `unit`: of the columns of Z, B, S and D, over those of the system.
  FilterPass(const Factorization<N>& factorization, double unit)
      : f_(factorization),
        system_(factorization.system()),
        unit_(unit),
        n_(system_.state_size),
        arrays_(system_),
        states_(n_),
        moved_(n_),
        noises_(factorization.noise_packs() * kLanes),
        innovations_(system_.observation_size),
        logs_(system_.observation_size),
        metric_(system_.diffuse_columns * system_.diffuse_columns),
        seen_(system_.diffuse_columns),
        bounds_(system_, factorization.packs()) {}

  void Begin(const Four& data) {
    data_ = data;
    directions_ = system_.diffuse_columns;
    metric_.Clear();
    for (int64_t j = 0; j < directions_; ++j) metric_[j * (directions_ + 1)] = 1;
    for (int64_t i = 0; i < n_; ++i) states_[i] = Constant(0, i);
  }
  // From x(t) before y(t), less d, to x(t) after it. `sizes` of the rows of X, for
  // bounds; nullptr: there are none.
  void Observe(int64_t t, const LongFour* y, const double* sizes) {
    const FactoredStep<N>& step = f_.step(t);
    bounds_.Begin();
    if (step.first_elimination == step.last_elimination) return;
    arrays_.LoadObservation(t);
    noises_.Clear();
    for (int64_t i = step.first_elimination; i < step.last_elimination; ++i) {
      const int64_t a = i - step.first_elimination;
      Take(t, f_.elimination(i), a, y[a], sizes);
    }
  }
  // From x(t) after y(t) to x(t+1) before y(t+1).
  void Move(int64_t t) {
    arrays_.LoadTransition(t);
    for (int64_t i = 0; i < n_; ++i) {
      moved_[i] = AddLine<LongFourSum>(Constant(t + 1, i), arrays_.f_rows(), i, states_.data());
    }
    std::copy_n(moved_.data(), n_, states_.data());
    bounds_.Move(arrays_);
  }

  const FilterBounds<N>& bounds() const { return bounds_; }
  const Four& state(int64_t i) const { return states_[i].high; }
  // Elements of a step over their deviations, and the logarithms of these.
  const Four& innovation(int64_t a) const { return innovations_[a]; }
  double log_deviation(int64_t a) const { return logs_[a]; }

 private:
  LongFour Constant(int64_t t, int64_t i) const {
    return {data_ * ConstantOf(system_, t, i), Four{}};
  }

  void Take(int64_t t, const Elimination<N>& made, int64_t a, const LongFour& y,
            const double* sizes) {
    innovations_[a] = Four{};
    logs_[a] = 0;
    bounds_.Skip(a);
    if (made.kind == Elimination<N>::Kind::kSkipped) return;
    LongFour left = y;
    if (noises_.size() > 0) left = left - noises_[a];
    left = left - AddLine<LongFourSum>(LongFour{}, arrays_.h_rows(), made.row, states_.data());
    const LongFour innovation = left / Spread(LongOf(made.scale));
    const double scale = High(made.scale);
    if (made.kind == Elimination<N>::Kind::kObserved) {
      innovations_[a] = innovation.high * Spread(scale < 0 ? -unit_ : unit_);
      logs_[a] = std::log(std::fabs(scale) / unit_);
    } else {
      logs_[a] = std::log(std::fabs(scale) / unit_ * TakeDirection(made));
    }
    const auto* const column = f_.columns(made.column);
    if (sizes != nullptr) bounds_.Take(t, made, column, arrays_, sizes, a, innovation.high);
    for (int64_t i = 0; i < n_; ++i) Add(N::Get(column, i), innovation, &states_[i]);
    for (int64_t i = 0; i < noises_.size(); ++i) {
      Add(N::Get(column + f_.packs(), i), innovation, &noises_[i]);
    }
  }
  // The size of what is seen of delta, over that of its pivot: directions are coordinates of what
  // is left of delta, metric_ times orthonormal ones. One of those goes, in which all that is seen
  // is.
  double TakeDirection(const Elimination<N>& made) {
    const int64_t all = system_.diffuse_columns;
    for (int64_t k = 0; k < directions_; ++k) {
      double sum = 0;
      for (int64_t j = 0; j < directions_; ++j) {
        sum += High(f_.scalars(made.multipliers)[j]) * metric_[j * all + k];
      }
      seen_[k] = sum;
    }
    Reflection<InDouble> theta;
    if (!MakeReflection(seen_.data(), directions_, &theta)) return 0;
    int64_t to = 0;
    for (int64_t j = 0; j < directions_; ++j) {
      if (j == made.direction) continue;
      double* const row = metric_.data() + j * all;
      std::swap(row[0], row[theta.pivot]);
      double factor = 0;
      for (int64_t k = 0; k < directions_; ++k) factor -= theta.tau * seen_[k] * row[k];
      double* const moved = metric_.data() + to++ * all;
      for (int64_t k = 1; k < directions_; ++k) moved[k - 1] = row[k] + factor * seen_[k];
    }
    --directions_;
    return std::fabs(theta.scale);
  }

  template <typename S>
  static void Add(const S& factor, const LongFour& by, LongFour* to) {
    LongFourSum sum(*to);
    sum.Add(factor, by);
    *to = sum.value();
  }

  const Factorization<N>& f_;
  const System& system_;
  const double unit_;
  const int64_t n_;
  StepArrays arrays_;
  Four data_{};
  Buffer<LongFour> states_, moved_;
  Buffer<LongFour> noises_;  // what is known of the rows of S e
  Buffer<Four> innovations_;
  Buffer<double> logs_;
  int64_t directions_ = 0;
  Buffer<double> metric_, seen_;
  FilterBounds<N> bounds_;
};

template <typename N>
class Filter {
 public:
  using P = typename N::Pack;

  Filter(const Factorization<N>& factorization, const Factorization<N>& mirror,
         const Results& results, Estimates* estimates)
      : f_(factorization),
        mirror_(mirror),
        system_(factorization.system()),
        results_(results),
        estimates_(estimates),
        n_(system_.state_size),
        packs_(factorization.packs()),
        own_(factorization, 1),
        other_(mirror, kMirrorUnit),
        predicted_(n_ * system_.num_steps),
        filtered_(n_ * system_.num_steps),
        sizes_(n_ * system_.num_steps),
        diffuse_sizes_(n_),
        moved_sizes_(n_),
        arrays_(system_),
        squares_(packs_),
        mirror_squares_(packs_),
        cross_(n_ * packs_),
        y_(system_.observation_size) {}

  // Covariances, and the deviations that means are measured by.
  void Run() {
    const int64_t each = results_.only_variances ? n_ : n_ * n_;
    for (int64_t t = 0; t < system_.num_steps; ++t) {
      const auto copy = [t](double* of_steps, int64_t size) {
        if (of_steps != nullptr) std::copy_n(of_steps + (t - 1) * size, size, of_steps + t * size);
      };
      if (t > 0 && f_.repeats(t - 1)) {
        copy(predicted_.data(), n_);
        copy(filtered_.data(), n_);
        copy(sizes_.data(), n_);
        copy(results_.predicted_covariances, each);
        copy(results_.filtered_covariances, each);
        continue;
      }
      const FactoredStep<N>&step = f_.step(t), &other = mirror_.step(t);
      const double* const sizes = f_.sizes(step.scales);
      const auto at = [&](double* of_steps) {
        return of_steps == nullptr ? nullptr : of_steps + t * each;
      };
      Write({step.x, step.coordinates, step.d, step.directions}, {other.x, other.coordinates},
            sizes, &predicted_[t * n_], at(results_.predicted_covariances));
      for (int64_t i = 0; i < n_; ++i) sizes_[t * n_ + i] = SizeOf(i);
      Write({step.known_x, step.known_coordinates, step.known_d, step.known_directions},
            {other.known_x, other.known_coordinates}, sizes, &filtered_[t * n_],
            at(results_.filtered_covariances));
      for (int64_t i = 0; i < n_; ++i) {
        sizes_[t * n_ + i] = std::max(sizes_[t * n_ + i], SizeOf(i));
      }
      if (step.directions > 0 && t + 1 < system_.num_steps) MoveDiffuseSizes(t);
    }
  }

  // Means and innovations of the series of some lanes; lane k has that of number first + k.
  void Run(const Lanes& lanes, int64_t first) {
    own_.Begin(lanes.data());
    other_.Begin(lanes.data());
    for (int k = 0; k < kLanes; ++k) {
      series_[k] =
          lanes.series[k] == nullptr ? nullptr : &results_.series[static_cast<size_t>(first + k)];
    }
    for (int64_t t = 0; t < system_.num_steps; ++t) {
      if (t > 0) {
        own_.Move(t - 1);
        other_.Move(t - 1);
      }
      WriteMeans(t, &predicted_[t * n_], &SeriesResults::predicted_means);
      const std::vector<int32_t>& rows = *system_.rows[static_cast<size_t>(t)];
      for (size_t a = 0; a < rows.size(); ++a) {
        y_[static_cast<int64_t>(a)] = lanes.ObservationAt(system_, t, rows[a]);
      }
      own_.Observe(t, y_.data(), &sizes_[t * n_]);
      other_.Observe(t, y_.data(), nullptr);
      WriteInnovations(t);
      WriteMeans(t, &filtered_[t * n_], &SeriesResults::filtered_means);
    }
  }

 private:
  struct Known {  // X and D: where they are, and their columns
    int64_t x = 0, coordinates = 0, d = 0, directions = 0;
  };

  static constexpr double kUnit = 0x1p-52;  // of a double's last place

  void SumSquares(const Factorization<N>& f, const Known& known, Buffer<P>* squares) const {
    squares->Clear();
    const P* const x = f.columns(known.x);
    for (int64_t c = 0; c < known.coordinates; ++c) {
      for (int64_t i = 0; i < packs_; ++i) {
        (*squares)[i] = Accumulate((*squares)[i], x[c * packs_ + i], x[c * packs_ + i]);
      }
    }
  }
  double SizeOf(int64_t i) const { return std::sqrt(High(N::Get(squares_.data(), i))); }
  // True if a row of D is more than rounding: beside what its numbers are differences of, of whose
  // size half goes on to the next step, and beside the other rows. In double a small one may be
  // rounding, or not; nobody knows.
  bool IsDiffuse(const Known& known, int64_t i) {
    constexpr bool kIsDouble = N::kDoubles == 1;
    constexpr double kLeast = kIsDouble ? 1e-8 : 1e-20, kLeastOfColumn = kIsDouble ? 1e-10 : 1e-26;
    double row = 0;
    bool is_small = false;
    for (int64_t j = 0; j < known.directions; ++j) {
      const P* const column = f_.columns(known.d) + j * packs_;
      double most = 0;
      for (int64_t k = 0; k < n_; ++k) most = std::max(most, std::fabs(High(N::Get(column, k))));
      const double own = std::fabs(High(N::Get(column, i)));
      if (own > kLeastOfColumn * most) {
        row = std::hypot(row, own);
      } else {
        is_small |= own > 0;
      }
    }
    diffuse_sizes_[i] = std::max(diffuse_sizes_[i], row);
    if (row > kLeast * diffuse_sizes_[i]) return true;
    if (kIsDouble && (row > 0 || is_small)) estimates_->variances = HUGE_VAL;
    return false;
  }
  void MoveDiffuseSizes(int64_t t) {
    arrays_.LoadTransition(t);
    for (int64_t i = 0; i < n_; ++i) {
      double size = 0;
      const SparseLines::Entry* const end = arrays_.f_rows().end(i);
      for (const SparseLines::Entry* e = arrays_.f_rows().begin(i); e != end; ++e) {
        size += std::fabs(e->value) * 0.5 * diffuse_sizes_[e->place];
      }
      moved_sizes_[i] = size;
    }
    std::copy_n(moved_sizes_.data(), n_, diffuse_sizes_.data());
  }

  void Write(const Known& known, const Known& mirror, const double* sizes, double* deviations,
             double* covariance) {
    SumSquares(f_, known, &squares_);
    SumSquares(mirror_, mirror, &mirror_squares_);
    for (int64_t i = 0; i < n_; ++i) {
      const double variance = High(N::Get(squares_.data(), i));
      const double other = High(N::Get(mirror_squares_.data(), n_ - 1 - i));
      deviations[i] = std::sqrt(variance);
      if (!std::isfinite(variance)) estimates_->variances = HUGE_VAL;
      if (IsDiffuse(known, i)) {
        deviations[i] = HUGE_VAL;
      } else if (deviations[i] <= 1e-12 * sizes[i]) {
        deviations[i] = 0;  // it is known exactly
      } else {
        constexpr double kUnits = kMirrorUnit * kMirrorUnit;
        const double change = std::fabs(other / kUnits - variance);
        Raise(&estimates_->variances, kMirrorFactor * change / variance);
      }
    }
    if (covariance == nullptr) return;
    if (results_.only_variances) {
      for (int64_t i = 0; i < n_; ++i) {
        const bool is_diffuse = std::isinf(deviations[i]);
        covariance[i] = is_diffuse ? HUGE_VAL : High(N::Get(squares_.data(), i));
      }
      return;
    }
    WriteSquare<N>(n_, known.coordinates, f_.columns(known.x), cross_.data(), covariance);
    for (int64_t i = 0; i < n_; ++i) {
      if (!std::isinf(deviations[i])) continue;
      for (int64_t j = 0; j < n_; ++j) {
        covariance[i * n_ + j] = covariance[j * n_ + i] = std::nan("");
      }
    }
    for (int64_t i = 0; i < n_; ++i) {
      if (std::isinf(deviations[i])) covariance[i * (n_ + 1)] = HUGE_VAL;
    }
  }

  void WriteMeans(int64_t t, const double* deviations, double* SeriesResults::*where) {
    for (int k = 0; k < kLanes; ++k) {
      if (series_[k] == nullptr) continue;
      double* const to = series_[k]->*where;
      for (int64_t i = 0; i < n_; ++i) {
        const double mean = own_.state(i)[k], deviation = deviations[i];
        const bool is_diffuse = std::isinf(deviation);
        if (to != nullptr) to[t * n_ + i] = is_diffuse ? std::nan("") : mean;
        if (is_diffuse || !(deviation > 1e-13 * std::fabs(mean))) continue;
        const double change =
            std::fabs(other_.state(n_ - 1 - i)[k] - mean) - kUnit * std::fabs(mean);
        const double off = std::max(kMirrorFactor * change, own_.bounds().state(i)[k]);
        Raise(&estimates_->means, off / deviation);
      }
    }
  }

  void WriteInnovations(int64_t t) {
    const FactoredStep<N>& step = f_.step(t);
    const std::vector<int32_t>& rows = *system_.rows[static_cast<size_t>(t)];
    for (int k = 0; k < kLanes; ++k) {
      if (series_[k] == nullptr) continue;
      double* const to = series_[k]->innovations;
      const int64_t ny = system_.observation_size;
      if (to != nullptr) std::fill_n(to + t * ny, ny, std::nan(""));
      double sum = 0, mirrored = 0, most = 0;
      for (size_t b = 0; b < rows.size(); ++b) {
        const auto a = static_cast<int64_t>(b);
        const double own = own_.innovation(a)[k], other = other_.innovation(a)[k];
        sum += TermOf(step, a, own, own_.log_deviation(a));
        mirrored += TermOf(step, a, other, other_.log_deviation(a));
        const double change = std::fabs(own - other) - kUnit * std::fabs(own);
        const double off = std::max(kMirrorFactor * change, own_.bounds().innovation(a)[k]);
        Raise(&estimates_->means, off);
        most = std::max(most, std::fabs(own) * off);
        if (to != nullptr && KindOf(step, a) == Kind::kObserved) to[t * ny + rows[b]] = own;
      }
      if (series_[k]->log_likelihood_steps == nullptr) continue;
      series_[k]->log_likelihood_steps[t] = sum;
      const double change = std::fabs(sum - mirrored) - 4 * kUnit * std::fabs(sum);
      Raise(&estimates_->log_likelihood, std::max(kMirrorFactor * change, most));
    }
  }
  using Kind = typename Elimination<N>::Kind;
  Kind KindOf(const FactoredStep<N>& step, int64_t a) const {
    return f_.elimination(step.first_elimination + a).kind;
  }
  // The part of an element in the log-likelihood.
  double TermOf(const FactoredStep<N>& step, int64_t a, double innovation, double log) const {
    constexpr double kHalfLogTwoPi = 0.91893853320467274;
    const bool is_observed = KindOf(step, a) == Kind::kObserved;
    return is_observed ? -kHalfLogTwoPi - log - innovation * innovation / 2 : -log;
  }

  const Factorization<N>&f_, &mirror_;
  const System& system_;
  const Results& results_;
  Estimates* const estimates_;
  const int64_t n_, packs_;
  FilterPass<N> own_, other_;
  Buffer<double> predicted_, filtered_;         // deviations; infinite where the state is diffuse
  Buffer<double> sizes_;                        // of the rows of X
  Buffer<double> diffuse_sizes_, moved_sizes_;  // n, of D
  StepArrays arrays_;
  Buffer<P> squares_, mirror_squares_, cross_;
  Buffer<LongFour> y_;
  const SeriesResults* series_[kLanes] = {};
};

}  // namespace blockd::orthogonal::BLOCKD_KERNEL_NAMESPACE

#endif  // BLOCKD_ENGINE_SMOOTHER_ORTHOGONAL_FILTER_H_
