// The score: the gradient of the log-likelihood with respect to the model's arrays, without an
// inverse of Q or R.
//
// With nu ~ N(0, I) the standardized innovations the multipliers are r = U nu and lambda = Lambda
// nu, and what is observed from a step on changes its x by X K nu. Each is linear in the model's
// equations, so that for sums over the steps
//
//   dF = r x' - U (X K)',  dQ = (r r' - U U') / 2,  dc = r,
//   dH = lambda x' - Lambda (X K)',  dR = (lambda lambda' - Lambda Lambda') / 2,  dd = lambda,
//   dm = r(1),  dP = (r(1) r(1)' - U(1) U(1)') / 2,
//
// where x, r and lambda are the series' own means (Koopman and Shephard, Exact score for time
// series models in state space form, 1992). K goes backward as the coordinates do, with a one where
// an innovation is known. An element that tells a diffuse direction has a column of its own, which
// counts in dF and dH alone: the size of its innovation cancels there, and is infinite elsewhere.
#ifndef BLOCKD_ENGINE_SMOOTHER_ORTHOGONAL_SCORE_H_
#define BLOCKD_ENGINE_SMOOTHER_ORTHOGONAL_SCORE_H_

#include <algorithm>
#include <cstdint>

#include "engine/smoother/orthogonal/factorization.h"
#include "engine/smoother/orthogonal/means.h"
#include "engine/smoother/orthogonal/numbers.h"
#include "engine/smoother/orthogonal/reflection.h"
#include "engine/smoother/orthogonal/storage.h"
#include "engine/smoother/orthogonal/system.h"

namespace blockd::orthogonal::BLOCKD_KERNEL_NAMESPACE {

// A part of the score: one matrix, the sum over all steps, or one a step.
class ScorePart {
 public:
  ScorePart(int64_t rows, int64_t columns, int64_t steps)
      : rows_(rows), size_(rows * columns), steps_(steps), values_(size_ * steps) {}

  double& At(int64_t t, int64_t i, int64_t j) { return values_[Place(t, i, j)]; }
  int64_t Place(int64_t t, int64_t i, int64_t j) const {
    return (steps_ > 1 ? t * size_ : 0) + j * rows_ + i;
  }
  // A series' own part begins with it.
  void CopyTo(double* to) const { std::copy_n(values_.data(), values_.size(), to); }

 private:
  const int64_t rows_, size_, steps_;
  Buffer<double> values_;
};

template <typename N>
class Score {
 public:
  using P = typename N::Pack;
  using S = typename N::Scalar;

  Score(const Factorization<N>& factorization, const Layout& layout)
      : f_(factorization),
        system_(factorization.system()),
        layout_(layout),
        n_(system_.state_size),
        ny_(system_.observation_size),
        most_rows_(factorization.most_coordinates() + factorization.most_noises() +
                   system_.diffuse_columns + n_),
        // Columns of K and U, one for each element of a step, then those of diffuse directions.
        first_diffuse_(PacksOf(most_rows_ + ny_) * kLanes),
        width_(first_diffuse_ / kLanes + PacksOf(system_.diffuse_columns)),
        arrays_(system_),
        xi_(most_rows_ * width_),
        delta_(std::max<int64_t>(1, system_.diffuse_columns) * width_),
        r_(n_ * width_),
        moved_(n_ * width_),
        multipliers_(ny_ * width_),
        states_(n_ * width_),
        numbers_(width_ * kLanes),
        weights_(width_),
        transition_(n_, n_, PartSteps(system_.transition, system_.num_steps - 1)),
        noise_(n_, n_, PartSteps(system_.transition_factor.matrices, system_.num_steps - 1)),
        observation_(ny_, n_, PartSteps(system_.observation, system_.num_steps)),
        covariance_(ny_, ny_, PartSteps(system_.observation_factor.matrices, system_.num_steps)),
        initial_(n_, n_, 1) {}

  // The parts that all series share.
  void Run() {
    const int64_t last = system_.num_steps - 1;
    coordinates_ = f_.step(last).known_coordinates;
    for (int64_t t = last; t >= 0; --t) {
      if (t < last) MoveBack(t);
      if (f_.step(t).first_elimination < f_.step(t).last_elimination) Observe(t);
      Compress();
    }
    for (int64_t i = 0; i < n_; ++i) {
      for (int64_t j = 0; j < n_; ++j) initial_.At(0, i, j) = -Product(Row(r_, i), Row(r_, j)) / 2;
    }
  }

  // The score of a series, whose means `answer` has in a lane.
  template <typename Answer>
  void Write(const Answer& answer, int lane, const SeriesResults& to) const {
    const auto x = [&](int64_t t, int64_t i) { return answer.Mean(t * n_ + i, lane); };
    const auto r = [&](int64_t t, int64_t i) { return answer.StateMultiplier(t * n_ + i, lane); };
    const auto start = [](const ScorePart& shared, double* part) {
      if (part != nullptr) shared.CopyTo(part);
    };
    start(transition_, to.score_transition);
    start(noise_, to.score_transition_covariance);
    start(observation_, to.score_observation);
    start(covariance_, to.score_observation_covariance);
    start(initial_, to.score_initial_covariance);
    const bool c_per_step = system_.transition_offset.is_per_step();
    const bool d_per_step = system_.observation_offset.is_per_step();
    if (to.score_transition_offset != nullptr) {
      std::fill_n(to.score_transition_offset, n_ * (c_per_step ? system_.num_steps - 1 : 1), 0.0);
    }
    if (to.score_observation_offset != nullptr) {
      std::fill_n(to.score_observation_offset, ny_ * (d_per_step ? system_.num_steps : 1), 0.0);
    }
    const auto add = [](double* part, int64_t place, double by) {
      if (part != nullptr) part[place] += by;
    };
    for (int64_t t = 0; t + 1 < system_.num_steps; ++t) {
      for (int64_t i = 0; i < n_; ++i) {
        const double own = r(t + 1, i);
        add(to.score_transition_offset, (c_per_step ? t * n_ : 0) + i, own);
        for (int64_t j = 0; j < n_; ++j) {
          add(to.score_transition, transition_.Place(t, i, j), own * x(t, j));
          add(to.score_transition_covariance, noise_.Place(t, i, j), own * r(t + 1, j) / 2);
        }
      }
    }
    for (int64_t t = 0; t < system_.num_steps; ++t) {
      const std::vector<int32_t>& rows = *system_.rows[static_cast<size_t>(t)];
      for (size_t a = 0; a < rows.size(); ++a) {
        const int32_t i = rows[a];
        const double own = Multiplier(answer, t, a, lane);
        add(to.score_observation_offset, (d_per_step ? t * ny_ : 0) + i, own);
        for (int64_t j = 0; j < n_; ++j) {
          add(to.score_observation, observation_.Place(t, i, j), own * x(t, j));
        }
        for (size_t b = 0; b < rows.size(); ++b) {
          add(to.score_observation_covariance, covariance_.Place(t, i, rows[b]),
              own * Multiplier(answer, t, b, lane) / 2);
        }
      }
    }
    for (int64_t i = 0; i < n_; ++i) {
      if (to.score_initial_mean != nullptr) to.score_initial_mean[i] = r(0, i);
      for (int64_t j = 0; j < n_; ++j) {
        add(to.score_initial_covariance, initial_.Place(0, i, j), r(0, i) * r(0, j) / 2);
      }
    }
  }

 private:
  static int64_t PartSteps(const Matrices& array, int64_t steps) {
    return array.is_per_step() ? std::max<int64_t>(steps, 1) : 1;
  }
  template <typename Answer>
  double Multiplier(const Answer& answer, int64_t t, size_t a, int lane) const {
    return answer.Multiplier(layout_.y(t) + static_cast<int64_t>(a), lane);
  }

  P* Row(Buffer<P>& rows, int64_t i) { return rows.data() + i * width_; }
  // All columns, those of diffuse directions too.
  void AddTo(P* to, const S& factor, const P* row) const {
    const P spread = Spread(factor);
    for (int64_t k = 0; k < PacksOf(columns_); ++k) to[k] = Accumulate(to[k], spread, row[k]);
    for (int64_t k = first_diffuse_ / kLanes; k < width_; ++k) {
      to[k] = Accumulate(to[k], spread, row[k]);
    }
  }
  // Without those.
  double Product(const P* a, const P* b) const { return High(Dot(a, b, PacksOf(columns_))); }
  double DiffuseProduct(const P* a, const P* b) const {
    const int64_t first = first_diffuse_ / kLanes;
    return first == width_ ? 0 : High(Dot(a + first, b + first, width_ - first));
  }

  // [X, D] K.
  void WriteStates(int64_t x, int64_t d) {
    states_.Clear();
    for (int64_t c = 0; c < coordinates_; ++c) {
      const P* const column = f_.columns(x) + c * f_.packs();
      for (int64_t i = 0; i < n_; ++i) AddTo(Row(states_, i), N::Get(column, i), Row(xi_, c));
    }
    for (int64_t j = 0; j < directions_; ++j) {
      const P* const column = f_.columns(d) + j * f_.packs();
      for (int64_t i = 0; i < n_; ++i) AddTo(Row(states_, i), N::Get(column, i), Row(delta_, j));
    }
  }

  void MoveBack(int64_t t) {
    const FactoredStep<N>& step = f_.step(t);
    arrays_.LoadTransition(t);
    for (int64_t c = coordinates_; c < step.turned(); ++c) std::fill_n(Row(xi_, c), width_, P{});
    for (int64_t i = step.last_reflection; i-- > step.first_reflection;) {
      TurnBack(f_.reflection(i), f_.weights(), xi_.data(), width_, width_);
    }
    coordinates_ = step.known_coordinates;
    WriteStates(step.known_x, step.known_d);
    for (int64_t i = 0; i < n_; ++i) {
      const P* const own = Row(r_, i);
      for (int64_t j = 0; j < n_; ++j) {
        const P* const x = Row(states_, j);
        transition_.At(t, i, j) -= Product(own, x) + DiffuseProduct(own, x);
        noise_.At(t, i, j) -= Product(own, Row(r_, j)) / 2;
      }
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

  void Observe(int64_t t) {
    const FactoredStep<N>& step = f_.step(t);
    const int64_t count = step.last_elimination - step.first_elimination;
    arrays_.LoadObservation(t);
    multipliers_.Clear();
    for (int64_t a = count; a-- > 0;) {
      const Elimination<N>& made = f_.elimination(step.first_elimination + a);
      if (made.kind == Elimination<N>::Kind::kSkipped) continue;
      const bool observed = made.kind == Elimination<N>::Kind::kObserved;
      // The column of its innovation.
      const int64_t own = observed ? columns_++ : first_diffuse_ + diffuse_++;
      WriteMultiplier(made, a, count, own);
      observed ? Restore(made, own) : RestoreDirection(made, own);
      if (made.has_noise) --coordinates_;
    }
    coordinates_ -= step.noises;
    WriteStates(step.x, step.d);
    for (int64_t a = 0; a < count; ++a) {
      const int32_t i = f_.elimination(step.first_elimination + a).row;
      const P* const own = Row(multipliers_, a);
      for (int64_t j = 0; j < n_; ++j) {
        const P* const x = Row(states_, j);
        observation_.At(t, i, j) -= Product(own, x) + DiffuseProduct(own, x);
      }
      for (int64_t b = 0; b < count; ++b) {
        const int32_t j = f_.elimination(step.first_elimination + b).row;
        covariance_.At(t, i, j) -= Product(own, Row(multipliers_, b)) / 2;
      }
    }
  }

  // (nu - x_c' r - sum of the later elements') / s; H' of it joins r.
  void WriteMultiplier(const Elimination<N>& made, int64_t a, int64_t rows, int64_t own) {
    const auto* const column = f_.columns(made.column);
    P* const multiplier = Row(multipliers_, a);
    for (int64_t i = 0; i < n_; ++i) AddTo(multiplier, -N::Get(column, i), Row(r_, i));
    for (int64_t b = a + 1; !system_.is_diagonal && b < rows; ++b) {
      AddTo(multiplier, -N::Get(column + f_.packs(), b), Row(multipliers_, b));
    }
    N::Set(multiplier, own, N::Get(multiplier, own) + N::Of(1.0));
    const P inverse = Spread(N::Of(1.0) / made.scale);
    for (int64_t k = 0; k < width_; ++k) multiplier[k] = multiplier[k] * inverse;
    const SparseLines::Entry* const end = arrays_.h_rows().end(made.row);
    for (const SparseLines::Entry* e = arrays_.h_rows().begin(made.row); e != end; ++e) {
      AddTo(Row(r_, e->place), N::Of(e->value), multiplier);
    }
  }

  // From the coordinates after an element to those before it: the known one is its innovation.
  void Restore(const Elimination<N>& made, int64_t own) {
    const int64_t last = made.coordinates - 1;
    if (last > 0) std::copy_n(Row(xi_, 0), width_, Row(xi_, last));
    coordinates_ = made.coordinates;
    std::fill_n(Row(xi_, 0), width_, P{});
    N::Set(Row(xi_, 0), own, N::Of(1.0));
    TurnBack(made.reflection, f_.weights(), xi_.data(), width_, width_);
  }
  void RestoreDirection(const Elimination<N>& made, int64_t own) {
    for (int64_t j = directions_; j > made.direction; --j) {
      std::copy_n(Row(delta_, j - 1), width_, Row(delta_, j));
    }
    ++directions_;
    P* const to = Row(delta_, made.direction);
    std::fill_n(to, width_, P{});
    N::Set(to, own, N::Of(1.0));
    for (int64_t c = 0; c < made.coordinates; ++c) {
      AddTo(to, -f_.scalars(made.noise_row)[c], Row(xi_, c));
    }
    for (int64_t j = 0; j < made.directions; ++j) {
      if (j != made.direction) AddTo(to, -f_.scalars(made.multipliers)[j], Row(delta_, j));
    }
  }

  // [K; U] Theta = [.., 0]; columns of diffuse directions stay.
  void Compress() {
    const auto row_at = [this](int64_t i) {
      if (i < coordinates_) return Row(xi_, i);
      i -= coordinates_;
      return i < directions_ ? Row(delta_, i) : Row(r_, i - directions_);
    };
    columns_ = orthogonal::BLOCKD_KERNEL_NAMESPACE::Compress<N>(
        coordinates_ + directions_ + n_, columns_, row_at, numbers_.data(), weights_.data());
  }

  const Factorization<N>& f_;
  const System& system_;
  const Layout& layout_;
  const int64_t n_, ny_, most_rows_, first_diffuse_, width_;
  StepArrays arrays_;
  int64_t coordinates_ = 0, directions_ = 0, columns_ = 0, diffuse_ = 0;
  Buffer<P> xi_, delta_;   // the rows of K
  Buffer<P> r_, moved_;    // of U
  Buffer<P> multipliers_;  // of Lambda
  Buffer<P> states_;       // of [X, D] K
  Buffer<S> numbers_;
  Buffer<P> weights_;
  ScorePart transition_, noise_, observation_, covariance_, initial_;
};

}  // namespace blockd::orthogonal::BLOCKD_KERNEL_NAMESPACE

#endif  // BLOCKD_ENGINE_SMOOTHER_ORTHOGONAL_SCORE_H_
