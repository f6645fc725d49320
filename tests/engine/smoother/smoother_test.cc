// A and b of a model: the same bits whoever makes them, from whichever arrays, and what is said of
// covariances that are singular and of work that nobody wants any more.
#include "blockd/engine/smoother.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <functional>
#include <memory>
#include <vector>

#include "blockd/engine/model_errors.h"
#include "engine/smoother/dense.h"
#include "tests/support/smooth_model.h"

namespace blockd::test {
namespace {

absl::Status Wanted() { return absl::OkStatus(); }

// All results of a smoother for a model, in a row.
std::vector<double> Make(const SmoothParams& params, StepPool& pool) {
  const auto measured = MeasureSmooth(params, {});
  EXPECT_TRUE(measured.ok()) << measured.status();
  const auto smoother = Smoother::Make(*measured, {&pool, Wanted});
  EXPECT_TRUE(smoother.ok()) << smoother.status();
  const int64_t scalars = params.num_steps * params.state_size;
  std::vector<double> all, b(static_cast<size_t>(scalars * params.num_series));
  const auto add = [&](const Doubles& values) {
    all.insert(all.end(), values.data(), values.data() + values.size());
  };
  std::vector<double> likelihoods(static_cast<size_t>(params.num_series));
  for (size_t s = 0; s < (*smoother)->systems(); ++s) {
    SystemMatrix matrix;
    EXPECT_TRUE((*smoother)->Assemble(s, &matrix).ok());
    add(matrix.diagonal);
    add(matrix.coupling);
    std::vector<int64_t> series;
    for (int64_t k = 0; k < params.num_series; ++k) {
      if ((*smoother)->patterns().system_of_series[k] == s) series.push_back(k);
    }
    EXPECT_TRUE((*smoother)->RightHandSides(series, b.data()).ok());
    // Any blocks and any means will do.
    std::vector<double> blocks(static_cast<size_t>(scalars * params.state_size), 1e-3);
    const Doubles variances = (*smoother)->ResidualVariances(s, blocks.data());
    add(variances);
    (*smoother)->LogLikelihoods(series, b.data(), 1, likelihoods.data());
    Doubles residuals(params.observation_size * params.num_steps * params.num_series);
    (*smoother)->Residuals(series, b.data(), variances.data(), residuals.data());
    for (const int64_t k : series) {
      const int64_t size = params.observation_size * params.num_steps;
      all.insert(all.end(), residuals.data() + k * size, residuals.data() + (k + 1) * size);
    }
  }
  all.insert(all.end(), b.begin(), b.end());
  all.insert(all.end(), likelihoods.begin(), likelihoods.end());
  return all;
}

TEST(SmootherTest, HasTheSameBitsForAnyNumberOfThreads) {
  const SmoothModel::Options kinds[] = {
      {.steps = 1500, .states = 3, .observations = 2, .series = 3},
      {.steps = 1500, .states = 2, .observations = 3, .series = 2, .per_step = false},
      {.steps = 40, .states = 20, .observations = 10},
      {.steps = 12, .states = 70, .observations = 40},
      {.steps = 12, .states = 70, .observations = 40, .series = 2, .per_step = false},
      {.steps = 1, .states = 5, .observations = 4},
  };
  for (const SmoothModel::Options& kind : kinds) {
    const SmoothModel model(kind);
    StepPool one(1);
    const std::vector<double> expected = Make(model.params, one);
    for (const int threads : {2, 5}) {
      StepPool pool(threads);
      const std::vector<double> made = Make(model.params, pool);
      ASSERT_EQ(made.size(), expected.size());
      // NaN of the same bits too.
      EXPECT_EQ(std::memcmp(made.data(), expected.data(), made.size() * sizeof(double)), 0);
    }
  }
}

// The arrays are constant, or any of them are repeated step by step.
TEST(SmootherTest, AModelHasTheSameBlocksFromWhicheverArrays) {
  StepPool pool(2);
  for (const int64_t n : {3, 12}) {
    const SmoothModel::Options kind{
        .steps = 9, .states = n, .observations = 10, .per_step = false, .missing = 0.05};
    const SmoothModel constant(kind);
    const std::vector<int64_t> series = {0};
    const std::vector<double> means(static_cast<size_t>(9 * n), 0.25);
    double likelihood = 0;
    const auto assemble = [&](const SmoothParams& params, SystemMatrix* matrix) {
      const auto measured = MeasureSmooth(params, {});
      const auto smoother = Smoother::Make(*measured, {&pool, Wanted});
      ASSERT_TRUE(smoother.ok()) << smoother.status();
      ASSERT_TRUE((*smoother)->Assemble(0, matrix).ok());
      (*smoother)->LogLikelihoods(series, means.data(), 1, &likelihood);
    };
    SystemMatrix expected;
    assemble(constant.params, &expected);
    const double expected_likelihood = likelihood;
    const auto repeated = [](const std::vector<double>& one, int64_t times) {
      std::vector<double> all;
      for (int64_t i = 0; i < times; ++i) all.insert(all.end(), one.begin(), one.end());
      return all;
    };
    const std::vector<double> f = repeated(constant.f, 8), q = repeated(constant.q, 8);
    const std::vector<double> h = repeated(constant.h, 9), r = repeated(constant.r, 9);
    for (int which = 1; which < 16; ++which) {
      SCOPED_TRACE(which);
      SmoothParams params = constant.params;
      if (which & 1) params.transition = {f, true};
      if (which & 2) params.transition_covariance = {q, true};
      if (which & 4) params.observation = {h, true};
      if (which & 8) params.observation_covariance = {r, true};
      SystemMatrix each;
      assemble(params, &each);
      EXPECT_EQ(likelihood, expected_likelihood);
      const size_t block = n * n * sizeof(double);
      for (int64_t t = 0; t < 9; ++t) {
        EXPECT_EQ(std::memcmp(DiagonalBlock<double>(each.view(), t),
                              DiagonalBlock<double>(expected.view(), t), block),
                  0)
            << t;
        if (t == 8) break;
        EXPECT_EQ(std::memcmp(CouplingBlock<double>(each.view(), t),
                              CouplingBlock<double>(expected.view(), t), block),
                  0)
            << t;
      }
    }
  }
}

// Checks that the arrays from which a device makes A give the A of the host.
void ExpectSameBlocks(const Smoother& smoother, size_t system) {
  const int64_t n = smoother.params().state_size, size = n * n;
  SystemMatrix matrix;
  WhitenedSystem whitened;
  ASSERT_TRUE(smoother.Assemble(system, &matrix).ok());
  ASSERT_TRUE(smoother.Whiten(system, &whitened).ok());
  const InformationForm& form = whitened.form;
  const auto at = [&](const void* arrays, int64_t step, bool one) {
    return static_cast<const double*>(arrays) + (one ? 0 : step * size);
  };
  for (int64_t t = 0; t < form.shape.num_blocks; ++t) {
    std::vector<double> d(size), v(size);
    AddGram(form.rows, n, whitened.observations.data() + t * form.rows * n, d.data());
    const double* const to = t == 0 ? static_cast<const double*>(form.initial)
                                    : at(form.whiteners, t - 1, form.one_whitener);
    if (to != nullptr) AddGram(n, n, to, d.data());
    if (t + 1 < form.shape.num_blocks) {
      const double* const u = at(form.whiteners, t, form.one_whitener);
      std::copy_n(at(form.transitions, t, form.one_transition), size, v.data());
      MultiplyLower(n, u, v.data(), n);
      AddGram(n, n, v.data(), d.data());
      MultiplyLowerTransposed(n, u, v.data(), n);
      for (int64_t i = 0; i < size; ++i) {
        EXPECT_NEAR(-v[i], matrix.coupling.data()[t * size + i], 1e-9);
      }
    }
    for (int64_t i = 0; i < size; ++i) {
      if (i % n < i / n) continue;
      EXPECT_NEAR(d[i], matrix.diagonal.data()[t * size + i], 1e-9);
    }
  }
}

TEST(SmootherTest, WhatADeviceIsSentIsTheSameModel) {
  const SmoothModel::Options kinds[] = {
      {.steps = 6, .states = 9, .observations = 5, .series = 2},
      {.steps = 6, .states = 9, .observations = 5, .missing = 0},
      {.steps = 1, .states = 4, .observations = 3},
  };
  StepPool pool(2);
  for (const SmoothModel::Options& options : kinds) {
    const SmoothModel model(options);
    const int64_t size = model.params.state_size * model.params.state_size;
    for (int kind = 0; kind < 3; ++kind) {
      SmoothParams params = model.params;
      if (params.num_steps > 1 && kind == 1) {
        params.transition = {params.transition.values.first(size)};
      }
      if (kind == 2) {
        params.diffuse = true;
        params.initial_mean = params.initial_covariance = {};
        if (params.num_steps > 1) {
          params.transition_covariance = {params.transition_covariance.values.first(size)};
        }
      }
      const auto measured = MeasureSmooth(params, {});
      ASSERT_TRUE(measured.ok()) << measured.status();
      const auto smoother = Smoother::Make(*measured, {&pool, Wanted});
      ASSERT_TRUE(smoother.ok()) << smoother.status();
      for (size_t s = 0; s < (*smoother)->systems(); ++s) ExpectSameBlocks(**smoother, s);
    }
  }
}

TEST(SmootherTest, ADeviceIsForModelsOfManyStatesThatMove) {
  StepPool pool(1);
  const auto is_for_device = [&](const SmoothModel& model) {
    const auto measured = MeasureSmooth(model.params, {});
    const auto smoother = Smoother::Make(*measured, {&pool, Wanted});
    return (*smoother)->IsForDevice();
  };
  EXPECT_TRUE(is_for_device(SmoothModel({.steps = 2, .states = 128, .observations = 1})));
  EXPECT_FALSE(is_for_device(SmoothModel({.steps = 2, .states = 127, .observations = 1})));
  EXPECT_FALSE(is_for_device(
      SmoothModel({.steps = 2, .states = 128, .observations = 1, .per_step = false})));
  EXPECT_FALSE(is_for_device(SmoothModel({.steps = 2, .states = 128, .observations = 129})));
}

TEST(SmootherTest, TheFirstCovarianceThatIsSingularIsNamedWhoeverMeetsIt) {
  SmoothModel model({.steps = 2000, .states = 2, .observations = 2});
  for (const int64_t t : {700, 1300, 1990}) model.q[t * 4 + 3] = -1;
  for (const int64_t t : {50, 1600}) model.r[t * 4] = 0;
  StepPool pool(4);
  const auto singular = [&] {
    const auto measured = MeasureSmooth(model.params, {});
    return SingularCovarianceOf(Smoother::Make(*measured, {&pool, Wanted}).status())
        .value_or(SingularCovariance{"none", -1, -1});
  };
  for (int time = 0; time < 20; ++time) {
    EXPECT_EQ(singular().matrix, "Q");
    EXPECT_EQ(singular().step, 700);
    EXPECT_EQ(singular().row, 1);
  }
  for (const int64_t t : {700, 1300, 1990}) model.q[t * 4 + 3] = 10;
  for (int time = 0; time < 20; ++time) {
    EXPECT_EQ(singular().matrix, "R");
    EXPECT_EQ(singular().step, 50);
    EXPECT_EQ(singular().row, 0);
  }
}

TEST(SmootherTest, WorkThatNobodyWantsEndsAtTheNextPortion) {
  const SmoothModel model({.steps = 3000, .states = 4, .observations = 2});
  const auto measured = MeasureSmooth(model.params, {});
  for (const int threads : {1, 3}) {
    StepPool pool(threads);
    std::atomic<int> looks = 0;
    int most = 0;
    const auto wanted = [&] {
      return looks++ < most ? absl::OkStatus() : absl::CancelledError("over");
    };
    bool ended = true;
    for (; ended; ++most) {
      looks = 0;
      const auto smoother = Smoother::Make(*measured, {&pool, wanted});
      absl::Status status = smoother.status();
      SystemMatrix matrix;
      std::vector<double> b(static_cast<size_t>(3000 * 4));
      const std::vector<int64_t> series = {0};
      if (status.ok()) status = (*smoother)->RightHandSides(series, b.data());
      if (status.ok()) status = (*smoother)->Assemble(0, &matrix);
      ended = !status.ok();
      EXPECT_EQ(absl::IsCancelled(status), ended) << status;
      EXPECT_LE(looks, most + threads + 1);
    }
    EXPECT_GT(most, 10);
  }
}

}  // namespace
}  // namespace blockd::test
