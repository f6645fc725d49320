// Standard deviations of the smoothed disturbances, B u and S e given all of y: those of estimates,
// not of errors. The multipliers of the states are r = U nu, nu ~ N(0, I) the standardized
// innovations, those of the observations Lambda nu; then B u = Q r and S e = R lambda (Durbin and
// Koopman, Time Series Analysis by State Space Methods, 2nd ed. 2012, 4.5).
#ifndef BLOCKD_ENGINE_SMOOTHER_ORTHOGONAL_DISTURBANCES_H_
#define BLOCKD_ENGINE_SMOOTHER_ORTHOGONAL_DISTURBANCES_H_

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "engine/smoother/orthogonal/factorization.h"
#include "engine/smoother/orthogonal/means.h"
#include "engine/smoother/orthogonal/numbers.h"
#include "engine/smoother/orthogonal/reflection.h"
#include "engine/smoother/orthogonal/storage.h"
#include "engine/smoother/orthogonal/system.h"

namespace blockd::orthogonal::BLOCKD_KERNEL_NAMESPACE {

template <typename N>
class DisturbanceDeviations {
 public:
  using P = typename N::Pack;
  using S = typename N::Scalar;

  DisturbanceDeviations(const Factorization<N>& factorization, const Layout& layout)
      : f_(factorization),
        system_(factorization.system()),
        layout_(layout),
        n_(system_.state_size),
        ny_(system_.observation_size),
        width_(PacksOf(n_ + ny_)),
        arrays_(system_),
        r_(n_ * width_),
        moved_(n_ * width_),
        noises_(std::max(factorization.most_noises(), ny_) * width_),
        multipliers_(ny_ * width_),
        sum_(width_),
        numbers_(width_ * kLanes),
        weights_(width_),
        states_(n_ * (system_.num_steps - 1)),
        observations_(layout.y(layout.last())) {}

  void Run() {
    for (int64_t t = system_.num_steps - 1; t >= 0; --t) {
      if (t + 1 < system_.num_steps) MoveBack(t);
      const FactoredStep<N>& step = f_.step(t);
      if (step.first_elimination < step.last_elimination) Observe(t, step);
    }
  }

  // The deviation of B u, in the transition from t to t + 1.
  double state(int64_t t, int64_t i) const { return states_[t * n_ + i]; }
  // That of S e of an observed element, or of its multiplier (IsOfMultiplier).
  double observation(int64_t t, int64_t a) const { return observations_[layout_.y(t) + a]; }
  // True where R is diagonal, or R(row, row) zero: there both are the same but for R.
  static bool IsOfMultiplier(const System& system, int64_t t, int32_t row) {
    const double* const r = system.observation_covariance.at(t);
    return system.is_diagonal || r[row * (system.observation_size + 1)] == 0;
  }

 private:
  P* Row(Buffer<P>& rows, int64_t i) { return rows.data() + i * width_; }
  int64_t used() const { return PacksOf(columns_); }
  void AddTo(P* to, const S& factor, const P* row) const {
    const P spread = Spread(factor);
    for (int64_t k = 0; k < used(); ++k) to[k] = Accumulate(to[k], spread, row[k]);
  }
  // Zero where the observations say nothing of a noise, within rounding.
  static constexpr double kLeast = 1e-14;
  static double Beyond(double own, double deviation) {
    return deviation > kLeast * own ? deviation : 0;
  }
  double Norm(const P* row) const { return std::sqrt(High(Dot(row, row, used()))); }

  // B B' r is the disturbance of the step; F' r goes on.
  void MoveBack(int64_t t) {
    arrays_.LoadTransition(t);
    noises_.Clear();
    const auto b = [&](int64_t i, int64_t j) {
      return N::Of(StepArrays::Doubles(arrays_.b(j))[i], StepArrays::Doubles(arrays_.b_low(j))[i]);
    };
    for (int64_t j = 0; j < arrays_.noises(); ++j) {
      for (int64_t i = 0; i < n_; ++i) AddTo(Row(noises_, j), b(i, j), Row(r_, i));
    }
    for (int64_t i = 0; i < n_; ++i) {
      sum_.Clear();
      for (int64_t j = 0; j < arrays_.noises(); ++j) AddTo(sum_.data(), b(i, j), Row(noises_, j));
      double own = 0;
      for (int64_t j = 0; j < arrays_.noises(); ++j) own = std::hypot(own, High(b(i, j)));
      states_[t * n_ + i] = Beyond(own, Norm(sum_.data()));
    }
    moved_.Clear();
    for (int64_t j = 0; j < n_; ++j) {
      const SparseLines::Entry* const end = arrays_.f_columns().end(j);
      for (const SparseLines::Entry* e = arrays_.f_columns().begin(j); e != end; ++e) {
        AddTo(Row(moved_, j), N::Of(e->value), Row(r_, e->place));
      }
    }
    std::copy_n(moved_.data(), n_ * width_, r_.data());
  }

  void Observe(int64_t t, const FactoredStep<N>& step) {
    arrays_.LoadObservation(t);
    multipliers_.Clear();
    for (int64_t i = step.last_elimination; i-- > step.first_elimination;) {
      const Elimination<N>& made = f_.elimination(i);
      const int64_t a = i - step.first_elimination;
      if (made.kind == Elimination<N>::Kind::kSkipped) continue;
      WriteMultiplier(made, a, step.last_elimination - step.first_elimination);
      const P* const multiplier = Row(multipliers_, a);
      const SparseLines::Entry* const end = arrays_.h_rows().end(made.row);
      for (const SparseLines::Entry* e = arrays_.h_rows().begin(made.row); e != end; ++e) {
        AddTo(Row(r_, e->place), N::Of(e->value), multiplier);
      }
      if (!system_.is_diagonal) continue;
      // That of an innovation has a noise of its own.
      const bool observed = made.kind == Elimination<N>::Kind::kObserved;
      const double own = observed ? 0 : f_.NoiseOf(t, made.row).high;
      const double deviation = Norm(multiplier);
      observations_[layout_.y(t) + a] = own * deviation <= kLeast && own > 0 ? 0 : deviation;
    }
    if (!system_.is_diagonal) WriteNoises(t);
    const auto row_at = [this](int64_t i) { return Row(r_, i); };
    columns_ = Compress<N>(n_, columns_, row_at, numbers_.data(), weights_.data());
  }

  // (nu - x_c' r - sum of the later elements') / s; nu is a column of its own.
  void WriteMultiplier(const Elimination<N>& made, int64_t a, int64_t rows) {
    const auto* const column = f_.columns(made.column);
    P* const multiplier = Row(multipliers_, a);
    const bool observed = made.kind == Elimination<N>::Kind::kObserved;
    if (observed) ++columns_;
    for (int64_t i = 0; i < n_; ++i) AddTo(multiplier, -N::Get(column, i), Row(r_, i));
    for (int64_t b = a + 1; !system_.is_diagonal && b < rows; ++b) {
      AddTo(multiplier, -N::Get(column + f_.packs(), b), Row(multipliers_, b));
    }
    if (observed) N::Set(multiplier, columns_ - 1, N::Of(1.0));
    const P inverse = Spread(N::Of(1.0) / made.scale);
    for (int64_t k = 0; k < used(); ++k) multiplier[k] = multiplier[k] * inverse;
  }

  // S S' lambda of the rows that are observed.
  void WriteNoises(int64_t t) {
    const std::vector<int32_t>& rows = *system_.rows[static_cast<size_t>(t)];
    const double* const s = system_.observation_factor.matrices.at(t);
    const double* const low = system_.observation_factor.low.at(t);
    const auto at = [&](size_t a, int64_t j) {
      const int64_t place = j * ny_ + rows[a];
      return N::Of(s[place], low[place]);
    };
    noises_.Clear();
    const int64_t noises = f_.noises_observed(t);
    for (int64_t j = 0; j < noises; ++j) {
      for (size_t a = 0; a < rows.size(); ++a) {
        AddTo(Row(noises_, j), at(a, j), Row(multipliers_, static_cast<int64_t>(a)));
      }
    }
    for (size_t a = 0; a < rows.size(); ++a) {
      sum_.Clear();
      for (int64_t j = 0; j < noises; ++j) AddTo(sum_.data(), at(a, j), Row(noises_, j));
      double own = 0;
      for (int64_t j = 0; j < noises; ++j) own = std::hypot(own, High(at(a, j)));
      const P* const multiplier = Row(multipliers_, static_cast<int64_t>(a));
      observations_[layout_.y(t) + static_cast<int64_t>(a)] =
          own > 0 ? Beyond(own, Norm(sum_.data())) : Norm(multiplier);
    }
  }

  const Factorization<N>& f_;
  const System& system_;
  const Layout& layout_;
  const int64_t n_, ny_, width_;
  StepArrays arrays_;
  int64_t columns_ = 0;
  Buffer<P> r_, moved_;    // the rows of U
  Buffer<P> noises_;       // of B'U, or of S' Lambda
  Buffer<P> multipliers_;  // the rows of Lambda
  Buffer<P> sum_;
  Buffer<S> numbers_;
  Buffer<P> weights_;
  Buffer<double> states_, observations_;
};

}  // namespace blockd::orthogonal::BLOCKD_KERNEL_NAMESPACE

#endif  // BLOCKD_ENGINE_SMOOTHER_ORTHOGONAL_DISTURBANCES_H_
