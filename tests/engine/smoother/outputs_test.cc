// Results beside the smoothed states: the filter's, new observations, and disturbances, against
// arithmetic of 230 digits.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <vector>

#include "blockd/engine/model_errors.h"
#include "tests/engine/smoother/orthogonal_run.h"
#include "tests/engine/smoother/smoother_models.h"
#include "tests/support/classical_smoother.h"
#include "tests/support/smooth_model.h"

namespace blockd::test {
namespace {

using Numbers = std::vector<double>;
using LongNumbers = std::vector<long double>;

std::vector<SmoothOutput> AllOutputs() {
  std::vector<SmoothOutput> all;

  for (int i = 1; i <= kNumSmoothOutputs; ++i) all.push_back(static_cast<SmoothOutput>(i));
  return all;
}

// The largest errors of one series' outputs: of means in deviations, of variances relative.
class OutputErrors {
 public:
  OutputErrors(const SmoothParams& params, const Smoothed& smoothed, const ClassicalSmoother& truth)
      : params_(params), smoothed_(smoothed), truth_(truth), sizes_(SizesOf(params, truth)) {
    CompareStates(SmoothOutput::kFilteredMeans, SmoothOutput::kFilteredCovariances,
                  truth.filtered_means, truth.filtered_covariances);
    CompareStates(SmoothOutput::kPredictedMeans, SmoothOutput::kPredictedCovariances,
                  truth.predicted_means, truth.predicted_covariances);
    CompareInnovations();
    CompareObservations();
    CompareDisturbances(SmoothOutput::kStateDisturbances,
                        SmoothOutput::kStandardizedStateDisturbances, params.state_size,
                        params.transition_covariance, truth.state_disturbances,
                        truth.state_disturbance_variances);
    CompareDisturbances(SmoothOutput::kObservationDisturbances,
                        SmoothOutput::kStandardizedObservationDisturbances, params.observation_size,
                        params.observation_covariance, truth.observation_disturbances,
                        truth.observation_disturbance_variances);
  }

  double means = 0, variances = 0, log_likelihood = 0;
  int compared = 0, diffuse = 0;

 private:
  const Numbers& Own(SmoothOutput output) const { return smoothed_.outputs.at(output); }
  static void Raise(double* most, long double value) {
    *most = std::isnan(value) ? HUGE_VAL : std::max(*most, static_cast<double>(value));
  }

  void CompareStates(SmoothOutput means_output, SmoothOutput covariances, const LongNumbers& x,
                     const LongNumbers& p) {
    const int64_t n = params_.state_size;
    const Numbers &own_x = Own(means_output), &own_p = Own(covariances);
    const auto variance_at = [&](int64_t t, int64_t i) { return p[(t * n + i) * n + i]; };
    for (int64_t t = 0; t < params_.num_steps; ++t) {
      const auto is_known = [&](int64_t i) {
        const long double own = std::sqrt(variance_at(t, i)), mean = std::fabs(x[t * n + i]);
        return !(own > 1e-12 * sizes_[t * n + i]) || own <= 1e-13 * mean;  // NaN: below zero
      };
      for (int64_t i = 0; i < n; ++i) {
        const int64_t at = t * n + i;
        const long double variance = variance_at(t, i);
        if (variance > kLeastDiffuse) {
          EXPECT_TRUE(std::isnan(own_x[at])) << "step " << t << ", state " << i;
          EXPECT_TRUE(std::isinf(own_p[at * n + i])) << "step " << t << ", state " << i;
          ++diffuse;
          continue;
        }
        if (is_known(i)) continue;
        ++compared;
        const long double off = std::fabs(own_x[at] - x[at]) - kUnit * std::fabs(x[at]);
        Raise(&means, off / std::sqrt(variance));
        for (int64_t j = 0; j < n; ++j) {
          const long double other = variance_at(t, j);
          if (other > kLeastDiffuse || is_known(j)) continue;
          const long double change = std::fabs(own_p[at * n + j] - p[at * n + j]);
          Raise(&variances, change / std::sqrt(variance * other));
        }
      }
    }
  }

  void CompareInnovations() {
    const Numbers &own = Own(SmoothOutput::kInnovations),
                  &steps = Own(SmoothOutput::kLogLikelihoodSteps);
    for (size_t i = 0; i < own.size(); ++i) {
      EXPECT_EQ(std::isnan(own[i]), std::isnan(truth_.innovations[i])) << i;
      if (std::isnan(own[i])) continue;
      const long double expected = truth_.innovations[i];
      Raise(&means, std::fabs(own[i] - expected) - kUnit * std::fabs(expected));
    }
    long double sum = 0;
    const double all = smoothed_.likelihoods[0], units = 4 * kUnit * std::fabs(all);
    for (size_t t = 0; t < steps.size(); ++t) {
      const long double step = truth_.log_likelihood_steps[t];
      Raise(&log_likelihood, std::fabs(steps[t] - step) - units);
      sum += steps[t];
    }
    Raise(&log_likelihood, std::fabs(sum - all) - units);
  }

  void CompareObservations() {
    const int64_t ny = params_.observation_size;
    const Numbers &own = Own(SmoothOutput::kObservationMeans),
                  &own_v = Own(SmoothOutput::kObservationCovariances);
    const LongNumbers& v = truth_.observation_covariances;
    for (int64_t at = 0; at < std::ssize(own); ++at) {
      const auto deviation = [&](int64_t other) { return std::sqrt(v[(other * ny) + other % ny]); };
      const long double mean = truth_.observation_means[at];
      if (IsKnown(at, deviation(at))) continue;
      Raise(&means, (std::fabs(own[at] - mean) - kUnit * std::fabs(mean)) / deviation(at));
      for (int64_t j = 0; j < ny; ++j) {
        const int64_t other = at / ny * ny + j;
        if (IsKnown(other, deviation(other))) continue;
        const long double change = std::fabs(own_v[at * ny + j] - v[at * ny + j]);
        Raise(&variances, change / (deviation(at) * deviation(other)));
      }
    }
  }
  // NaN: of a variance below zero.
  bool IsKnown(int64_t at, long double deviation) const {
    return !(deviation > 1e-12 * SizeOf(at)) || deviation <= 1e-13 * TermsOf(at);
  }
  double TermsOf(int64_t at) const {
    const int64_t n = params_.state_size, ny = params_.observation_size, t = at / ny;
    double terms = 0;
    for (int64_t j = 0; j < n; ++j) {
      const double h = params_.observation.At(t, ny * n)[j * ny + at % ny];
      terms += std::fabs(h * static_cast<double>(truth_.means[t * n + j]));
    }
    return terms;
  }
  // The size of the terms of an observation.
  double SizeOf(int64_t at) const {
    const int64_t n = params_.state_size, ny = params_.observation_size, t = at / ny;
    double size = 0;
    for (int64_t j = 0; j < n; ++j) {
      const long double variance = std::max(0.0L, truth_.covariances[(t * n + j) * n + j]);
      const auto own = static_cast<double>(std::sqrt(variance));
      const double h = params_.observation.At(t, ny * n)[j * ny + at % ny];
      size += std::fabs(h) * std::max(sizes_[t * n + j], own);
    }
    return size;
  }

  void CompareDisturbances(SmoothOutput output, SmoothOutput standardized, int64_t rows,
                           const ModelArray& covariance, const LongNumbers& disturbances,
                           const LongNumbers& disturbance_variances) {
    const bool observed = output == SmoothOutput::kObservationDisturbances;
    const Numbers &own = Own(output), &own_z = Own(standardized);
    for (int64_t at = 0; at < std::ssize(own); ++at) {
      const long double expected = disturbances[at], variance = disturbance_variances[at];
      EXPECT_EQ(std::isnan(own[at]), std::isnan(expected));
      if (std::isnan(expected)) {
        EXPECT_TRUE(std::isnan(own_z[at]));
        continue;
      }
      const double prior = std::sqrt(covariance.At(at / rows, rows * rows)[at % rows * (rows + 1)]);
      if (prior == 0) {
        EXPECT_EQ(own[at], 0);
        continue;
      }
      // An element that is known before it comes agrees within rounding, which v is. In double
      // there is no such element: one without an innovation is of a diffuse direction.
      const bool skipped = observed && std::isnan(truth_.innovations[at]);
      if (skipped && smoothed_.form != SmoothForm::kOrthogonal) continue;
      Raise(&means, (std::fabs(own[at] - expected) - kUnit * std::fabs(expected)) / prior);
      if (variance <= 1e-26L * prior * prior) continue;  // the observations say nothing of it
      const long double z = expected / std::sqrt(variance);
      ++compared;
      Raise(&means, std::fabs(own_z[at] - z) / (1 + std::fabs(z)));
    }
  }

  const SmoothParams& params_;
  const Smoothed& smoothed_;
  const ClassicalSmoother& truth_;
  const Numbers sizes_;
};

OutputErrors ExpectOutputsRight(const NamedModel& model, const SmoothParams& params,
                                const Smoothed& smoothed) {
  OutputErrors errors(params, smoothed, TruthOf(model));
  EXPECT_LE(errors.means, kPromisedErrors.means);
  EXPECT_LE(errors.variances, kPromisedErrors.variances);
  EXPECT_LE(errors.log_likelihood, kPromisedErrors.log_likelihood);
  // The estimate is no less than a tenth of the error.
  EXPECT_LE(errors.means, 10 * smoothed.errors.means + 1e-10);
  EXPECT_LE(errors.variances, 10 * smoothed.errors.variances + 1e-10);
  EXPECT_LE(errors.log_likelihood, 10 * smoothed.errors.log_likelihood + 1e-8);
  return errors;
}

TEST(OutputsTest, EveryFamilyIsRight) {
  int diffuse = 0;
  for (const NamedModel& model : SmootherFamilies()) {
    SCOPED_TRACE(model.name);
    SmoothParams params = model.params();
    params.outputs = AllOutputs();
    const Smoothed smoothed(params);
    ASSERT_TRUE(smoothed.status.ok()) << smoothed.status;
    const OutputErrors errors = ExpectOutputsRight(model, params, smoothed);
    EXPECT_GT(errors.compared, 0);
    diffuse += errors.diffuse;
  }
  EXPECT_GT(diffuse, 0);
}

TEST(OutputsTest, HostileModelsAreRightOrRefused) {
  const char* const count = std::getenv("BLOCKD_TEST_HOSTILE_MODELS");
  const uint64_t models = count == nullptr ? 200 : std::strtoull(count, nullptr, 10);
  int refused = 0, wide = 0;
  for (uint64_t seed = 1; seed <= models; ++seed) {
    const NamedModel model = HostileModel(seed);
    SCOPED_TRACE(model.name);
    SmoothParams params = model.params();
    params.outputs = AllOutputs();
    const Smoothed smoothed(params);
    if (!smoothed.status.ok()) {
      EXPECT_TRUE(NotSmoothableOf(smoothed.status).has_value()) << smoothed.status;
      ++refused;
      continue;
    }
    if (smoothed.form == SmoothForm::kOrthogonalInDoubleDouble) ++wide;
    ExpectOutputsRight(model, params, smoothed);
  }
  EXPECT_LT(refused, static_cast<int>(models) / 5);
  RecordProperty("refused", refused);
  RecordProperty("in_double_double", wide);
}

// Arrays of every kind, several series and systems, sizes beyond one pack, R with covariances.
TEST(OutputsTest, ModelsOfEverySizeAreThoseOfTheFilter) {
  for (const int64_t n : {1, 2, 5, 9}) {
    for (const bool per_step : {true, false}) {
      for (const int64_t steps : {1, 2, 12}) {
        SCOPED_TRACE(::testing::Message() << n << " states, " << steps << " steps");
        const SmoothModel model({.steps = steps,
                                 .states = n,
                                 .observations = n == 5 ? 7 : 2,
                                 .series = 6,
                                 .per_step = per_step});
        SmoothParams params = model.params;
        params.outputs = AllOutputs();
        const Smoothed all(params);
        ASSERT_TRUE(all.status.ok()) << all.status;
        EXPECT_EQ(all.form, SmoothForm::kOrthogonal);
        const size_t numbers = params.observations.size() / 6;
        params.num_series = 1;
        for (size_t k = 0; k < 6; ++k) {
          params.observations = model.params.observations.subspan(k * numbers, numbers);
          const Smoothed one(params);
          const ClassicalSmoother truth(params, 0);
          const OutputErrors errors(params, one, truth);
          EXPECT_LE(errors.means, 1e-12);
          EXPECT_LE(errors.variances, 1e-12);
          EXPECT_LE(errors.log_likelihood, 1e-11);
          // Alone or among others: the same bits.
          for (const auto& [output, values] : one.outputs) {
            if (ShapeOf(params, output).is_of_system) continue;
            const double* const among = all.outputs.at(output).data() + k * values.size();
            EXPECT_TRUE(std::equal(values.begin(), values.end(), among, [](double a, double b) {
              return a == b || (std::isnan(a) && std::isnan(b));
            }));
          }
        }
      }
    }
  }
}

// Steps that repeat one another have outputs of their own; variances are the diagonals.
TEST(OutputsTest, LongConstantModelsAreRight) {
  SmoothModel model(
      {.steps = 400, .states = 3, .observations = 2, .per_step = false, .missing = 0});
  std::vector<double> gaps = model.y;
  for (int64_t t = 200; t < 220; ++t) gaps[2 * t] = kMissing;
  for (int64_t t = 300; t < 303; ++t) gaps[2 * t] = gaps[2 * t + 1] = kMissing;
  model.params.observations = gaps;
  model.params.outputs = AllOutputs();
  const Smoothed whole(model.params);
  ASSERT_TRUE(whole.status.ok()) << whole.status;
  const ClassicalSmoother truth(model.params, 0);
  const OutputErrors errors(model.params, whole, truth);
  EXPECT_LE(errors.means, 1e-11);
  EXPECT_LE(errors.variances, 1e-11);
  EXPECT_LE(errors.log_likelihood, 1e-11);
  model.params.covariances = SmoothedCovariances::kVariances;
  const Smoothed diagonals(model.params);
  ASSERT_TRUE(diagonals.status.ok()) << diagonals.status;
  for (const SmoothOutput output :
       {SmoothOutput::kFilteredCovariances, SmoothOutput::kPredictedCovariances,
        SmoothOutput::kObservationCovariances}) {
    const Numbers &own = diagonals.outputs.at(output), &all = whole.outputs.at(output);
    const int64_t rows = ShapeOf(model.params, output).numbers;
    for (int64_t i = 0; i < std::ssize(own); ++i) {
      EXPECT_NEAR(own[i], all[i / rows * rows * rows + i % rows * (rows + 1)], 1e-14 * own[i]);
    }
  }
}

// An R near zero says what R = 0 does.
TEST(OutputsTest, StandardizedDisturbancesOfObservationsWithoutNoiseAreTheLimit) {
  NamedModel model{.name = "no noise",
                   .states = 2,
                   .f = {0.8, 0.3, -0.2, 0.5},
                   .q = {1, 0.2, 0.2, 0.5},
                   .h = {1, 0.5},
                   .r = {0},
                   .m = {0, 0},
                   .p = {1, 0, 0, 1}};
  for (int t = 0; t < 30; ++t) model.y.push_back(std::sin(t) + (t == 17 ? 5 : 0));
  const auto standardized = [&](double r) {
    model.r = {r};
    SmoothParams params = model.params();
    params.outputs = {SmoothOutput::kStandardizedObservationDisturbances};
    Smoothed smoothed(params);
    EXPECT_TRUE(smoothed.status.ok()) << smoothed.status;
    return smoothed.outputs.at(params.outputs[0]);
  };
  const Numbers zero = standardized(0), small = standardized(1e-14);
  for (size_t t = 0; t < 30; ++t) EXPECT_NEAR(zero[t], small[t], 1e-6 * (1 + std::fabs(zero[t])));
  EXPECT_EQ(std::max_element(zero.begin(), zero.end()) - zero.begin(), 17);
}

}  // namespace
}  // namespace blockd::test
