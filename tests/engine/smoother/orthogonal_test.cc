// The orthogonal form: its numbers against arithmetic of 230 digits, its estimates of their errors,
// and what it refuses.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <vector>

#include "blockd/engine/model_errors.h"
#include "blockd/engine/orthogonal_smoother.h"
#include "tests/engine/smoother/orthogonal_run.h"
#include "tests/engine/smoother/smoother_models.h"
#include "tests/support/classical_smoother.h"
#include "tests/support/smooth_model.h"

namespace blockd::test {
namespace {

// The true errors of one series' results, in the terms of SmoothErrors, beyond so many units in the
// last place of means. States that are known exactly, within rounding, have no deviation to compare
// with.
SmoothErrors TrueErrors(const SmoothParams& params, const Smoothed& smoothed,
                        const ClassicalSmoother& truth, double units) {
  const int64_t n = params.state_size;
  const std::vector<double> sizes = SizesOf(params, truth);
  const auto deviation = [&](int64_t t, int64_t i) -> double {
    const auto own = static_cast<double>(std::sqrt(truth.covariances[(t * n + i) * n + i]));
    const auto mean = static_cast<double>(std::fabs(truth.means[t * n + i]));
    return own <= 1e-12 * sizes[t * n + i] || own <= 1e-13 * mean ? 0 : own;
  };
  SmoothErrors errors;
  for (int64_t t = 0; t < params.num_steps; ++t) {
    for (int64_t i = 0; i < n; ++i) {
      const double own = deviation(t, i);
      if (own == 0) continue;
      const long double mean = truth.means[t * n + i];
      const double off = static_cast<double>(std::fabs(smoothed.means[t * n + i] - mean) -
                                             units * kUnit * std::fabs(mean));
      errors.means = std::max(errors.means, off / own);
      for (int64_t j = 0; j < n; ++j) {
        const auto compare = [&](double other, double value, long double expected) {
          if (other == 0) return;
          const double change = static_cast<double>(std::fabs(value - expected)) / (own * other);
          errors.variances = std::max(errors.variances, change);
        };
        const int64_t at = (t * n + i) * n + j;
        compare(deviation(t, j), smoothed.covariances[at], truth.covariances[at]);
        if (t + 1 < params.num_steps) {
          compare(deviation(t + 1, j), smoothed.lag_one[at], truth.lag_one[at]);
        }
      }
    }
  }
  const long double likelihood = params.diffuse || !params.initial_diffuse.empty()
                                     ? truth.diffuse_log_likelihood
                                     : truth.log_likelihood;
  errors.log_likelihood =
      std::max(0.0, static_cast<double>(std::fabs(smoothed.likelihoods[0] - likelihood) -
                                        4 * kUnit * std::fabs(likelihood)));
  return errors;
}

// The results are right, and the estimate is no less than a tenth of the error.
void ExpectRight(const SmoothParams& params, const ClassicalSmoother& truth,
                 const Smoothed& smoothed) {
  SmoothErrors errors = TrueErrors(params, smoothed, truth, 1);
  EXPECT_LE(errors.means, kPromisedErrors.means);
  EXPECT_LE(errors.variances, kPromisedErrors.variances);
  EXPECT_LE(errors.log_likelihood, kPromisedErrors.log_likelihood);
  // An estimate counts no correction of a unit, and what that leaves is rounded once more.
  errors = TrueErrors(params, smoothed, truth, 2);
  EXPECT_LE(errors.means, 10 * smoothed.errors.means + 1e-8);
  EXPECT_LE(errors.variances, 10 * smoothed.errors.variances + 1e-11);
  EXPECT_LE(errors.log_likelihood, 10 * smoothed.errors.log_likelihood + 1e-8);
}

void ExpectRight(const NamedModel& model, const Smoothed& smoothed) {
  ExpectRight(model.params(), TruthOf(model), smoothed);
}

TEST(OrthogonalTest, EveryFamilyIsRight) {
  for (const NamedModel& model : SmootherFamilies()) {
    SCOPED_TRACE(model.name);
    const Smoothed smoothed(model.params());
    ASSERT_TRUE(smoothed.status.ok()) << smoothed.status;
    ExpectRight(model, smoothed);
    const bool sensors = model.name.starts_with("sensors equal to 1e-");
    if (!sensors) {
      EXPECT_EQ(smoothed.form, SmoothForm::kOrthogonal);
    }
  }
}

// Some hostile models are answered and some refused; none is answered wrongly.
TEST(OrthogonalTest, HostileModelsAreRightOrRefused) {
  const char* const count = std::getenv("BLOCKD_TEST_HOSTILE_MODELS");
  const uint64_t models = count == nullptr ? 200 : std::strtoull(count, nullptr, 10);
  int wide = 0, refused = 0;
  for (uint64_t seed = 1; seed <= models; ++seed) {
    const NamedModel model = HostileModel(seed);
    SCOPED_TRACE(model.name);
    const Smoothed smoothed(model.params());
    if (!smoothed.status.ok()) {
      EXPECT_TRUE(NotSmoothableOf(smoothed.status).has_value()) << smoothed.status;
      ++refused;
      continue;
    }
    if (smoothed.form == SmoothForm::kOrthogonalInDoubleDouble) ++wide;
    ExpectRight(model, smoothed);
  }
  EXPECT_LT(refused, static_cast<int>(models) / 5);
  EXPECT_GT(wide, 0);
  RecordProperty("refused", refused);
  RecordProperty("in_double_double", wide);
}

TEST(OrthogonalTest, DirectionsThatTheObservationsDoNotTellAreCounted) {
  NamedModel model{.states = 2, .f = {1, 0, 1, 1}, .q = {1, 0, 0, 1}, .h = {1, 0}, .r = {1}};
  model.diffuse = true;
  const auto directions = [&](std::vector<double> y) {
    model.y = std::move(y);
    const auto why = NotSmoothableOf(Smoothed(model.params()).status);
    if (!why.has_value()) return int64_t{0};
    EXPECT_EQ(why->reason, NotSmoothable::Reason::kNotIdentified);
    return why->directions;
  };
  EXPECT_EQ(directions({kMissing, kMissing, kMissing}), 2);
  EXPECT_EQ(directions({1, kMissing, kMissing}), 1);
  EXPECT_EQ(directions({1, kMissing, 3}), 0);
  model.h = {0, 1};  // the slope alone is seen
  EXPECT_EQ(directions({1, 2, 3}), 1);
}

TEST(OrthogonalTest, ExactObservationsMustAgree) {
  NamedModel model{.name = "exact observations",
                   .states = 2,
                   .outputs = 2,
                   .f = {0.9, -0.2, 0.3, 0.8},
                   .q = {1, 0, 0, 1},
                   .h = {1, 1, 0.5, 0.5},  // both of the same
                   .r = {0, 0, 0, 0},
                   .m = {0, 0},
                   .p = {1, 0, 0, 1}};
  for (int t = 0; t < 20; ++t) model.y.insert(model.y.end(), {0.1 * t, 0.1 * t});
  const Smoothed agree(model.params());
  ASSERT_TRUE(agree.status.ok()) << agree.status;
  EXPECT_EQ(agree.form, SmoothForm::kOrthogonalInDoubleDouble);
  ExpectRight(model, agree);
  model.y[15] += 1e-9;
  const auto why = NotSmoothableOf(Smoothed(model.params()).status);
  ASSERT_TRUE(why.has_value());
  EXPECT_EQ(why->reason, NotSmoothable::Reason::kContradiction);
  EXPECT_EQ(why->step, 7);
  EXPECT_EQ(why->row, 1);
}

TEST(OrthogonalTest, CovariancesThatNoNoiseHasAreNamed) {
  const SmoothModel model({.steps = 5, .states = 3, .observations = 2});
  const auto singular = [](const SmoothParams& params) {
    return SingularCovarianceOf(Smoothed(params).status).value_or(SingularCovariance{});
  };
  SmoothModel wrong = model;
  wrong.q[2 * 9 + 4] = -1;
  wrong.params.transition_covariance.values = wrong.q;
  EXPECT_EQ(singular(wrong.params).matrix, "Q");
  EXPECT_EQ(singular(wrong.params).step, 2);
  wrong = model;
  for (size_t i = 0; i < 4; ++i) wrong.r[3 * 4 + i] = i % 3 == 0 ? 1 : 2;
  wrong.params.transition_covariance.values = wrong.q;
  wrong.params.observation_covariance.values = wrong.r;
  EXPECT_EQ(singular(wrong.params).matrix, "R");
  EXPECT_EQ(singular(wrong.params).step, 3);
  wrong = model;
  wrong.p[8] = -1e-3;
  wrong.params.transition_covariance.values = wrong.q;
  wrong.params.initial_covariance = wrong.p;
  EXPECT_EQ(singular(wrong.params).matrix, "P");
  // Beside no variance there is no covariance.
  wrong = model;
  for (const size_t i : {0, 2, 6}) wrong.p[i] = 0;
  wrong.params.transition_covariance.values = wrong.q;
  wrong.params.initial_covariance = wrong.p;
  EXPECT_NE(wrong.p[1], 0);
  EXPECT_EQ(singular(wrong.params).matrix, "P");
  wrong.p[1] = wrong.p[3] = 1e-17;
  EXPECT_EQ(singular(wrong.params).matrix, "");
}

// Arrays of every kind, several series, many sizes: those beyond one pack, and one step.
TEST(OrthogonalTest, ModelsOfEverySizeAreThoseOfTheFilter) {
  for (const int64_t n : {1, 2, 4, 5, 9}) {
    for (const bool per_step : {true, false}) {
      for (const int64_t steps : {1, 2, 12}) {
        SCOPED_TRACE(::testing::Message() << n << " states, " << steps << " steps");
        SmoothModel model({.steps = steps,
                           .states = n,
                           .observations = n == 4 ? 6 : 2,
                           .series = 3,
                           .per_step = per_step});
        const Smoothed smoothed(model.params);
        ASSERT_TRUE(smoothed.status.ok()) << smoothed.status;
        EXPECT_EQ(smoothed.form, SmoothForm::kOrthogonal);
        for (int64_t k = 0; k < 3; ++k) {
          const ClassicalSmoother truth(model.params, k);
          EXPECT_NEAR(smoothed.likelihoods[k], static_cast<double>(truth.log_likelihood), 1e-10);
          for (int64_t i = 0; i < n * steps; ++i) {
            EXPECT_NEAR(smoothed.means[k * n * steps + i], static_cast<double>(truth.means[i]),
                        1e-13);
          }
        }
      }
    }
  }
}

// A constant model settles, so that its later steps are not computed again; gaps begin it anew.
TEST(OrthogonalTest, LongConstantModelsAreRight) {
  SmoothModel model(
      {.steps = 700, .states = 3, .observations = 2, .per_step = false, .missing = 0});
  std::vector<double> gaps = model.y;
  for (int64_t t = 300; t < 320; ++t) gaps[2 * t] = kMissing;
  for (int64_t t = 500; t < 503; ++t) gaps[2 * t] = gaps[2 * t + 1] = kMissing;
  for (const std::vector<double>* y : {&model.y, &gaps}) {
    model.params.observations = *y;
    const Smoothed smoothed(model.params);
    ASSERT_TRUE(smoothed.status.ok()) << smoothed.status;
    const ClassicalSmoother truth(model.params, 0);
    ExpectRight(model.params, truth, smoothed);
    EXPECT_LT(smoothed.errors.variances, 1e-10);
  }
}

TEST(OrthogonalTest, ASeriesHasTheSameBitsBesideOthers) {
  const SmoothModel many({.steps = 30, .states = 3, .observations = 2, .series = 7});
  SmoothParams params = many.params;
  params.residuals = true;
  params.num_samples = 3;
  const Smoothed all(params);
  ASSERT_TRUE(all.status.ok()) << all.status;
  for (int64_t k = 0; k < 7; ++k) {
    params.num_series = 1;
    params.observations = many.params.observations.subspan(static_cast<size_t>(k * 60), 60);
    const Smoothed one(params);
    const auto same = [k](const std::vector<double>& alone, const std::vector<double>& among) {
      const size_t size = alone.size();
      return std::memcmp(alone.data(), among.data() + static_cast<size_t>(k) * size,
                         size * sizeof(double)) == 0;
    };
    EXPECT_TRUE(same(one.means, all.means));
    EXPECT_TRUE(same(one.residuals, all.residuals));
    EXPECT_TRUE(same(one.likelihoods, all.likelihoods));
    if (k == 0) {  // samples are numbered through all series
      EXPECT_TRUE(same(one.samples, all.samples));
    }
  }
}

// Sums over many samples have the moments that the results say.
TEST(OrthogonalTest, SamplesHaveTheMeansAndCovariancesOfTheStates) {
  SmoothModel model({.steps = 6, .states = 2, .observations = 1});
  model.q.assign(model.q.size(), 0);  // one noise for both states
  for (size_t i = 0; i < model.q.size(); ++i) model.q[i] = i % 4 == 0 ? 1 : i % 4 == 3 ? 0.25 : 0.5;
  SmoothParams params = model.params;
  params.transition_covariance.values = model.q;
  constexpr int64_t kCount = 20000, kStates = 12;
  params.num_samples = kCount;
  params.seed = 7;
  const Smoothed smoothed(params);
  ASSERT_TRUE(smoothed.status.ok()) << smoothed.status;
  for (int64_t i = 0; i < kStates; ++i) {
    double sum = 0;
    for (int64_t s = 0; s < kCount; ++s) sum += smoothed.samples[s * kStates + i];
    const double variance = smoothed.covariances[i / 2 * 4 + i % 2 * 3];
    EXPECT_NEAR(sum / kCount, smoothed.means[i], 5 * std::sqrt(variance / kCount));
    for (int64_t j = 0; j < 2; ++j) {
      const int64_t other = i / 2 * 2 + j;
      double cross = 0;
      for (int64_t s = 0; s < kCount; ++s) {
        cross += (smoothed.samples[s * kStates + i] - smoothed.means[i]) *
                 (smoothed.samples[s * kStates + other] - smoothed.means[other]);
      }
      const double expected = smoothed.covariances[i / 2 * 4 + i % 2 * 2 + j];
      const double second = smoothed.covariances[i / 2 * 4 + j * 3];
      EXPECT_NEAR(cross / kCount, expected, 8 * std::sqrt(variance * second / kCount));
    }
  }
}

// A level taken from the data by d and c changes nothing, and neither does a step for each element.
TEST(OrthogonalTest, LevelsAndStepsOfSingleElementsChangeNothing) {
  NamedModel model{.states = 3, .outputs = 2};
  const SmoothModel random(
      {.steps = 20, .states = 3, .observations = 2, .per_step = false, .offsets = false});
  model.f = random.f;
  model.q = random.q;
  model.h = random.h;
  model.r = {0.5, 0, 0, 2};
  model.m = random.m;
  model.p = random.p;
  model.y = random.y;
  const Smoothed plain(model.params());
  ASSERT_TRUE(plain.status.ok()) << plain.status;

  NamedModel raised = model;
  raised.d = {1024, -4096};  // exact in y of a few bits
  for (size_t i = 0; i < raised.y.size(); ++i) {
    raised.y[i] = std::ldexp(std::nearbyint(std::ldexp(model.y[i], 30)), -30);
    model.y[i] = raised.y[i];
    raised.y[i] += raised.d[i % 2];
  }
  const Smoothed base(model.params()), level(raised.params());
  for (size_t i = 0; i < base.means.size(); ++i) {
    EXPECT_NEAR(level.means[i], base.means[i], 1e-12) << i;
    EXPECT_EQ(level.covariances[i], base.covariances[i]);
  }
  EXPECT_NEAR(level.likelihoods[0], base.likelihoods[0], 1e-10);
}

TEST(OrthogonalTest, ResidualsAreStandardized) {
  SmoothModel model({.steps = 12, .states = 3, .observations = 2});
  model.params.residuals = true;
  const Smoothed smoothed(model.params);
  ASSERT_TRUE(smoothed.status.ok()) << smoothed.status;
  const ClassicalSmoother truth(model.params, 0);
  int compared = 0;
  for (int64_t t = 0; t < 12; ++t) {
    for (int64_t i = 0; i < 2; ++i) {
      const double residual = smoothed.residuals[t * 2 + i];
      if (std::isnan(model.y[t * 2 + i])) {
        EXPECT_TRUE(std::isnan(residual));
        continue;
      }
      long double error = model.y[t * 2 + i] - model.d[t * 2 + i];
      long double variance = model.r[t * 4 + i * 3];
      for (int64_t j = 0; j < 3; ++j) {
        const long double h = model.h[(t * 3 + j) * 2 + i];
        error -= h * truth.means[t * 3 + j];
        for (int64_t k = 0; k < 3; ++k) {
          variance -= h * truth.covariances[(t * 3 + j) * 3 + k] * model.h[(t * 3 + k) * 2 + i];
        }
      }
      EXPECT_NEAR(residual, static_cast<double>(error / std::sqrt(variance)), 1e-10);
      ++compared;
    }
  }
  EXPECT_GT(compared, 10);
}

}  // namespace
}  // namespace blockd::test
