// Means, refined: the residuals of an answer in the model's own equations, and of its noises beside
// those that the multipliers imply, are formed in double-double and go through the vector passes
// again. Without the second kind it stalls. The multipliers of the states are unknowns too, since
// those that follow from the observations' diverge where F is unstable.
//
// A probe is a draw of the smoothing error: the noises have random means before, the data are zero.
// Its first correction says how far the factorization, and so the variances, can be trusted.
#ifndef BLOCKD_ENGINE_SMOOTHER_ORTHOGONAL_REFINEMENT_H_
#define BLOCKD_ENGINE_SMOOTHER_ORTHOGONAL_REFINEMENT_H_

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "engine/smoother/orthogonal/draws.h"
#include "engine/smoother/orthogonal/lanes.h"
#include "engine/smoother/orthogonal/means.h"
#include "engine/smoother/orthogonal/numbers.h"
#include "engine/smoother/orthogonal/storage.h"
#include "engine/smoother/orthogonal/system.h"

namespace blockd::orthogonal::BLOCKD_KERNEL_NAMESPACE {

template <typename N>
class Refinement {
 public:
  using P = typename N::Pack;

  // `deviations` of the states, state_size x num_steps.
  Refinement(const Factorization<N>& factorization, const Layout& layout, const double* deviations)
      : system_(factorization.system()),
        f_(factorization),
        layout_(layout),
        deviations_(deviations),
        n_(system_.state_size),
        arrays_(system_),
        means_(factorization, layout),
        pass_(system_, layout),
        answer_(system_, layout),
        prior_(system_, layout),
        implied_(n_),
        moved_(n_) {}

  // Corrects until the correction is small or no longer shrinks.
  void Run(const Lanes& lanes) {
    lanes_ = lanes;
    data_ = lanes.data();
    Begin();
    Four before{};
    for (corrections_ = 0; corrections_ <= kMostCorrections; ++corrections_) {
      if (corrections_ == 0) {
        WriteData();
      } else {
        WriteResiduals();
      }
      means_.Solve(pass_, corrections_ > 0);
      for (int k = 0; k < kLanes && corrections_ == 0; ++k) clashes_[k] = means_.clash(k);
      Add();
      if (corrections_ == 0) continue;
      if (corrections_ == 1) first_ = correction_;
      if (IsOver(before)) break;
      before = correction_;
    }
  }

  // In standard deviations: of a series the last correction, else the first.
  double CorrectionOf(int lane) const {
    return lanes_.series[lane] != nullptr ? correction_[lane] : first_[lane];
  }
  int64_t corrections() const { return corrections_; }
  const typename Means<N>::Clash& clash(int lane) const { return clashes_[lane]; }
  // The sum over all noises at their means, and the last correction's change of it.
  Long squares(int lane) const { return {squares_.high[lane], squares_.low[lane]}; }
  double squares_change(int lane) const { return squares_change_[lane]; }
  double Mean(int64_t place, int lane) const { return answer_.x[place].high[lane]; }
  // The multipliers of the equation that makes a state, and of an element of y.
  double StateMultiplier(int64_t place, int lane) const { return answer_.r[place].high[lane]; }
  double Multiplier(int64_t place, int lane) const { return answer_.y[place].high[lane]; }
  // H x + d of all rows.
  void WriteObservationMeans(int lane, double* to) {
    const int64_t ny = system_.observation_size;
    for (int64_t t = 0; t < system_.num_steps; ++t) {
      arrays_.LoadObservation(t);
      for (int64_t i = 0; i < ny; ++i) {
        const Matrices& offset = system_.observation_offset;
        const double d = offset.values == nullptr ? 0 : offset.at(t)[i];
        const LongFour first{Spread(d), Four{}};
        to[t * ny + i] =
            AddLine<LongFourSum>(first, arrays_.h_rows(), i, &answer_.x[t * n_]).high[lane];
      }
    }
  }
  // B u, and over their deviations.
  template <typename Deviations>
  void WriteStateDisturbances(int lane, const Deviations* deviations, double* to,
                              double* standardized) {
    for (int64_t t = 0; t + 1 < system_.num_steps; ++t) {
      arrays_.LoadTransition(t);
      const LongFour* const u = answer_.u.data() + layout_.u(t);
      for (int64_t i = 0; i < n_; ++i) {
        const double own = arrays_.AddFactorRow<LongFourSum>(LongFour{}, i, u).high[lane];
        if (to != nullptr) to[t * n_ + i] = own;
        if (standardized != nullptr) {
          standardized[t * n_ + i] = Over(own, deviations->state(t, i));
        }
      }
    }
  }
  // S e, and over their deviations.
  template <typename Deviations>
  void WriteObservationDisturbances(int lane, const Deviations* deviations, double* to,
                                    double* standardized) {
    const int64_t ny = system_.observation_size;
    for (double* const all : {to, standardized}) {
      if (all != nullptr) std::fill_n(all, ny * system_.num_steps, std::nan(""));
    }
    for (int64_t t = 0; t < system_.num_steps; ++t) {
      const std::vector<int32_t>& rows = *system_.rows[static_cast<size_t>(t)];
      for (int64_t a = 0; a < layout_.rows(t); ++a) {
        const int32_t row = rows[static_cast<size_t>(a)];
        const double own = NoiseOf(t, row, a).high[lane];
        if (to != nullptr) to[t * ny + row] = own;
        if (standardized == nullptr) continue;
        const double multiplier = answer_.y[layout_.y(t) + a].high[lane];
        standardized[t * ny + row] =
            Over(Deviations::IsOfMultiplier(system_, t, row) ? multiplier : own,
                 deviations->observation(t, a));
      }
    }
  }

 private:
  static constexpr int64_t kMostCorrections = 8;
  static constexpr double kSmall = 1e-9;

  static double Over(double number, double deviation) {
    return deviation > 0 ? number / deviation : std::nan("");
  }

  void Begin() {
    answer_.x.Clear();
    answer_.r.Clear();
    answer_.u.Clear();
    answer_.e.Clear();
    answer_.y.Clear();
    answer_.z.Clear();
    answer_.delta.Clear();
    correction_ = first_ = Four{};
    const Four probe = lanes_.probe();
    Draws draws;
    const auto draw = [&](Buffer<Four>& to) {
      for (int64_t i = 0; i < to.size(); ++i) to[i] = draws.Next() * probe;
    };
    draw(prior_.z);
    draw(prior_.u);
    draw(prior_.e);
    for (int k = 0; k < kLanes; ++k) {
      if (lanes_.draws[k] != nullptr) TakeDraw(k);
    }
  }
  void TakeDraw(int lane) {
    const double* from = lanes_.draws[lane];
    const auto take = [&](Buffer<Four>& to, int64_t first, int64_t last, const double* numbers) {
      for (int64_t i = first; i < last; ++i) to[i][lane] = *numbers++;
      return numbers;
    };
    take(prior_.z, 0, prior_.z.size(), from);
    for (int64_t t = 0; t < system_.num_steps; ++t) {
      from += system_.draw_stride;
      const bool moves = t + 1 < system_.num_steps;
      const double* rest = from;
      if (moves) rest = take(prior_.u, layout_.u(t), layout_.u(t + 1), rest);
      take(prior_.e, layout_.e(t), layout_.e(t + 1), rest);
    }
  }

  bool IsOver(const Four& before) const {
    for (int k = 0; k < kLanes; ++k) {
      if (lanes_.series[k] == nullptr || correction_[k] <= kSmall) continue;
      const bool shrinks = corrections_ == 1 || correction_[k] <= before[k] / 4;
      if (shrinks) return false;
    }
    return true;
  }

  // ---------------------------------------------------------------------------------------------
  // Residuals

  // The residuals of an answer that is zero.
  void WriteData() {
    for (int64_t t = 0; t < system_.num_steps; ++t) {
      const std::vector<int32_t>& rows = *system_.rows[static_cast<size_t>(t)];
      for (int64_t a = 0; a < layout_.rows(t); ++a) {
        const int32_t row = rows[static_cast<size_t>(a)];
        pass_.y[layout_.y(t) + a] = N::Rounded(lanes_.ObservationAt(system_, t, row));
      }
      for (int64_t i = 0; i < n_; ++i) {
        pass_.x[t * n_ + i] = N::Of(data_ * ConstantOf(system_, t, i));
      }
    }
    const auto copy = [](const Buffer<Four>& from, Buffer<P>& to) {
      for (int64_t i = 0; i < from.size(); ++i) to[i] = N::Of(from[i]);
    };
    copy(prior_.z, pass_.z);
    copy(prior_.u, pass_.u);
    copy(prior_.e, pass_.e);
    pass_.r.Clear();
    pass_.delta.Clear();
  }

  // From the last step on, for the multipliers; all of them into pass_.
  void WriteResiduals() {
    implied_.Clear();
    for (int64_t t = system_.num_steps - 1; t >= 0; --t) {
      if (t + 1 < system_.num_steps) {
        WriteTransition(t);
        ImplyTransition(t);
      }
      if (layout_.rows(t) > 0) WriteObservation(t);
      const LongFour* const r = &answer_.r[t * n_];
      for (int64_t i = 0; i < n_; ++i) {
        pass_.r[t * n_ + i] = N::Rounded(r[i] - implied_[i]);
        implied_[i] = r[i];
      }
    }
    WriteInitial();
  }

  // F x + c + B u - x(t+1).
  void WriteTransition(int64_t t) {
    arrays_.LoadTransition(t);
    const LongFour* const x = &answer_.x[t * n_];
    const LongFour* const u = answer_.u.data() + layout_.u(t);
    for (int64_t i = 0; i < n_; ++i) {
      const LongFour start = AddDouble(-x[n_ + i], ConstantOf(system_, t + 1, i));
      const LongFour moved = AddLine<LongFourSum>(start, arrays_.f_rows(), i, x);
      pass_.x[(t + 1) * n_ + i] = N::Rounded(arrays_.AddFactorRow<LongFourSum>(moved, i, u));
    }
  }
  // B' r less u; F' r goes on.
  void ImplyTransition(int64_t t) {
    const int64_t first = layout_.u(t);
    for (int64_t j = 0; j < arrays_.noises(); ++j) {
      const LongFour own = Difference(prior_.u[first + j], answer_.u[first + j]);
      pass_.u[first + j] =
          N::Rounded(arrays_.AddFactorColumn<LongFourSum>(own, j, implied_.data()));
    }
    for (int64_t j = 0; j < n_; ++j) {
      moved_[j] = AddLine<LongFourSum>(LongFour{}, arrays_.f_columns(), j, implied_.data());
    }
    std::copy_n(moved_.data(), n_, implied_.data());
  }

  // y - d - H x - S e, and S' lambda less e; H' lambda goes on.
  void WriteObservation(int64_t t) {
    arrays_.LoadObservation(t);
    const std::vector<int32_t>& rows = *system_.rows[static_cast<size_t>(t)];
    const LongFour* const x = &answer_.x[t * n_];
    const LongFour* const multipliers = answer_.y.data() + layout_.y(t);
    for (int64_t a = 0; a < layout_.rows(t); ++a) {
      const int32_t row = rows[static_cast<size_t>(a)];
      const LongFour made = AddLine<LongFourSum>(NoiseOf(t, row, a), arrays_.h_rows(), row, x);
      pass_.y[layout_.y(t) + a] = N::Rounded(lanes_.ObservationAt(system_, t, row) - made);
      AddLineTo<LongFourSum>(arrays_.h_rows(), row, multipliers[a], implied_.data());
    }
    for (int64_t j = 0; j < layout_.noises(t); ++j) {
      const int64_t at = layout_.e(t) + j;
      const LongFour own = Difference(prior_.e[at], answer_.e[at]);
      pass_.e[at] = N::Rounded(own + ImpliedNoise(t, j, rows, multipliers));
    }
  }
  // S e of a row.
  LongFour NoiseOf(int64_t t, int32_t row, int64_t a) const {
    const LongFour* const e = answer_.e.data() + layout_.e(t);
    LongFourSum sum;
    if (system_.is_diagonal) {
      sum.Add(f_.NoiseOf(t, row), e[a]);
      return sum.value();
    }
    for (int64_t j = 0; j < layout_.noises(t); ++j) sum.Add(FactorAt(t, row, j), e[j]);
    return sum.value();
  }
  // S' lambda of a noise.
  LongFour ImpliedNoise(int64_t t, int64_t j, const std::vector<int32_t>& rows,
                        const LongFour* multipliers) const {
    LongFourSum sum;
    if (system_.is_diagonal) {
      sum.Add(f_.NoiseOf(t, rows[static_cast<size_t>(j)]), multipliers[j]);
      return sum.value();
    }
    for (size_t a = 0; a < rows.size(); ++a) {
      sum.Add(FactorAt(t, rows[a], j), multipliers[static_cast<int64_t>(a)]);
    }
    return sum.value();
  }
  Long FactorAt(int64_t t, int64_t row, int64_t column) const {
    const Factors& s = system_.observation_factor;
    const int64_t at = column * system_.observation_size + row;
    return {s.matrices.at(t)[at], s.low.at(t)[at]};
  }
  Long InitialAt(int64_t row, int64_t column) const {
    const int64_t at = column * n_ + row;
    return {system_.initial_factor[at], system_.initial_low[at]};
  }

  // m + Z z + D delta - x(1), and Z' r less z, D' r.
  void WriteInitial() {
    for (int64_t i = 0; i < n_; ++i) {
      LongFourSum sum(AddDouble(-answer_.x[i], ConstantOf(system_, 0, i)));
      for (int64_t j = 0; j < system_.initial_columns; ++j) {
        sum.Add(InitialAt(i, j), answer_.z[j]);
      }
      for (int64_t j = 0; j < system_.diffuse_columns; ++j) {
        sum.Add(system_.diffuse[j * n_ + i], answer_.delta[j]);
      }
      pass_.x[i] = N::Rounded(sum.value());
    }
    for (int64_t j = 0; j < system_.initial_columns; ++j) {
      LongFourSum own(Difference(prior_.z[j], answer_.z[j]));
      for (int64_t i = 0; i < n_; ++i) own.Add(InitialAt(i, j), implied_[i]);
      pass_.z[j] = N::Rounded(own.value());
    }
    for (int64_t j = 0; j < system_.diffuse_columns; ++j) {
      LongFourSum cost;
      for (int64_t i = 0; i < n_; ++i) cost.Add(-system_.diffuse[j * n_ + i], implied_[i]);
      pass_.delta[j] = N::Rounded(cost.value());
    }
  }

  LongFour AddDouble(const LongFour& to, double number) const {
    const LongFour sum = TwoSum(to.high, data_ * number);
    return FastTwoSum(sum.high, sum.low + to.low);
  }
  static LongFour Difference(const Four& prior, const LongFour& own) {
    return LongFour{prior, Four{}} - own;
  }
  // ---------------------------------------------------------------------------------------------
  // Corrections

  // Adds a pass to the answer, and measures it. Probes have no multipliers, whose residuals
  // would mend what they are to find.
  void Add() {
    correction_ = squares_change_ = Four{};
    Four cross{}, own{};
    LongFourSum all;
    const auto noises = [&](Buffer<LongFour>& answer, const Buffer<P>& change) {
      for (int64_t i = 0; i < answer.size(); ++i) {
        const LongFour by = N::Extended(change[i]);
        cross += answer[i].high * by.high;
        own += by.high * by.high;
        answer[i] = answer[i] + by;
        all.AddProduct(answer[i], answer[i]);
      }
    };
    noises(answer_.z, pass_.z);
    noises(answer_.u, pass_.u);
    noises(answer_.e, pass_.e);
    squares_ = all.value();
    for (int k = 0; k < kLanes; ++k) squares_change_[k] = std::fabs(cross[k]) + own[k] / 2;
    for (int64_t i = 0; i < answer_.delta.size(); ++i) {
      answer_.delta[i] = answer_.delta[i] + N::Extended(pass_.delta[i]);
    }
    const Four is_series = data_;
    for (int64_t i = 0; i < answer_.y.size(); ++i) {
      answer_.y[i] = answer_.y[i] + Masked(pass_.y[i], is_series);
    }
    for (int64_t i = 0; i < answer_.x.size(); ++i) {
      Measure(deviations_[i], answer_.x[i].high, N::Extended(pass_.x[i]).high);
      answer_.x[i] = answer_.x[i] + N::Extended(pass_.x[i]);
      answer_.r[i] = answer_.r[i] - Masked(pass_.r[i], is_series);
    }
  }
  static LongFour Masked(const P& change, const Four& mask) {
    const LongFour by = N::Extended(change);
    return {by.high * mask, by.low * mask};
  }
  // A change in standard deviations, beyond the rounding of the answer itself. States that are
  // known exactly have none.
  void Measure(double deviation, const Four& x, const Four& change) {
    if (!(deviation > 0)) return;
    for (int k = 0; k < kLanes; ++k) {
      const double size = std::fabs(x[k]);
      if (!(deviation > 1e-13 * size)) continue;
      const double beyond = (std::fabs(change[k]) - 0x1p-52 * size) / deviation;
      // NaN stays.
      if (!(beyond <= correction_[k]) && !std::isnan(correction_[k])) correction_[k] = beyond;
    }
  }

  const System& system_;
  const Factorization<N>& f_;
  const Layout& layout_;
  const double* const deviations_;
  const int64_t n_;
  StepArrays arrays_;
  Means<N> means_;
  Vectors<P> pass_;
  Vectors<LongFour> answer_;
  Vectors<Four> prior_;
  Buffer<LongFour> implied_;  // the multiplier of a state that the later steps imply
  Buffer<LongFour> moved_;
  Lanes lanes_;
  Four data_{};
  Four correction_{}, first_{}, squares_change_{};
  typename Means<N>::Clash clashes_[kLanes];
  LongFour squares_;
  int64_t corrections_ = 0;
};

}  // namespace blockd::orthogonal::BLOCKD_KERNEL_NAMESPACE

#endif  // BLOCKD_ENGINE_SMOOTHER_ORTHOGONAL_REFINEMENT_H_
