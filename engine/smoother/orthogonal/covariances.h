// The backward pass of covariances: a square root W of the covariance of the coordinates goes back
// through the reflections, which change no norm, and Cov(x) = ([X, D] W)([X, D] W)'.
#ifndef BLOCKD_ENGINE_SMOOTHER_ORTHOGONAL_COVARIANCES_H_
#define BLOCKD_ENGINE_SMOOTHER_ORTHOGONAL_COVARIANCES_H_

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "engine/smoother/orthogonal/factorization.h"
#include "engine/smoother/orthogonal/numbers.h"
#include "engine/smoother/orthogonal/reflection.h"
#include "engine/smoother/orthogonal/storage.h"
#include "engine/smoother/orthogonal/system.h"

namespace blockd::orthogonal::BLOCKD_KERNEL_NAMESPACE {

template <typename N>
class Covariances {
 public:
  using P = typename N::Pack;
  using S = typename N::Scalar;

  // Writes what is wanted, and the standard deviations of all states: state_size x num_steps.
  Covariances(const Factorization<N>& factorization, const Results& results, double* deviations)
      : f_(factorization),
        results_(results),
        arrays_(factorization.system()),
        deviations_(deviations),
        n_(factorization.system().state_size),
        packs_(factorization.packs()),
        rows_(factorization.most_coordinates()),
        most_columns_(rows_ + factorization.system().diffuse_columns + factorization.most_noises()),
        width_(PacksOf(most_columns_)),
        xi_(rows_ * width_),
        delta_(std::max<int64_t>(1, factorization.system().diffuse_columns) * width_),
        last_(rows_ * width_),
        row_(width_ * kLanes),
        states_(most_columns_ * packs_),
        next_states_(most_columns_ * packs_),
        cross_(std::max(n_, most_columns_) * PacksOf(std::max(n_, most_columns_))) {}

  // A bound of the relative error of observations' variances, to first order, for what the states'
  // are right to.
  double observation_error() const { return observation_error_; }

  void Run() {
    const int64_t last = f_.system().num_steps - 1;
    coordinates_ = columns_ = f_.step(last).known_coordinates;
    directions_ = 0;
    for (int64_t i = 0; i < columns_; ++i) N::Set(xi(i), i, N::Of(1.0));
    for (int64_t t = last; t >= 0; --t) {
      if (is_steady_ && f_.repeats(t)) {
        Repeat(t);
        continue;
      }
      const int64_t before = columns_;
      if (t < last) GoBack(t);
      if (results_.lag_one == nullptr) Compress();
      const FactoredStep<N>& step = f_.step(t);
      WriteStates(step.known_x, step.known_d, states_.data());
      WriteCovariance(t);
      if (results_.observation_covariances != nullptr) WriteObservations(t);
      if (results_.lag_one != nullptr && t < last) WriteLagOne(t, before);
      if (results_.lag_one != nullptr) Compress();
      for (int64_t i = step.last_elimination; i-- > step.first_elimination;) {
        Restore(f_.elimination(i));
      }
      coordinates_ -= step.noises;
      Compress();
      if (results_.lag_one != nullptr) WriteStates(step.x, step.d, next_states_.data());
      is_steady_ = f_.repeats(t) && HasSettled();
      std::copy_n(xi_.data(), coordinates_ * width_, last_.data());
      last_columns_ = columns_;
    }
  }

 private:
  // Steps that repeat one another, as in the factorization: W converges too.
  bool HasSettled() {
    if (directions_ > 0 || columns_ != last_columns_) return false;
    for (int64_t c = 0; c < coordinates_; ++c) {
      const P* const before = last_.data() + c * width_;
      double most = 0;
      for (int64_t i = 0; i < used(); ++i) {
        const Four change = High(xi(c)[i] - before[i]);
        for (int k = 0; k < kLanes; ++k) most = std::max(most, std::fabs(change[k]));
      }
      const double size = std::sqrt(High(Dot(xi(c), xi(c), used())));
      if (most > kSettled * N::kUnit * size) return false;
    }
    return true;
  }
  void Repeat(int64_t t) {
    const auto copy = [t](double* of_steps, int64_t size) {
      if (of_steps != nullptr) std::copy_n(of_steps + (t + 1) * size, size, of_steps + t * size);
    };
    copy(deviations_, n_);
    copy(results_.variances, n_);
    copy(results_.covariances, n_ * n_);
    copy(results_.lag_one, n_ * n_);
    const int64_t ny = f_.system().observation_size;
    copy(results_.observation_covariances, results_.only_variances ? ny : ny * ny);
  }

  P* xi(int64_t c) { return xi_.data() + c * width_; }
  P* delta(int64_t j) { return delta_.data() + j * width_; }
  P* RowAt(int64_t i) { return i < coordinates_ ? xi(i) : delta(i - coordinates_); }
  int64_t used() const { return PacksOf(columns_); }

  void ZeroRow(P* row) { std::fill_n(row, width_, P{}); }

  // From the coordinates of the prediction at t + 1 to those of t, with the noises that nothing was
  // observed of.
  void GoBack(int64_t t) {
    const FactoredStep<N>& step = f_.step(t);
    const int64_t turned = step.turned();
    for (int64_t c = coordinates_; c < turned; ++c) {
      ZeroRow(xi(c));
      N::Set(xi(c), columns_++, N::Of(1.0));
    }
    for (int64_t i = step.last_reflection; i-- > step.first_reflection;) {
      TurnBack(f_.reflection(i), f_.weights(), xi_.data(), width_, used());
    }
    coordinates_ = step.known_coordinates;
  }

  // No more columns than rows.
  void Compress() {
    const auto row_at = [this](int64_t i) { return RowAt(i); };
    columns_ = orthogonal::BLOCKD_KERNEL_NAMESPACE::Compress<N>(
        coordinates_ + directions_, columns_, row_at, row_.data(), cross_.data());
  }

  // [X, D] W, by columns.
  void WriteStates(int64_t x, int64_t d, P* states) {
    std::fill_n(states, columns_ * packs_, P{});
    const auto of_xi = [&](int64_t c, int64_t j) { return N::Get(xi(c), j); };
    AddProducts<N>(packs_, coordinates_, columns_, f_.columns(x), packs_, of_xi, states, packs_);
    if (directions_ == 0) return;
    const auto of_delta = [&](int64_t c, int64_t j) { return N::Get(delta(c), j); };
    AddProducts<N>(packs_, directions_, columns_, f_.columns(d), packs_, of_delta, states, packs_);
  }

  void WriteCovariance(int64_t t) {
    double* const deviations = deviations_ + t * n_;
    for (int64_t i = 0; i < packs_; ++i) {
      P squares{};
      for (int64_t j = 0; j < columns_; ++j) {
        squares = Accumulate(squares, states_[j * packs_ + i], states_[j * packs_ + i]);
      }
      for (int64_t k = 0; k < std::min(kLanes, n_ - i * kLanes); ++k) {
        const double variance = High(N::Get(&squares, k));
        deviations[i * kLanes + k] = std::sqrt(variance);
        if (results_.variances != nullptr) results_.variances[t * n_ + i * kLanes + k] = variance;
      }
    }
    if (results_.covariances == nullptr) return;
    WriteSquare<N>(n_, columns_, states_.data(), cross_.data(), results_.covariances + t * n_ * n_);
  }

  // H Cov(x) H' + R, or its diagonal.
  void WriteObservations(int64_t t) {
    const System& system = f_.system();
    const int64_t ny = system.observation_size, packs = PacksOf(ny);
    const double* const r = system.observation_covariance.at(t);
    arrays_.LoadObservation(t);
    observed_.Resize(columns_ * packs);
    for (int64_t c = 0; c < columns_; ++c) {
      for (int64_t i = 0; i < ny; ++i) {
        S sum{};
        const SparseLines::Entry* const end = arrays_.h_rows().end(i);
        for (const SparseLines::Entry* e = arrays_.h_rows().begin(i); e != end; ++e) {
          sum = Accumulate(sum, N::Of(e->value), N::Get(&states_[c * packs_], e->place));
        }
        N::Set(&observed_[c * packs], i, sum);
      }
    }
    const bool whole = !results_.only_variances;
    double* const to = results_.observation_covariances + t * (whole ? ny * ny : ny);
    if (whole) {
      observed_cross_.Resize(ny * packs);
      WriteSquare<N>(ny, columns_, observed_.data(), observed_cross_.data(), to);
      for (int64_t i = 0; i < ny * ny; ++i) to[i] += r[i];
    }
    for (int64_t i = 0; i < ny; ++i) {
      S sum = N::Of(r[i * (ny + 1)]);
      for (int64_t c = 0; c < columns_; ++c) {
        const S own = N::Get(&observed_[c * packs], i);
        sum = Accumulate(sum, own, own);
      }
      if (!whole) to[i] = High(sum);
      BoundObservation(t, i, High(sum));
    }
  }
  // A row of H may see a small difference of large numbers; states that are known count nothing.
  void BoundObservation(int64_t t, int64_t i, double variance) {
    const double* const h = StepArrays::Doubles(arrays_.h(i));
    double terms = 0;
    for (int64_t j = 0; j < n_; ++j) terms += std::fabs(h[j]) * deviations_[t * n_ + j];
    const double deviation = std::sqrt(variance);
    if (deviation > 1e-12 * terms) Raise(&observation_error_, 4 * N::kUnit * terms / deviation);
  }

  // Cov(x(t+1), x(t)): of the columns that t + 1 had too.
  void WriteLagOne(int64_t t, int64_t shared) {
    const auto factor = [&](int64_t c, int64_t j) { return N::Get(&states_[c * packs_], j); };
    std::fill_n(cross_.data(), n_ * packs_, P{});
    AddProducts<N>(packs_, shared, n_, next_states_.data(), packs_, factor, cross_.data(), packs_);
    double* const lag = results_.lag_one + t * n_ * n_;
    for (int64_t j = 0; j < n_; ++j) {
      for (int64_t i = 0; i < n_; ++i) lag[j * n_ + i] = High(N::Get(&cross_[j * packs_], i));
    }
  }

  // From the coordinates after an element of y to those before it, without its own noise's.
  void Restore(const Elimination<N>& made) {
    if (made.kind == Elimination<N>::Kind::kDiffuse) {
      RestoreDirection(made);
    } else if (made.kind == Elimination<N>::Kind::kObserved) {
      // The known coordinate has no covariance.
      if (coordinates_ > 0) std::copy_n(xi(0), width_, xi(coordinates_));
      ZeroRow(xi(0));
      ++coordinates_;
      TurnBack(made.reflection, f_.weights(), xi_.data(), width_, used());
    } else {
      return;
    }
    if (made.has_noise) --coordinates_;
  }

  void RestoreDirection(const Elimination<N>& made) {
    for (int64_t j = directions_; j > made.direction; --j) {
      std::copy_n(delta(j - 1), width_, delta(j));
    }
    P* const own = delta(made.direction);
    ZeroRow(own);
    ++directions_;
    const S* const row = f_.scalars(made.noise_row);
    for (int64_t c = 0; c < made.coordinates; ++c) AddTo(own, -row[c], xi(c));
    const S* const multipliers = f_.scalars(made.multipliers);
    for (int64_t j = 0; j < made.directions; ++j) {
      if (j != made.direction) AddTo(own, -multipliers[j], delta(j));
    }
  }
  void AddTo(P* to, const S& factor, const P* row) {
    const P spread = Spread(factor);
    for (int64_t i = 0; i < used(); ++i) to[i] = Accumulate(to[i], spread, row[i]);
  }

  const Factorization<N>& f_;
  const Results& results_;
  StepArrays arrays_;
  double* const deviations_;
  const int64_t n_, packs_, rows_, most_columns_, width_;
  static constexpr double kSettled = 4;

  Buffer<P> xi_, delta_;  // the rows of W
  Buffer<P> last_;        // of the step after
  double observation_error_ = 0;
  bool is_steady_ = false;
  int64_t last_columns_ = -1;
  Buffer<S> row_;
  Buffer<P> states_, next_states_, cross_;
  Buffer<P> observed_, observed_cross_;  // H of the states
  int64_t coordinates_ = 0, directions_ = 0, columns_ = 0;
};

}  // namespace blockd::orthogonal::BLOCKD_KERNEL_NAMESPACE

#endif  // BLOCKD_ENGINE_SMOOTHER_ORTHOGONAL_COVARIANCES_H_
