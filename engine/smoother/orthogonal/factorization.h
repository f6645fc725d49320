// The forward pass over a system: its reflections, step after step, and what is known of each state
// before and after its observations.
//
// The rows of a diffuse direction are eliminated by Gauss, not by reflections, because flat
// coordinates have no metric: the largest |h D_j| / (|h| |D_j|) is the pivot.
#ifndef BLOCKD_ENGINE_SMOOTHER_ORTHOGONAL_FACTORIZATION_H_
#define BLOCKD_ENGINE_SMOOTHER_ORTHOGONAL_FACTORIZATION_H_

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "engine/smoother/orthogonal/factored_step.h"
#include "engine/smoother/orthogonal/numbers.h"
#include "engine/smoother/orthogonal/reflection.h"
#include "engine/smoother/orthogonal/storage.h"
#include "engine/smoother/orthogonal/system.h"

namespace blockd::orthogonal::BLOCKD_KERNEL_NAMESPACE {

template <typename N>
class Factorization {
 public:
  using P = typename N::Pack;
  using S = typename N::Scalar;

  explicit Factorization(const System& system)
      : system_(system),
        arrays_(system),
        n_(system.state_size),
        packs_(PacksOf(n_)),
        tall_(packs_ + (system.is_diagonal ? 0 : PacksOf(system.observation_size))),
        most_noises_(
            std::max(system.transition_factor.most_columns,
                     system.is_diagonal ? 1 : std::max(1, system.observation_factor.most_columns))),
        most_coordinates_(n_ + std::max(system.initial_columns, n_) + system.diffuse_columns +
                          most_noises_ + 1),
        work_(most_coordinates_ * tall_),
        next_(most_coordinates_ * packs_),
        directions_(system.diffuse_columns * packs_),
        row_(most_coordinates_),
        scales_(n_),
        steps_(system.num_steps) {}

  // Its outcome; the rest is of use only if that is kDone or kSkipped.
  Report Run() {
    LoadInitial();
    for (int64_t t = 0; t < system_.num_steps; ++t) {
      if (is_steady_ && RowsRepeat(t)) {
        Repeat(t);
        continue;
      }
      const Long before = log_determinant_;
      const int64_t observed = observed_;
      BeginStep(t);
      if (!system_.rows[static_cast<size_t>(t)]->empty()) Observe(t);
      EndStep(t);
      last_log_determinant_ = log_determinant_ - before;
      last_observed_ = observed_ - observed;
    }
    report_.directions = direction_count_;
    if (direction_count_ > 0) report_.outcome = Outcome::kNotIdentified;
    return report_;
  }

  const System& system() const { return system_; }
  int64_t packs() const { return packs_; }
  int64_t noise_packs() const { return tall_ - packs_; }
  // The most of xi at once, and of noises of a step.
  int64_t most_coordinates() const { return most_coordinates_; }
  int64_t most_noises() const { return most_noises_; }
  const FactoredStep<N>& step(int64_t t) const { return steps_[t]; }
  // True if step t + 1 is step t again, number for number.
  bool repeats(int64_t t) const {
    return t + 1 < system_.num_steps && steps_[t].scales == steps_[t + 1].scales;
  }
  const Elimination<N>& elimination(int64_t i) const { return eliminations_[i]; }
  const Reflection<N>& reflection(int64_t i) const { return reflections_[i]; }
  const P* columns(int64_t place) const { return columns_.data() + place; }
  const S* scalars(int64_t place) const { return scalars_.data() + place; }
  const S* weights() const { return scalars_.data(); }
  const double* sizes(int64_t place) const { return sizes_.data() + place; }
  int64_t noises_observed(int64_t t) const {
    return system_.is_diagonal ? 0 : system_.observation_factor.columns_at(t);
  }
  // log |det| of the map from the innovations and the diffuse directions to the data, twice, and
  // how many innovations there are.
  Long log_determinant() const { return log_determinant_; }
  int64_t observed() const { return observed_; }
  // Pivots of directions, which may have cancelled, can be off by so much in its logarithm.
  double likelihood_error() const { return likelihood_error_; }
  // True if an element sees a direction so little that it counts as not seeing it.
  bool overlooks() const { return overlooks_; }
  // S_i of a diagonal R.
  Long NoiseOf(int64_t t, int32_t row) const {
    const Factors& s = system_.observation_factor;
    return {s.matrices.at(t)[row], s.low.at(t)[row]};
  }

 private:
  P* Column(int64_t c) { return work_.data() + c * tall_; }
  P* Direction(int64_t j) { return directions_.data() + j * packs_; }

  void LoadInitial() {
    coordinates_ = system_.initial_columns;
    direction_count_ = system_.diffuse_columns;
    SetColumns<N>(n_, coordinates_, system_.initial_factor, system_.initial_low, work_.data(),
                  tall_);
    SetColumns<N>(n_, direction_count_, system_.diffuse, system_.diffuse_low, directions_.data(),
                  packs_);
  }

  // The columns of the present X and D, kept.
  int64_t KeepX() {
    const int64_t place = columns_.Append(coordinates_ * packs_);
    for (int64_t c = 0; c < coordinates_; ++c) {
      std::copy_n(Column(c), packs_, columns_.data() + place + c * packs_);
    }
    return place;
  }
  int64_t KeepD() {
    const int64_t place = columns_.Append(direction_count_ * packs_);
    std::copy_n(directions_.data(), direction_count_ * packs_, columns_.data() + place);
    return place;
  }

  // ---------------------------------------------------------------------------------------------
  // Steps that repeat one another. Where no array changes, X converges; once it changes by rounding
  // alone a step is the step before it, whose numbers stand for both. The estimates count what that
  // leaves, as they count all rounding.

  bool IsConstant() const {
    return !system_.transition.is_per_step() && !system_.observation.is_per_step() &&
           !system_.transition_factor.matrices.is_per_step() &&
           !system_.observation_factor.matrices.is_per_step();
  }
  bool RowsRepeat(int64_t t) const {
    const auto at = static_cast<size_t>(t);
    return system_.rows[at] == system_.rows[at - 1] || *system_.rows[at] == *system_.rows[at - 1];
  }
  void Repeat(int64_t t) {
    steps_[t] = steps_[t - 1];
    log_determinant_ += last_log_determinant_;
    observed_ += last_observed_;
  }
  // True if X is what it was at the beginning of the step, and no size is one of former steps.
  bool HasSettled(const FactoredStep<N>& step) const {
    if (!is_constant_ || step.directions > 0 || coordinates_ != step.coordinates) return false;
    const double* const sizes = sizes_.data() + step.scales;
    for (int64_t i = 0; i < packs_; ++i) {
      Four squares{}, most{};
      for (int64_t c = 0; c < coordinates_; ++c) {
        const P* const before = columns_.data() + step.x + c * packs_;
        const Four x = High(before[i]), change = High(next_[c * packs_ + i] - before[i]);
        squares = MultiplyAdd(x, x, squares);
        for (int k = 0; k < kLanes; ++k) most[k] = std::max(most[k], std::fabs(change[k]));
      }
      for (int64_t k = 0; k < kLanes; ++k) {
        const double size = std::sqrt(squares[k]);
        const int64_t row = i * kLanes + k;
        const bool is_old = row < n_ && std::max(size, scales_[row]) < 0.999 * sizes[row];
        if (is_old || most[k] > kSettled * N::kUnit * size) return false;
      }
    }
    return true;
  }

  void BeginStep(int64_t t) {
    FactoredStep<N>& step = steps_[t];
    arrays_.LoadObservation(t);
    step.coordinates = coordinates_;
    step.directions = direction_count_;
    step.x = KeepX();
    step.d = KeepD();
    step.first_elimination = step.last_elimination = eliminations_.size();
    step.scales = sizes_.Append(n_);
    double* const sizes = sizes_.data() + step.scales;
    for (int64_t i = 0; i < packs_; ++i) {
      Four squares{};
      for (int64_t c = 0; c < coordinates_; ++c) {
        const Four x = High(Column(c)[i]);
        squares = MultiplyAdd(x, x, squares);
      }
      for (int64_t k = 0; k < std::min(kLanes, n_ - i * kLanes); ++k) {
        sizes[i * kLanes + k] = std::max(std::sqrt(squares[k]), scales_[i * kLanes + k]);
      }
    }
  }

  // ---------------------------------------------------------------------------------------------
  // Observations

  void Observe(int64_t t) {
    const std::vector<int32_t>& rows = *system_.rows[static_cast<size_t>(t)];
    if (!system_.is_diagonal) AddNoises(t, rows);
    for (size_t a = 0; a < rows.size(); ++a) {
      Eliminate(t, static_cast<int64_t>(a), rows[a]);
    }
    steps_[t].last_elimination = eliminations_.size();
  }

  // The columns [0; S] of the rows that are observed.
  void AddNoises(int64_t t, const std::vector<int32_t>& rows) {
    const int64_t columns = system_.observation_factor.columns_at(t);
    const double* const s = system_.observation_factor.matrices.at(t);
    const double* const low = system_.observation_factor.low.at(t);
    for (int64_t c = 0; c < coordinates_; ++c) {
      std::fill_n(Column(c) + packs_, tall_ - packs_, P{});
    }
    for (int64_t j = 0; j < columns; ++j) {
      P* const column = Column(coordinates_ + j);
      std::fill_n(column, tall_, P{});
      for (size_t a = 0; a < rows.size(); ++a) {
        const int64_t at = j * system_.observation_size + rows[a];
        N::Set(column + packs_, static_cast<int64_t>(a), N::Of(s[at], low[at]));
      }
    }
    steps_[t].noises = columns;
    coordinates_ += columns;
  }
  // That of one element, if it has any: its column of x is zero.
  bool AddNoise(int64_t t, int32_t row) {
    if (!system_.is_diagonal || NoiseOf(t, row).high == 0) return false;
    std::fill_n(Column(coordinates_++), tall_, P{});
    return true;
  }

  // [h X, S_i], and the size of what its numbers are sums of.
  double WriteRow(int64_t t, int64_t a, int32_t row) {
    const Four* const h = arrays_.h(row);
    for (int64_t c = 0; c < coordinates_; ++c) {
      const P* const column = Column(c);
      P sum{};
      for (int64_t i = 0; i < packs_; ++i) sum = Accumulate(sum, N::Of(h[i]), column[i]);
      row_[c] = SumOf(sum);
      if (!system_.is_diagonal) row_[c] += N::Get(column + packs_, a);
    }
    double noise = 0;
    if (system_.is_diagonal) {
      const Long own = NoiseOf(t, row);
      noise = own.high;
      if (noise != 0) row_[coordinates_ - 1] = N::Of(own.high, own.low);
    } else {
      const double* const s = system_.observation_factor.matrices.at(t);
      for (int64_t j = 0; j < steps_[t].noises; ++j) {
        noise = std::hypot(noise, s[j * system_.observation_size + row]);
      }
    }
    const double* const sizes = sizes_.data() + steps_[t].scales;
    double terms = std::fabs(noise);
    for (int64_t j = 0; j < n_; ++j) terms += std::fabs(StepArrays::Doubles(h)[j]) * sizes[j];
    return terms;
  }

  void Eliminate(int64_t t, int64_t a, int32_t row) {
    Elimination<N>& made = eliminations_[eliminations_.Append(1)];
    made.row = row;
    made.has_noise = AddNoise(t, row);
    made.terms = WriteRow(t, a, row);
    made.coordinates = coordinates_;
    if (SeesDirection(row, &made)) return EliminateDirection(&made);
    double squares = 0;
    for (int64_t c = 0; c < coordinates_; ++c) squares += High(row_[c]) * High(row_[c]);
    const double least = 30 * static_cast<double>(n_) * N::kUnit * made.terms;
    if (!(std::sqrt(squares) > least) ||
        !MakeReflection(row_.data(), coordinates_, &made.reflection)) {
      return Skip(t, &made);
    }
    made.reflection.weights = KeepRow(coordinates_);
    Turn(made.reflection, weights(), work_.data(), tall_, tall_);
    made.column = columns_.Append(tall_);
    std::copy_n(Column(0), tall_, columns_.data() + made.column);
    if (--coordinates_ > 0) std::copy_n(Column(coordinates_), tall_, Column(0));
    made.scale = made.reflection.scale;
    CountInnovation(made.scale);
    ++observed_;
  }

  // The element is known exactly, within rounding. What rounding left of it in X goes: of each
  // state a share of it that is rounding beside the state's own size.
  void Skip(int64_t t, Elimination<N>* made) {
    made->kind = Elimination<N>::Kind::kSkipped;
    if (report_.outcome == Outcome::kDone) {
      report_.outcome = Outcome::kSkipped;
      report_.step = t;
      report_.row = made->row;
    }
    if (made->has_noise) --coordinates_;
    const double* const h = StepArrays::Doubles(arrays_.h(made->row));
    const double* const sizes = sizes_.data() + steps_[t].scales;
    double all = 0;
    for (int64_t i = 0; i < n_; ++i) all += h[i] * h[i] * sizes[i] * sizes[i];
    if (!(all > 0)) return;
    for (int64_t c = 0; c < coordinates_; ++c) {
      for (int64_t i = 0; i < n_; ++i) {
        const S share = row_[c] * N::Of(h[i] * sizes[i] * sizes[i] / all);
        N::Set(Column(c), i, N::Get(Column(c), i) - share);
      }
    }
  }

  void CountInnovation(const S& scale) {
    const double size = std::fabs(High(scale));
    log_determinant_ += Long{2 * std::log(size), 0};
    if constexpr (N::kDoubles == 2) log_determinant_ += Long{2 * scale.low / scale.high, 0};
  }

  int64_t KeepRow(int64_t count) {
    const int64_t place = scalars_.Append(count);
    std::copy_n(row_.data(), count, scalars_.data() + place);
    return place;
  }

  // Where h sees a diffuse direction, which it sees best; h D_j are then where the multipliers will
  // be.
  bool SeesDirection(int32_t row, Elimination<N>* made) {
    if (direction_count_ == 0) return false;
    constexpr double kLeast = N::kDoubles == 1 ? 1e-10 : 1e-25;
    const Four* const h = arrays_.h(row);
    const int64_t place = scalars_.Append(direction_count_);
    double most = kLeast;
    bool seen = false;
    for (int64_t j = 0; j < direction_count_; ++j) {
      P sum{};
      Four sizes{};
      for (int64_t i = 0; i < packs_; ++i) {
        const P term = N::Of(h[i]) * Direction(j)[i];
        sum += term;
        for (int64_t k = 0; k < kLanes; ++k) sizes[k] += std::fabs(High(term)[k]);
      }
      const S seen_of = SumOf(sum);
      const double share = std::fabs(High(seen_of)) / SumOf(sizes);
      overlooks_ |= share > rounding_ && !(share > kLeast);
      if (!(share > kLeast)) continue;  // it stays zero
      scalars_[place + j] = seen_of;
      if (!(share > most)) continue;
      most = share;
      made->direction = j;
      seen = true;
    }
    made->multipliers = place;
    made->directions = direction_count_;
    if (seen) likelihood_error_ += rounding_ / most;
    return seen;
  }

  // delta_j = (v - row xi - sum of the others) / s, so that x no longer has that direction.
  void EliminateDirection(Elimination<N>* made) {
    made->kind = Elimination<N>::Kind::kDiffuse;
    S* const multipliers = scalars_.data() + made->multipliers;
    made->scale = multipliers[made->direction];
    CountInnovation(made->scale);
    for (int64_t j = 0; j < direction_count_; ++j) multipliers[j] = multipliers[j] / made->scale;
    for (int64_t c = 0; c < coordinates_; ++c) row_[c] = row_[c] / made->scale;
    made->noise_row = KeepRow(coordinates_);
    made->column = columns_.Append(tall_);
    P* const gone = columns_.data() + made->column;
    std::copy_n(Direction(made->direction), packs_, gone);
    for (int64_t c = 0; c < coordinates_; ++c) {
      const P factor = Spread(-row_[c]);
      for (int64_t i = 0; i < packs_; ++i) {
        Column(c)[i] = Accumulate(Column(c)[i], factor, gone[i]);
      }
    }
    RemoveDirection(*made, gone);
  }

  // The others lose what they have of it. Differences that rounding alone could have left are zero.
  void RemoveDirection(const Elimination<N>& made, const P* gone) {
    const S* const multipliers = scalars_.data() + made.multipliers;
    int64_t to = 0;
    for (int64_t j = 0; j < direction_count_; ++j) {
      if (j == made.direction) continue;
      for (int64_t i = 0; i < n_; ++i) {
        const S a = N::Get(Direction(j), i), b = N::Get(gone, i) * multipliers[j];
        const S left = a - b;
        const bool zero =
            std::fabs(High(left)) <= rounding_ * (std::fabs(High(a)) + std::fabs(High(b)));
        N::Set(Direction(to), i, zero ? S{} : left);
      }
      ++to;
    }
    direction_count_ = to;
  }

  // ---------------------------------------------------------------------------------------------
  // Time

  void EndStep(int64_t t) {
    FactoredStep<N>& step = steps_[t];
    step.known_coordinates = coordinates_;
    step.known_directions = direction_count_;
    step.known_x = step.known_d = 0;
    step.known_x = KeepX();
    step.known_d = KeepD();
    if (t + 1 == system_.num_steps) return;
    arrays_.LoadTransition(t);
    step.transition_noises = arrays_.noises();
    MoveSizes(step);
    MoveX(&step);
    MoveDirections();
  }

  // Half of the sizes goes on to the next step, where a covariance that was larger still counts.
  void MoveSizes(const FactoredStep<N>& step) {
    const double* const sizes = sizes_.data() + step.scales;
    scales_.Clear();
    for (int64_t j = 0; j < n_; ++j) {
      const double* const f = StepArrays::Doubles(arrays_.f(j));
      for (int64_t i = 0; i < n_; ++i) scales_[i] += std::fabs(f[i]) * 0.5 * sizes[j];
    }
  }

  // [F X, B] Theta = [X, 0].
  void MoveX(FactoredStep<N>* step) {
    const int64_t turned = step->turned();
    std::fill_n(next_.data(), coordinates_ * packs_, P{});
    AddTransition(work_.data(), tall_, coordinates_, next_.data());
    for (int64_t j = 0; j < step->transition_noises; ++j) {
      for (int64_t i = 0; i < packs_; ++i) {
        next_[(coordinates_ + j) * packs_ + i] = N::OfSum(arrays_.b(j)[i], arrays_.b_low(j)[i]);
      }
    }
    step->first_reflection = reflections_.size();
    int64_t done = 0;
    for (int64_t i = 0; i < n_ && done < turned; ++i) {
      for (int64_t c = done; c < turned; ++c) row_[c - done] = N::Get(&next_[c * packs_], i);
      Reflection<N> theta{.first = done};
      if (!MakeReflection(row_.data(), turned - done, &theta)) continue;
      theta.weights = KeepRow(turned - done);
      theta.MakePositive();  // so that X does not change its signs for ever where it converges
      reflections_[reflections_.Append(1)] = theta;
      const int64_t above = i / kLanes;  // packs that are done
      Turn(theta, weights(), next_.data() + above, packs_, packs_ - above);
      N::Set(&next_[done * packs_], i, theta.scale);
      for (int64_t c = done + 1; c < turned; ++c) N::Set(&next_[c * packs_], i, S{});
      ++done;
    }
    step->last_reflection = reflections_.size();
    coordinates_ = done;
    is_steady_ = HasSettled(*step);
    for (int64_t c = 0; c < done; ++c) std::copy_n(&next_[c * packs_], packs_, Column(c));
  }

  // to += F times columns.
  void AddTransition(const P* columns, int64_t stride, int64_t count, P* to) {
    const auto factor = [&](int64_t c, int64_t j) { return N::Get(columns + j * stride, c); };
    AddProducts<N>(packs_, n_, count, arrays_.f(0), packs_, factor, to, packs_);
  }

  void MoveDirections() {
    if (direction_count_ == 0) return;
    std::fill_n(next_.data(), direction_count_ * packs_, P{});
    AddTransition(directions_.data(), packs_, direction_count_, next_.data());
    for (int64_t j = 0; j < direction_count_; ++j) {
      for (int64_t i = 0; i < n_; ++i) {
        double terms = 0;
        for (int64_t k = 0; k < n_; ++k) {
          terms += std::fabs(StepArrays::Doubles(arrays_.f(k))[i] * High(N::Get(Direction(j), k)));
        }
        const S moved = N::Get(&next_[j * packs_], i);
        if (std::fabs(High(moved)) <= rounding_ * terms) N::Set(&next_[j * packs_], i, S{});
      }
    }
    std::copy_n(next_.data(), direction_count_ * packs_, directions_.data());
  }

  static constexpr double kSettled = 4;

  const System& system_;
  const bool is_constant_ = IsConstant();
  StepArrays arrays_;
  const int64_t n_, packs_, tall_;
  const int64_t most_noises_, most_coordinates_;
  const double rounding_ = 64 * static_cast<double>(n_) * N::kUnit;  // of sums of n terms
  Buffer<P> work_;        // X, and the rows of the observation's noises below it
  Buffer<P> next_;        // of the next step
  Buffer<P> directions_;  // D
  Buffer<S> row_;
  Buffer<double> scales_;  // n: sizes that the step before leaves
  int64_t coordinates_ = 0, direction_count_ = 0;
  Buffer<FactoredStep<N>> steps_;
  Buffer<Elimination<N>> eliminations_;
  Buffer<Reflection<N>> reflections_;
  Buffer<P> columns_;
  Buffer<S> scalars_;
  Buffer<double> sizes_;
  Long log_determinant_;
  int64_t observed_ = 0;
  double likelihood_error_ = 0;
  bool overlooks_ = false;
  bool is_steady_ = false;  // the next step is the last one, if it has the same rows
  Long last_log_determinant_;
  int64_t last_observed_ = 0;
  Report report_;
};

}  // namespace blockd::orthogonal::BLOCKD_KERNEL_NAMESPACE

#endif  // BLOCKD_ENGINE_SMOOTHER_ORTHOGONAL_FACTORIZATION_H_
