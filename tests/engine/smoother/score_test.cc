// The score against differences of the log-likelihood in arithmetic of 230 digits.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "tests/engine/smoother/orthogonal_run.h"
#include "tests/engine/smoother/smoother_models.h"
#include "tests/support/classical_smoother.h"
#include "tests/support/smooth_model.h"

namespace blockd::test {
namespace {

using Numbers = std::vector<double>;

std::vector<SmoothOutput> WholeScore() {
  std::vector<SmoothOutput> all;
  for (int i = static_cast<int>(SmoothOutput::kScoreTransition); i <= kNumSmoothOutputs; ++i) {
    all.push_back(static_cast<SmoothOutput>(i));
  }
  return all;
}

// An array of a model, whose elements change; `symmetric` ones with their mirrors.
struct Part {
  SmoothOutput output;
  Numbers* numbers;
  int64_t rows = 1;
  bool symmetric = false;
};

// `params` of the arrays as they are.
template <typename Params>
void ExpectScore(const Params& params_of, const std::vector<Part>& parts) {
  SmoothParams params = params_of();
  params.outputs = WholeScore();
  const Smoothed smoothed(params);
  ASSERT_TRUE(smoothed.status.ok()) << smoothed.status;
  const auto likelihood = [&] {
    const SmoothParams now = params_of();
    const ClassicalSmoother truth(now, 0, kDiffuse, ClassicalSmoother::Digits::k230);
    const bool diffuse = now.diffuse || !now.initial_diffuse.empty();
    return diffuse ? truth.diffuse_log_likelihood : truth.log_likelihood;
  };
  for (const Part& part : parts) {
    SCOPED_TRACE(::testing::Message() << "output " << static_cast<int>(part.output));
    const Numbers& score = smoothed.outputs.at(part.output);
    ASSERT_EQ(score.size(), part.numbers->size());
    double most = 0, size = 0;
    for (const double number : score) most = std::max(most, std::fabs(number));
    for (const double number : *part.numbers) size = std::max(size, std::fabs(number));
    const double step = 1e-4 * (size > 0 ? size : 1);
    for (size_t at = 0; at < score.size(); ++at) {
      const auto each = static_cast<size_t>(part.rows * part.rows), own = at % each;
      const size_t rows = static_cast<size_t>(part.rows), row = own % rows, column = own / rows;
      const size_t mirror = part.symmetric ? at - own + row * rows + column : at;
      const Numbers kept = *part.numbers;
      const auto with = [&](double by) {
        (*part.numbers)[at] = kept[at] + by;
        (*part.numbers)[mirror] = kept[mirror] + by;
        const long double value = likelihood();
        *part.numbers = kept;
        return value;
      };
      const long double near = with(step) - with(-step), far = with(2 * step) - with(-2 * step);
      const auto slope = static_cast<double>((8 * near - far) / (12 * step));
      const double expected = mirror == at ? slope : slope / 2;
      EXPECT_NEAR(score[at], expected, 1e-6 * most + 1e-9 / size) << at;
    }
  }
}

void ExpectScore(SmoothModel& model) {
  using O = SmoothOutput;
  const int64_t n = model.params.state_size, ny = model.params.observation_size;
  std::vector<Part> parts = {{O::kScoreTransition, &model.f},
                             {O::kScoreTransitionCovariance, &model.q, n, true},
                             {O::kScoreObservation, &model.h},
                             {O::kScoreObservationCovariance, &model.r, ny, true}};
  if (!model.c.empty()) {
    parts.push_back({O::kScoreTransitionOffset, &model.c});
    parts.push_back({O::kScoreObservationOffset, &model.d});
  }
  if (!model.params.diffuse) {
    parts.push_back({O::kScoreInitialMean, &model.m});
    parts.push_back({O::kScoreInitialCovariance, &model.p, n, true});
  }
  ExpectScore([&] { return model.params; }, parts);
}

TEST(ScoreTest, ArraysOfEveryKind) {
  for (const int64_t n : {1, 3}) {
    for (const bool per_step : {false, true}) {
      SCOPED_TRACE(::testing::Message() << n << " states, per step " << per_step);
      SmoothModel model(
          {.steps = per_step ? 4 : 9, .states = n, .observations = 2, .per_step = per_step});
      ExpectScore(model);
    }
  }
}

TEST(ScoreTest, DiffuseStartsInWholeAndInPart) {
  SmoothModel model({.steps = 9, .states = 3, .observations = 2, .per_step = false});
  model.params.diffuse = true;
  model.params.initial_mean = model.params.initial_covariance = {};
  ExpectScore(model);
  SmoothModel part({.steps = 9, .states = 3, .observations = 1, .per_step = false});
  const Numbers direction = {1, -2, 0.5};
  part.params.initial_diffuse = direction;
  ExpectScore(part);
}

// The first of each of these families: Q singular, and a diffuse start.
TEST(ScoreTest, ModelsThatPeopleFit) {
  std::vector<NamedModel> families = SmootherFamilies();
  for (const std::string family : {"rank one", "diffuse trend"}) {
    SCOPED_TRACE(family);
    const auto found = std::find_if(families.begin(), families.end(), [&](const NamedModel& model) {
      return model.name.starts_with(family);
    });
    ASSERT_NE(found, families.end());
    NamedModel& model = *found;
    model.y.resize(std::min(model.y.size(), static_cast<size_t>(15 * model.outputs)));
    using O = SmoothOutput;
    ExpectScore([&] { return model.params(); },
                {{O::kScoreTransition, &model.f},
                 {O::kScoreTransitionCovariance, &model.q, model.states, true},
                 {O::kScoreObservation, &model.h},
                 {O::kScoreObservationCovariance, &model.r, model.outputs, true}});
  }
}

}  // namespace
}  // namespace blockd::test
