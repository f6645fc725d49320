// A system from its model to its results and estimates, in one precision. Included once by each
// arithmetic_<instruction set>.cc, which defines BLOCKD_KERNEL_NAMESPACE.
#ifndef BLOCKD_ENGINE_SMOOTHER_ORTHOGONAL_COMPUTE_H_
#define BLOCKD_ENGINE_SMOOTHER_ORTHOGONAL_COMPUTE_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>

#include "engine/smoother/orthogonal/covariances.h"
#include "engine/smoother/orthogonal/disturbances.h"
#include "engine/smoother/orthogonal/factorization.h"
#include "engine/smoother/orthogonal/filter.h"
#include "engine/smoother/orthogonal/likelihood_error.h"
#include "engine/smoother/orthogonal/means.h"
#include "engine/smoother/orthogonal/refinement.h"
#include "engine/smoother/orthogonal/score.h"
#include "engine/smoother/orthogonal/storage.h"
#include "engine/smoother/orthogonal/system.h"

namespace blockd::orthogonal::BLOCKD_KERNEL_NAMESPACE {

template <typename N>
class Computation {
 public:
  Computation(const System& system, const Results& results)
      : system_(system),
        results_(results),
        factorization_(system),
        deviations_(system.state_size * system.num_steps) {}

  Report Run() {
    report_ = factorization_.Run();
    if (report_.outcome == Outcome::kNotIdentified) return report_;
    if (system_.mirror != nullptr) RunMirror();
    if (report_.outcome == Outcome::kSkipped) {
      if constexpr (N::kDoubles == 1) return report_;
      report_.outcome = Outcome::kDone;  // and its data are asked whether they agree
    }
    Covariances<N> covariances(factorization_, results_, deviations_.data());
    covariances.Run();
    Raise(&report_.estimates.variances, covariances.observation_error());
    ForgetKnown();
    if (results_.log_likelihoods != nullptr) {
      report_.estimates.log_likelihood =
          LikelihoodError<N>(factorization_).Run() + factorization_.likelihood_error();
    }
    const Layout layout(factorization_);
    if (mirror_) filter_->Run();
    if (results_.has_standardized) RunDisturbances(layout);
    if (results_.has_score) score_.emplace(factorization_, layout).Run();
    Refinement<N> refinement(factorization_, layout, deviations_.data());
    const auto last = static_cast<int64_t>(system_.series.size() + system_.draws.size());
    for (int64_t next = -kProbes; next < last; next += kLanes) RunGroup(next, refinement);
    report_.estimates.means *= 10;
    report_.estimates.variances *= 30;
    report_.estimates.log_likelihood *= 10;
    return report_;
  }

 private:
  static constexpr int64_t kProbes = 3;

  void RunMirror() {
    mirror_.emplace(*system_.mirror);
    // Both find the same to be zero within rounding, or nobody knows.
    const bool agree = mirror_->Run().outcome == report_.outcome;
    if (!agree || factorization_.overlooks()) report_.estimates.variances = HUGE_VAL;
    filter_.emplace(factorization_, *mirror_, results_, &report_.estimates);
  }

  void RunDisturbances(const Layout& layout) {
    disturbances_.emplace(factorization_, layout);
    disturbances_->Run();
    const Layout mirror_layout(*mirror_);
    DisturbanceDeviations<N> other(*mirror_, mirror_layout);
    other.Run();
    const auto compare = [&](double own, double mirrored) {
      if (!(own > 0)) return;
      Raise(&report_.estimates.variances, kMirrorFactor * std::fabs(mirrored - own) / own);
    };
    const int64_t n = system_.state_size;
    for (int64_t t = 0; t < system_.num_steps; ++t) {
      for (int64_t i = 0; i < n && t + 1 < system_.num_steps; ++i) {
        compare(disturbances_->state(t, i), other.state(t, n - 1 - i) / kMirrorUnit);
      }
      // Multipliers are divided by the unit, and S S' has it twice.
      const std::vector<int32_t>& rows = *system_.rows[static_cast<size_t>(t)];
      for (int64_t a = 0; a < layout.rows(t); ++a) {
        const int32_t row = rows[static_cast<size_t>(a)];
        const bool divided = DisturbanceDeviations<N>::IsOfMultiplier(system_, t, row);
        const double unit = divided ? 1 / kMirrorUnit : kMirrorUnit;
        compare(disturbances_->observation(t, a), other.observation(t, a) / unit);
      }
    }
  }

  // States whose deviation is rounding beside its size are known exactly.
  void ForgetKnown() {
    for (int64_t t = 0; t < system_.num_steps; ++t) {
      const double* const sizes = factorization_.sizes(factorization_.step(t).scales);
      for (int64_t i = 0; i < system_.state_size; ++i) {
        double& deviation = deviations_[t * system_.state_size + i];
        if (deviation <= 1e-12 * sizes[i]) deviation = 0;
      }
    }
  }

  // Right-hand sides from `next` on: probes before the first series, draws after the last.
  void RunGroup(int64_t next, Refinement<N>& refinement) {
    const auto series = static_cast<int64_t>(system_.series.size());
    const auto draws = static_cast<int64_t>(system_.draws.size());
    Lanes lanes;
    for (int64_t k = 0; k < kLanes; ++k) {
      const int64_t i = next + k;
      lanes.probes[k] = i < 0;
      if (i >= 0 && i < series) lanes.series[k] = system_.series[static_cast<size_t>(i)];
      if (i >= series && i < series + draws) {
        lanes.draws[k] = system_.draws[static_cast<size_t>(i - series)];
      }
    }
    if (filter_ && results_.has_innovations) filter_->Run(lanes, next);
    refinement.Run(lanes);
    report_.corrections = std::max(report_.corrections, refinement.corrections());
    for (int k = 0; k < kLanes; ++k) {
      if (lanes.probes[k]) Raise(&report_.estimates.variances, refinement.CorrectionOf(k));
      if (lanes.series[k] != nullptr) Finish(next + k, k, refinement);
      if (lanes.draws[k] != nullptr) {
        Write(results_.errors[static_cast<size_t>(next + k - series)], k, refinement);
      }
    }
  }

  void Write(double* to, int lane, const Refinement<N>& refinement) const {
    for (int64_t i = 0; i < deviations_.size(); ++i) to[i] = refinement.Mean(i, lane);
  }

  void Finish(int64_t series, int lane, Refinement<N>& refinement) {
    const auto& clash = refinement.clash(lane);
    if (clash.found && report_.outcome == Outcome::kDone) {
      report_.outcome = Outcome::kContradiction;
      report_.step = clash.step;
      report_.row = clash.row;
    }
    Raise(&report_.estimates.means, refinement.CorrectionOf(lane));
    const auto at = static_cast<size_t>(series);
    const SeriesResults& own = results_.series[at];
    Write(own.means, lane, refinement);
    if (own.observation_means != nullptr) {
      refinement.WriteObservationMeans(lane, own.observation_means);
    }
    if (results_.has_disturbances) {
      const DisturbanceDeviations<N>* const deviations = disturbances_ ? &*disturbances_ : nullptr;
      refinement.WriteStateDisturbances(lane, deviations, own.state_disturbances,
                                        own.standardized_state_disturbances);
      refinement.WriteObservationDisturbances(lane, deviations, own.observation_disturbances,
                                              own.standardized_observation_disturbances);
    }
    if (score_) score_->Write(refinement, lane, own);
    if (results_.log_likelihoods == nullptr) return;
    constexpr Long kLogTwoPi{1.8378770664093453, 3.3e-17};
    const Long observed = {static_cast<double>(factorization_.observed()), 0};
    const Long sum =
        observed * kLogTwoPi + factorization_.log_determinant() + refinement.squares(lane);
    results_.log_likelihoods[series] = -sum.high / 2;
    // The part of the squares is of this series alone.
    Raise(&likelihood_change_, refinement.squares_change(lane));
    Raise(&report_.estimates.log_likelihood, likelihood_change_);
  }

  const System& system_;
  const Results& results_;
  Factorization<N> factorization_;
  std::optional<Factorization<N>> mirror_;
  std::optional<Filter<N>> filter_;
  std::optional<DisturbanceDeviations<N>> disturbances_;
  std::optional<Score<N>> score_;
  Buffer<double> deviations_;
  double likelihood_change_ = 0;
  Report report_;
};

template <typename N>
Report Compute(const System& system, const Results& results) {
  return Computation<N>(system, results).Run();
}

}  // namespace blockd::orthogonal::BLOCKD_KERNEL_NAMESPACE

#endif  // BLOCKD_ENGINE_SMOOTHER_ORTHOGONAL_COMPUTE_H_
