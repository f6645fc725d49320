// Smooth against the classical smoother in 80-bit arithmetic, and what it leaves behind however it
// ends.
#include <algorithm>
#include <cmath>

#include "absl/strings/match.h"
#include "blockd/engine/smoother.h"
#include "engine/problems/series.h"
#include "tests/server/core/smooth/smooth_fixture.h"
#include "tests/support/classical_smoother.h"

namespace blockd::test {
namespace {

TEST_F(SolverCoreSmoothTest, ModelsOfEveryKindAreThoseOfTheClassicalSmoother) {
  Start();
  const SmoothModel::Options kinds[] = {
      {},
      {.per_step = false},
      {.per_step = false, .offsets = false, .missing = 0},
      {.steps = 1},
      {.steps = 2, .states = 5, .observations = 1},
      {.steps = 12, .states = 2, .observations = 7, .series = 4},
      {.steps = 30, .states = 1, .observations = 1, .series = 3, .missing = 0.5},
      {.steps = 15, .states = 6, .observations = 3, .series = 2, .scale = 1e-5},
      {.steps = 15, .states = 4, .observations = 2, .missing = 1},  // m and P alone
      {.steps = 9, .states = 40, .observations = 35, .missing = 0.1},
  };
  uint64_t seed = 10;
  for (const SmoothModel::Options& options : kinds) {
    SCOPED_TRACE(seed);
    const SmoothModel model(options, seed++);
    ExpectClassical(model.params, Smooth(model.params), 1e-8);
  }
  EXPECT_EQ(core_->memory().factorizations, 0);
}

// Which has memory of its own, as a GPU has.
TEST_F(SolverCoreSmoothTest, ADeviceMakesTheBlocksOfLargeModels) {
  Start({.memory_bytes = int64_t{64} << 20, .flies = true});
  const SmoothModel model({.steps = 3, .states = 128, .observations = 6, .series = 2});
  SmoothParams params = model.params;
  ExpectClassical(params, Smooth(params), 1e-8);
  EXPECT_EQ(core_->memory().factorizations, 0);
  EXPECT_EQ(Reserved(), 0);
  kept_.keep = true;
  EXPECT_FALSE(Smooth(params).reply->found);
  EXPECT_TRUE(Smooth(params).reply->found);
  std::vector<double> q = model.q;
  q[128 * 128] = 0;
  params.transition_covariance = {q, true};
  EXPECT_TRUE(server::SingularCovarianceOf(Smooth(params).reply.status()).has_value());
}

TEST_F(SolverCoreSmoothTest, ADiffuseModelIsTheLimit) {
  Start();
  for (uint64_t seed = 30; seed < 34; ++seed) {
    SmoothModel model(
        {.steps = 25, .states = 2, .observations = 3, .per_step = seed % 2 == 0, .missing = 0.1},
        seed);
    model.params.diffuse = true;
    model.params.initial_mean = model.params.initial_covariance = {};
    ExpectClassical(model.params, Smooth(model.params), 1e-7, 1e9);
  }
}

// P's rows and columns of diffuse states do not count; other directions have no information form.
TEST_F(SolverCoreSmoothTest, AModelThatIsDiffuseInPartIsTheLimit) {
  Start();
  constexpr long double kLarge = 1e40L;
  const SmoothModel::Options options{.steps = 25, .states = 3, .observations = 2, .missing = 0.1};
  const std::vector<std::vector<double>> states = {{0, 0, 1}, {0, 1, 0}, {0, 0, 1, 1, 0, 0}};
  for (const std::vector<double>& g : states) {
    SmoothModel model(options);
    model.params.initial_diffuse = g;
    const Answer answer = Smooth(model.params);
    ExpectClassical(model.params, answer, 1e-7, kLarge);
    EXPECT_EQ(answer.reply->systems[0].form, SmoothForm::kInformation);
    for (size_t i = 0; i < 9; ++i) {
      for (size_t j = 0; j < g.size(); j += 3) {
        if (g[j + i % 3] != 0 || g[j + i / 3] != 0) model.p[i] = 0;
      }
    }
    EXPECT_EQ(Smooth(model.params).means, answer.means);
    for (const double value : {0.0, 7.0}) {
      for (size_t i = 0; i < 9; ++i) {
        for (size_t j = 0; j < g.size(); j += 3) {
          if (g[j + i % 3] != 0 || g[j + i / 3] != 0) model.p[i] = value;
        }
      }
      model.params.form = SmoothForm::kOrthogonal;
      ExpectClassical(model.params, Smooth(model.params), 1e-7, kLarge);
    }
  }
  const std::vector<double> direction = {0, 1, -2};
  SmoothModel model(options);
  model.params.initial_diffuse = direction;
  const Answer answer = Smooth(model.params);
  ExpectClassical(model.params, answer, 1e-7, kLarge);
  EXPECT_EQ(answer.reply->systems[0].form, SmoothForm::kOrthogonal);
  EXPECT_EQ(answer.reply->systems[0].reason, server::SmoothedSystem::Reason::kPartlyDiffuse);
  kept_.keep = true;
  EXPECT_EQ(server::InvalidFieldOf(Smooth(model.params).reply.status())->field,
            "header.diffuse_columns");
  EXPECT_EQ(Reserved(), 0);
}

// The noises of a diagonal R are whitened one by one.
TEST_F(SolverCoreSmoothTest, IndependentNoisesAreThoseOfTheClassicalSmoother) {
  Start();
  for (const bool per_step : {false, true}) {
    for (const int64_t observations : {1, 2, 40}) {
      SmoothModel model({.observations = observations, .series = 2, .per_step = per_step});
      for (size_t i = 0; i < model.r.size(); ++i) {
        const auto at = static_cast<int64_t>(i) % (observations * observations);
        if (at % (observations + 1) != 0) model.r[i] = 0;
      }
      model.params.residuals = true;
      const Answer answer = Smooth(model.params);
      ExpectClassical(model.params, answer, 1e-9);
      EXPECT_EQ(answer.reply->systems[0].form, SmoothForm::kInformation);
    }
  }
}

TEST_F(SolverCoreSmoothTest, TheWeeksOfMaunaLoaAgreeToEightDigits) {
  Start({.memory_bytes = int64_t{64} << 20});
  const problems::SeriesModel co2 = problems::MaunaLoaModel();
  const std::vector<double> y = problems::MaunaLoaCo2();
  SmoothParams params;
  params.num_steps = std::ssize(y);
  params.state_size = co2.state_size;
  params.observation_size = 1;
  params.transition = {co2.transition};
  params.transition_covariance = {co2.transition_covariance};
  params.observation = {co2.observation};
  params.observation_covariance = {co2.observation_covariance};
  const std::vector<double> m = {315, 0, 0, 0, 0, 0, 0, 0};
  std::vector<double> p(64);
  for (int i = 0; i < 8; ++i) p[i * 9] = i == 1 ? 0.01 : 10;
  params.initial_mean = m;
  params.initial_covariance = p;
  params.observations = y;
  params.covariances = SmoothedCovariances::kFull;
  params.lag_one = params.log_likelihood = true;
  ExpectClassical(params, Smooth(params), 1e-8);
}

// The rate counts what was sent, once, and not what is made of it.
TEST_F(SolverCoreSmoothTest, ASmoothCountsForTheUploadsOnce) {
  Start();
  server::TenantsConfig config;
  config.default_tenant.quotas.upload_bytes_per_second = 1;
  core_->tenants().Configure(config);
  const SmoothModel model({.steps = 64, .states = 8});
  const auto first = AskSmooth(*core_, model.params);
  EXPECT_TRUE(first->Wait().reply.ok()) << first->Wait().reply.status();
  const auto second = AskSmooth(*core_, model.params);
  EXPECT_TRUE(absl::IsResourceExhausted(second->Wait().reply.status()))
      << second->Wait().reply.status();
}

TEST_F(SolverCoreSmoothTest, PartsAreThoseOfTheWhole) {
  Start();
  SmoothModel model({.series = 3});
  model.params.residuals = true;
  const Answer whole = Smooth(model.params);
  ASSERT_TRUE(whole.reply.ok()) << whole.reply.status();
  model.params.lag_one = model.params.log_likelihood = false;
  model.params.covariances = SmoothedCovariances::kVariances;
  for (const bool residuals : {false, true}) {
    model.params.residuals = residuals;
    const Answer part = Smooth(model.params);
    ASSERT_TRUE(part.reply.ok()) << part.reply.status();
    EXPECT_EQ(part.means, whole.means);
    ASSERT_EQ(part.covariances.size() * 3, whole.covariances.size());
    for (size_t i = 0; i < part.covariances.size(); ++i) {
      EXPECT_DOUBLE_EQ(part.covariances[i], whole.covariances[i / 3 * 9 + i % 3 * 4]) << i;
    }
    EXPECT_TRUE(part.reply->log_likelihood.empty());
    if (residuals) {
      EXPECT_EQ(std::memcmp(part.residuals.data(), whole.residuals.data(),
                            whole.residuals.size() * sizeof(double)),
                0);
    }
  }
}

// By the model, residuals are standard normal, and samples scatter as the covariances say.
TEST_F(SolverCoreSmoothTest, SamplesScatterAroundTheMeans) {
  Start({.memory_bytes = int64_t{64} << 20});
  SmoothModel model({.steps = 3, .states = 2, .series = 2});
  model.params.num_samples = 20000;
  model.params.seed = 9;
  const Answer answer = Smooth(model.params);
  ASSERT_TRUE(answer.reply.ok()) << answer.reply.status();
  for (int64_t k = 0; k < 2; ++k) {
    const int64_t s = answer.reply->system_of_series[k];
    for (int64_t i = 0; i < 6; ++i) {
      double mean = 0, square = 0;
      for (int64_t j = 0; j < 20000; ++j) {
        const double x = answer.samples[(k * 20000 + j) * 6 + i] - answer.means[k * 6 + i];
        mean += x / 20000;
        square += x * x / 20000;
      }
      const double variance = answer.covariances[s * 12 + i / 2 * 4 + i % 2 * 3];
      EXPECT_LT(std::abs(mean), 6 * std::sqrt(variance / 20000));
      EXPECT_NEAR(square, variance, 6 * variance * std::sqrt(2.0 / 20000));
    }
  }
  // One sample has the same bits whatever others are drawn with it.
  model.params.num_samples = 1;
  const Answer one = Smooth(model.params);
  EXPECT_TRUE(std::equal(one.samples.begin(), one.samples.begin() + 6, answer.samples.begin()));
}

TEST_F(SolverCoreSmoothTest, SeriesWithTheSamePatternShareASystem) {
  Start();
  SmoothModel model({.steps = 6, .observations = 1, .series = 5, .missing = 0});
  for (const int64_t k : {1, 4}) model.y[k * 6 + 2] = kMissing;
  model.y[3 * 6] = kMissing;
  const Answer answer = Smooth(model.params);
  ASSERT_TRUE(answer.reply.ok()) << answer.reply.status();
  EXPECT_EQ(answer.reply->system_of_series, (std::vector<uint32_t>{0, 1, 0, 2, 1}));
  EXPECT_EQ(answer.reply->observed, (std::vector<int64_t>{6, 5, 6, 5, 5}));
  EXPECT_EQ(answer.covariances.size(), 3u * 6 * 9);
  ExpectClassical(model.params, answer, 1e-8);
  EXPECT_TRUE(answer.reply->handles.empty());
  EXPECT_EQ(core_->memory().factorizations, 0);
}

TEST_F(SolverCoreSmoothTest, WhatIsKeptIsFoundByItsModelAndPattern) {
  Start();
  SmoothModel model({.steps = 6, .observations = 1, .series = 2, .missing = 0});
  model.y[2] = kMissing;
  kept_.keep = true;
  const Answer first = Smooth(model.params);
  ASSERT_TRUE(first.reply.ok()) << first.reply.status();
  EXPECT_FALSE(first.reply->found);
  ASSERT_EQ(first.reply->handles.size(), 2);
  EXPECT_EQ(core_->memory().factorizations, 2);
  // New values, and the patterns in another order.
  std::swap_ranges(model.y.begin(), model.y.begin() + 6, model.y.begin() + 6);
  model.y[0] += 1;
  const Answer second = Smooth(model.params);
  ASSERT_TRUE(second.reply.ok()) << second.reply.status();
  EXPECT_TRUE(second.reply->found);
  EXPECT_EQ(second.reply->handles[0], first.reply->handles[1]);
  EXPECT_EQ(second.reply->handles[1], first.reply->handles[0]);
  ExpectClassical(model.params, second, 1e-8);
  // Anything else that A depends on is another one; m, c and d are not.
  model.m[0] += 1;
  model.c[0] += 1;
  model.d[0] += 1;
  EXPECT_TRUE(Smooth(model.params).reply->found);
  std::vector<double>* const arrays[] = {&model.f, &model.q, &model.h, &model.r, &model.p};
  for (std::vector<double>* array : arrays) {
    (*array)[0] *= 1 + 1e-15;
    const Answer other = Smooth(model.params);
    ASSERT_TRUE(other.reply.ok()) << other.reply.status();
    EXPECT_FALSE(other.reply->found);
    for (const server::Handle& handle : other.reply->handles) {
      EXPECT_TRUE(core_->Release("alice", {&handle, 1}).ok());
    }
  }
  EXPECT_TRUE(core_->Release("alice", first.reply->handles).ok());
  EXPECT_EQ(core_->memory().factorizations, 0);
}

TEST_F(SolverCoreSmoothTest, AnswersHaveTheSameBitsForAnyNumberOfThreads) {
  SmoothModel model({.steps = 700, .states = 5, .observations = 3, .series = 2, .missing = 0.01});
  model.params.residuals = true;
  model.params.num_samples = 2;
  std::vector<Answer> answers;
  for (const int threads : {1, 4}) {
    Setup setup{.memory_bytes = int64_t{64} << 20};
    setup.limits.model_threads = threads;
    Start(setup);
    answers.push_back(Smooth(model.params));
    ASSERT_TRUE(answers.back().reply.ok()) << answers.back().reply.status();
    Stop();
  }
  EXPECT_EQ(answers[0].reply->log_likelihood, answers[1].reply->log_likelihood);
  for (auto part : {&Answer::means, &Answer::covariances, &Answer::lag_one, &Answer::residuals,
                    &Answer::samples}) {
    const std::vector<double>&one = answers[0].*part, &other = answers[1].*part;
    ASSERT_EQ(one.size(), other.size());
    EXPECT_EQ(std::memcmp(one.data(), other.data(), one.size() * sizeof(double)), 0);
  }
}

TEST_F(SolverCoreSmoothTest, InputThatIsNoModelIsRefused) {
  Start();
  const auto field = [&](auto change) {
    SmoothModel model({});
    change(model);
    return FieldOf(Smooth(model.params).reply.status());
  };
  EXPECT_EQ(field([](SmoothModel& model) { model.f[3] = kMissing; }), "header.transition");
  EXPECT_EQ(field([](SmoothModel& model) { model.q[3] = kMissing; }),
            "header.transition_covariance");
  EXPECT_EQ(
      field([](SmoothModel& model) { model.y[3] = -std::numeric_limits<double>::infinity(); }),
      "chunk");
  EXPECT_EQ(field([](SmoothModel& model) { model.params.num_samples = int64_t{1} << 60; }),
            "header.options.num_samples");
  EXPECT_EQ(field([](SmoothModel& model) { model.params.num_series = int64_t{1} << 60; }),
            "header.num_series");
  EXPECT_EQ(field([](SmoothModel& model) { model.params.num_steps = int64_t{1} << 60; }),
            "header.num_steps");
  EXPECT_EQ(field([](SmoothModel& model) { model.params.observations = {}; }), "chunk");
}

// Masks that make a block of each step, arrays of which one alone is another at each step.
TEST_F(SolverCoreSmoothTest, WhatItTakesOfTheHostIsCounted) {
  std::vector<SmoothModel> models;
  models.emplace_back(SmoothModel::Options{
      .steps = 60, .states = 5, .observations = 8, .series = 3, .per_step = false, .missing = 0.5});
  models.emplace_back(
      SmoothModel::Options{.steps = 60, .states = 5, .observations = 8, .missing = 0.5});
  models.emplace_back(SmoothModel::Options{.steps = 1, .states = 2});
  models.emplace_back(
      SmoothModel::Options{.steps = 30, .states = 4, .per_step = false, .missing = 0});
  SmoothModel& mixed =
      models.emplace_back(SmoothModel::Options{.steps = 30, .states = 4, .per_step = false});
  std::vector<double> h;
  for (int t = 0; t < 30; ++t) h.insert(h.end(), mixed.h.begin(), mixed.h.end());
  mixed.params.observation = {h, true};
  StepPool pool(1);
  for (const SmoothModel& model : models) {
    SCOPED_TRACE(&model - models.data());
    const auto measured = server::MeasureSmooth(model.params, {});
    ASSERT_TRUE(measured.ok()) << measured.status();
    const auto smoother = Smoother::Make(*measured, {&pool, [] { return absl::OkStatus(); }});
    ASSERT_TRUE(smoother.ok()) << smoother.status();
    int64_t doubles = 0;
    for (size_t s = 0; s < (*smoother)->systems(); ++s) {
      SystemMatrix matrix;
      ASSERT_TRUE((*smoother)->Assemble(s, &matrix).ok());
      doubles += matrix.diagonal.size() + matrix.coupling.size();
    }
    EXPECT_GE(measured->sizes.work_bytes, 8 * doubles);
  }
}

TEST_F(SolverCoreSmoothTest, OneThatIsCancelledGivesAllBack) {
  Start();
  SmoothModel model({.series = 3});
  for (const bool keep : {false, true}) {
    kept_.keep = keep;
    PendingFactor holder = HoldDevice();
    const std::unique_ptr<AskedSmooth> asked = Ask(model.params);
    core_->Cancel(*asked->context);
    gate_->Open();
    EXPECT_TRUE(absl::IsCancelled(asked->Wait().reply.status()));
  }
  EXPECT_EQ(core_->memory().factorizations, static_cast<int64_t>(holds()));
}

// Wherever its deadline comes: before it, between portions of its model, in the queue, or never.
TEST_F(SolverCoreSmoothTest, OneThatIsLateGivesAllBack) {
  Setup setup;
  setup.limits.model_threads = 2;
  Start(setup);
  const SmoothModel model({.steps = 40, .states = 20, .observations = 3, .series = 2});
  int late = 0;
  for (bool ended = true; ended; ++late) {
    const absl::Time deadline = clock_.Now() + absl::Seconds(1);
    clock_.JumpAtLook(late + 1, absl::Seconds(2));
    const std::unique_ptr<AskedSmooth> asked =
        AskSmooth(*core_, model.params, {.deadline = deadline});
    const absl::Status status = asked->Wait().reply.status();
    clock_.JumpAtLook(0, absl::ZeroDuration());
    ended = !status.ok();
    EXPECT_EQ(absl::IsDeadlineExceeded(status), ended) << status;
    EXPECT_EQ(core_->memory().factorizations, 0);
    EXPECT_EQ(Reserved(), 0);
    ASSERT_LT(late, 10000);
  }
  EXPECT_GT(late, 10);  // the portions of the model alone are more
}

TEST_F(SolverCoreSmoothTest, ItIsFinishedWhileTheServerDrains) {
  Start();
  SmoothModel model({.series = 2});
  PendingFactor holder = HoldDevice();
  const std::unique_ptr<AskedSmooth> asked = Ask(model.params);
  std::thread drain([&] { core_->Drain(); });
  // New work is refused once it drains.
  RepeatUntil([&] { return absl::IsUnavailable(SolveStatus(server::Handle(), {2, 2})); }, [] {});
  gate_->Open();
  EXPECT_TRUE(asked->Wait().reply.ok()) << asked->answer.reply.status();
  ExpectClassical(model.params, asked->answer, 1e-8);
  drain.join();
}

// 40 patterns, each of two series, whose samples are drawn one after the other: together they ask
// for more than there is, a few of them for less.
TEST_F(SolverCoreSmoothTest, SystemsThatHaveNoRoomTogetherFollowOneAnother) {
  SmoothModel model({.steps = 20, .states = 4, .observations = 3, .series = 80, .missing = 0.2});
  const size_t half = model.y.size() / 2;
  for (size_t i = 0; i < half; ++i) {
    if (std::isnan(model.y[i]) != std::isnan(model.y[half + i])) model.y[half + i] = model.y[i];
  }
  model.params.num_samples = 2;
  Start({.memory_bytes = int64_t{64} << 20});
  const Answer together = Smooth(model.params);
  ASSERT_TRUE(together.reply.ok()) << together.reply.status();
  ASSERT_EQ(*std::ranges::max_element(together.reply->system_of_series), 39u);
  Setup few_places;
  few_places.limits.max_queued_requests = 3;
  Setup little_memory;
  little_memory.memory_bytes = 3 * Charge({20, 4}) + (96 << 10);
  for (const Setup& setup : {few_places, little_memory}) {
    Stop();
    Start(setup);
    const Answer answer = Smooth(model.params);
    ASSERT_TRUE(answer.reply.ok()) << answer.reply.status();
    EXPECT_EQ(answer.means, together.means);
    EXPECT_EQ(answer.covariances, together.covariances);
    EXPECT_EQ(answer.samples, together.samples);
    EXPECT_EQ(answer.reply->log_likelihood, together.reply->log_likelihood);
    EXPECT_EQ(core_->memory().factorizations, 0);
  }
}

TEST_F(SolverCoreSmoothTest, AFailureEndsThoseThatWaitForRoom) {
  Setup setup;
  setup.limits.max_queued_requests = 2;
  Start(setup);
  SmoothModel model({.steps = 20, .states = 4, .observations = 3, .series = 40, .missing = 0.2});
  PendingFactor holder = HoldDevice();
  const std::unique_ptr<AskedSmooth> asked = Ask(model.params);
  core_->Cancel(*asked->context);
  EXPECT_TRUE(absl::IsCancelled(asked->Wait().reply.status())) << asked->answer.reply.status();
  gate_->Open();
}

TEST_F(SolverCoreSmoothTest, WithoutMemoryItIsRefusedAndNothingIsLeft) {
  Start({.memory_bytes = int64_t{1} << 20});
  SmoothModel model({.steps = 400, .states = 20, .observations = 1, .per_step = false});
  const Answer answer = Smooth(model.params);
  EXPECT_TRUE(absl::IsResourceExhausted(answer.reply.status())) << answer.reply.status();
  EXPECT_EQ(core_->memory().factorizations, 0);
  EXPECT_EQ(Reserved(), 0);
}

}  // namespace
}  // namespace blockd::test
