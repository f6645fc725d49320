// Numbers of a model that MeasureSmooth refuses, and what it counts.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "blockd/engine/model_errors.h"
#include "blockd/engine/smooth_model.h"
#include "tests/support/smooth_model.h"

namespace blockd::test {
namespace {

// "": it is accepted.
std::string RefusedField(const SmoothModel& model) {
  const absl::Status status = MeasureSmooth(model.params, {}).status();
  return status.ok() ? "" : InvalidFieldOf(status).value_or(InvalidField{"none", "", ""}).field;
}

TEST(MeasureSmoothTest, CovariancesThatAreNotSymmetricAreNamed) {
  for (const int64_t n : {2, 3, 16, 17, 40}) {
    const SmoothModel good({.steps = 4, .states = n, .observations = n, .missing = 0});
    ASSERT_EQ(RefusedField(good), "") << n;
    // Elements that mirror each other, at both ends of a matrix.
    for (const auto& [i, j] : {std::pair<int64_t, int64_t>(1, 0), {n - 1, n - 2}, {n - 1, 0}}) {
      const auto refused = [&, i = i, j = j](std::vector<double> SmoothModel::*matrices,
                                             int64_t step, double share) {
        SmoothModel model({.steps = 4, .states = n, .observations = n, .missing = 0});
        double* const matrix = (model.*matrices).data() + step * n * n;
        matrix[i * n + j] += share * std::sqrt(matrix[i * (n + 1)] * matrix[j * (n + 1)]);
        return RefusedField(model);
      };
      EXPECT_EQ(refused(&SmoothModel::q, 2, 3e-8), "transition_covariance");
      EXPECT_EQ(refused(&SmoothModel::r, 3, 3e-8), "observation_covariance");
      EXPECT_EQ(refused(&SmoothModel::p, 0, 3e-8), "initial_covariance");
      EXPECT_EQ(refused(&SmoothModel::q, 2, 3e-9), "");
      EXPECT_EQ(refused(&SmoothModel::r, 3, 3e-9), "");
      EXPECT_EQ(refused(&SmoothModel::p, 0, 3e-9), "");
    }
  }
}

// Beside a state without noise rounding leaves what it likes.
TEST(MeasureSmoothTest, RoundingBesideAZeroIsNoAsymmetry) {
  SmoothModel model({.steps = 4, .states = 3, .per_step = false});
  model.q = {1, 0, 0, 0, 1, 1e-16, 0, -1e-16, 0};
  model.params.transition_covariance.values = model.q;
  EXPECT_EQ(RefusedField(model), "");
  model.q[5] = 1e-6;
  EXPECT_EQ(RefusedField(model), "transition_covariance");
}

TEST(MeasureSmoothTest, OfOneStepTheTransitionsAreNotLookedAt) {
  SmoothModel model({.steps = 1, .states = 2, .per_step = false});
  model.q = {1, 5, 0, 1};
  model.params.transition_covariance.values = model.q;
  EXPECT_EQ(RefusedField(model), "");
}

// Independent noises take no ny^2 numbers a step, whatever is missing.
TEST(MeasureSmoothTest, IndependentNoisesTakeNoMatrixAStep) {
  SmoothModel model({.steps = 500, .states = 2, .observations = 60, .per_step = false});
  const auto work_bytes = [&] { return MeasureSmooth(model.params, {})->sizes.work_bytes; };
  EXPECT_GT(work_bytes(), int64_t{8} * 500 * 60 * 60);
  for (size_t i = 0; i < model.r.size(); ++i) {
    if (i % 61 != 0) model.r[i] = 0;
  }
  EXPECT_LT(work_bytes(), int64_t{8} * 500 * 60 * 10);
}

TEST(MeasureSmoothTest, NumbersThatAreNotFiniteAreNamed) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const auto refused = [](std::vector<double> SmoothModel::*values, double value) {
    SmoothModel model({});
    (model.*values)[1] = value;
    return RefusedField(model);
  };
  for (const double value : {kInfinity, -kInfinity, std::nan("")}) {
    EXPECT_EQ(refused(&SmoothModel::f, value), "transition");
    EXPECT_EQ(refused(&SmoothModel::m, value), "initial_mean");
    EXPECT_EQ(refused(&SmoothModel::p, value), "initial_covariance");
  }
  EXPECT_EQ(refused(&SmoothModel::y, kInfinity), "observations");
  EXPECT_EQ(refused(&SmoothModel::y, std::nan("")), "");
}

}  // namespace
}  // namespace blockd::test
