// Smooth through the client: against the classical smoother, what is kept, what is refused, and
// what of a server's answer is believed.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <optional>
#include <vector>

#include "engine/problems/series.h"
#include "tests/client/fake_solver.h"
#include "tests/client/server_fixture.h"

namespace blockd::client {
namespace {

constexpr double kMissing = std::numeric_limits<double>::quiet_NaN();

// y(t) = a(t) + v, a(t+1) = a(t) + w, a(1) diffuse: forward (Kalman), then backward (Rauch, Tung,
// Striebel). The first value is not missing.
struct LocalLevel {
  std::vector<double> level, variance;
  double log_likelihood = 0;

  LocalLevel(const std::vector<double>& y, double r, double q)
      : level(y.size()), variance(y.size()) {
    level[0] = y[0];  // whose density is 1: nothing is known of a(1)
    variance[0] = r;
    for (size_t t = 1; t < y.size(); ++t) {
      const double predicted = variance[t - 1] + q;
      level[t] = level[t - 1];
      variance[t] = predicted;
      if (std::isnan(y[t])) continue;
      const double error = y[t] - level[t - 1], spread = predicted + r;
      log_likelihood -= (std::log(2 * M_PI * spread) + error * error / spread) / 2;
      level[t] += predicted / spread * error;
      variance[t] = predicted * r / spread;
    }
    for (size_t t = y.size() - 1; t-- > 0;) {
      const double predicted = variance[t] + q, back = variance[t] / predicted;
      level[t] += back * (level[t + 1] - level[t]);
      variance[t] += back * back * (variance[t + 1] - predicted);
    }
  }
};

StateSpaceModel ModelOf(const problems::SeriesModel& model, int64_t steps) {
  return {.num_steps = steps,
          .state_size = model.state_size,
          .observation_size = 1,
          .transition = {model.transition},
          .transition_covariance = {model.transition_covariance},
          .observation = {model.observation},
          .observation_covariance = {model.observation_covariance}};
}

class SmoothTest : public ServerTest {
 protected:
  void SetUp() override { StartServer(); }

  std::vector<double> Nile() const {
    return {problems::NileFlow().begin(), problems::NileFlow().end()};
  }

  const problems::SeriesModel nile_ = problems::NileModel();
};

TEST_F(SmoothTest, TheNileIsThatOfTheClassicalSmoother) {
  std::vector<double> y = Nile(), gaps = Nile();
  for (const size_t t : {5, 6, 7, 30, 99}) gaps[t] = kMissing;
  std::vector<double> both = y;
  both.insert(both.end(), gaps.begin(), gaps.end());
  const auto smoothed =
      Connect().Smooth(ModelOf(nile_, 100), both, {.lag_one_covariances = true, .residuals = true});
  ASSERT_TRUE(smoothed.ok()) << smoothed.status();
  EXPECT_EQ(smoothed->num_series, 2);
  EXPECT_EQ(smoothed->num_systems, 2);
  EXPECT_EQ(smoothed->system_of_series, (std::vector<uint32_t>{0, 1}));
  EXPECT_EQ(smoothed->observed, (std::vector<int64_t>{100, 95}));
  EXPECT_TRUE(smoothed->handles.empty());
  EXPECT_FALSE(smoothed->found);
  EXPECT_EQ(smoothed->lag_one_covariances.size(), 2 * 99);
  EXPECT_EQ(smoothed->samples.size(), 0);
  for (size_t k = 0; k < 2; ++k) {
    SCOPED_TRACE(k);
    const LocalLevel classical(k == 0 ? y : gaps, problems::kNileObservationVariance,
                               problems::kNileLevelVariance);
    for (size_t t = 0; t < 100; ++t) {
      const double mean = smoothed->means[k * 100 + t];
      const double variance = smoothed->covariances[k * 100 + t];
      EXPECT_NEAR(mean, classical.level[t], 1e-8 * classical.level[t]) << t;
      EXPECT_NEAR(variance, classical.variance[t], 1e-8 * classical.variance[t]) << t;
      const double residual = smoothed->standardized_residuals[k * 100 + t];
      const double value = both[k * 100 + t];
      if (std::isnan(value)) {
        EXPECT_TRUE(std::isnan(residual)) << t;
      } else {
        EXPECT_NEAR(residual * std::sqrt(problems::kNileObservationVariance - variance),
                    value - mean, 1e-8 * value)
            << t;
      }
    }
    EXPECT_NEAR(smoothed->log_likelihood[k], classical.log_likelihood,
                1e-8 * std::abs(classical.log_likelihood));
  }
  EXPECT_TRUE(Connect().List()->empty());
}

TEST_F(SmoothTest, WhatIsKeptIsFoundAndGivenBack) {
  const SolverClient client = Connect();
  const StateSpaceModel model = ModelOf(nile_, 100);
  {
    const auto first = client.Smooth(model, Nile(), {.keep = true});
    ASSERT_TRUE(first.ok()) << first.status();
    EXPECT_FALSE(first->found);
    ASSERT_EQ(first->handles.size(), 1);
    std::vector<double> other = Nile();
    for (double& value : other) value = 2 * value + 1;
    const auto second = client.Smooth(model, other, {.keep = true});
    ASSERT_TRUE(second.ok()) << second.status();
    EXPECT_TRUE(second->found);
    EXPECT_EQ(second->covariances, first->covariances);
    EXPECT_EQ(client.List()->size(), 1);
    const auto alone = client.Smooth(model, other);
    ASSERT_TRUE(alone.ok()) << alone.status();
    EXPECT_EQ(second->means, alone->means);
    EXPECT_EQ(second->log_likelihood, alone->log_likelihood);
    // Another model, and the same with a value missing, are others.
    const std::vector<double> variance = {problems::kNileLevelVariance * (1 + 1e-15)};
    StateSpaceModel changed = model;
    changed.transition_covariance.values = variance;
    const auto third = client.Smooth(changed, Nile(), {.keep = true});
    ASSERT_TRUE(third.ok()) << third.status();
    EXPECT_FALSE(third->found);
    other[3] = kMissing;
    const auto fourth = client.Smooth(model, other, {.keep = true});
    ASSERT_TRUE(fourth.ok()) << fourth.status();
    EXPECT_FALSE(fourth->found);
  }
  EXPECT_TRUE(client.AwaitReleases(absl::Seconds(60)));
  EXPECT_TRUE(client.List()->empty());
}

TEST_F(SmoothTest, ArraysOfEveryStepAreThoseOfOneForAll) {
  const problems::SeriesModel trend = problems::MaunaLoaModel();
  std::vector<double> y = problems::MaunaLoaCo2();
  const int64_t steps = 600, n = trend.state_size;
  y.resize(steps);
  const StateSpaceModel model = ModelOf(trend, steps);
  const auto repeat = [](const std::vector<double>& one, int64_t count) {
    std::vector<double> all;
    for (int64_t t = 0; t < count; ++t) all.insert(all.end(), one.begin(), one.end());
    return all;
  };
  const auto f = repeat(trend.transition, steps - 1),
             q = repeat(trend.transition_covariance, steps - 1);
  const auto h = repeat(trend.observation, steps), r = repeat(trend.observation_covariance, steps);
  StateSpaceModel long_model = model;
  long_model.transition = {f, true};
  long_model.transition_covariance = {q, true};
  long_model.observation = {h, true};
  long_model.observation_covariance = {r, true};
  const SmoothOptions options{
      .lag_one_covariances = true, .residuals = true, .num_samples = 3, .seed = 5};
  const auto expected = Connect().Smooth(model, y, options);
  ASSERT_TRUE(expected.ok()) << expected.status();
  EXPECT_EQ(expected->covariances.size(), static_cast<size_t>(n * n * steps));
  EXPECT_EQ(expected->samples.size(), static_cast<size_t>(n * steps * 3));
  // Cut anywhere, not even between numbers.
  for (const int64_t chunk : {4099, 1 << 20}) {
    const auto smoothed = Connect({.chunk_bytes = chunk}).Smooth(long_model, y, options);
    ASSERT_TRUE(smoothed.ok()) << smoothed.status();
    EXPECT_EQ(smoothed->means, expected->means);
    EXPECT_EQ(smoothed->covariances, expected->covariances);
    EXPECT_EQ(smoothed->lag_one_covariances, expected->lag_one_covariances);
    EXPECT_EQ(smoothed->samples, expected->samples);
    EXPECT_EQ(smoothed->log_likelihood, expected->log_likelihood);
  }
}

TEST_F(SmoothTest, WhatIsWrongIsNamed) {
  const SolverClient client = Connect();
  const auto field = [&](const StateSpaceModel& model, const std::vector<double>& y,
                         const SmoothOptions& options = {}) {
    const auto smoothed = client.Smooth(model, y, options);
    EXPECT_FALSE(smoothed.ok());
    const auto detail = GetInvalidField(smoothed.status());
    return detail ? detail->field() : std::string(smoothed.status().message());
  };
  const StateSpaceModel good = ModelOf(nile_, 100);
  EXPECT_EQ(field(good, std::vector<double>(99)), "observations");
  EXPECT_EQ(field(good, {}), "observations");
  StateSpaceModel model = good;
  model.num_steps = 0;
  EXPECT_EQ(field(model, Nile()), "num_steps");
  model = good;
  model.transition = {};
  EXPECT_EQ(field(model, Nile()), "transition");
  model = good;
  model.transition.per_step = true;
  EXPECT_EQ(field(model, Nile()), "transition");
  model = good;
  model.initial_mean = problems::NileFlow().first(1);
  EXPECT_EQ(field(model, Nile()), "initial_covariance");
  EXPECT_EQ(field(good, Nile(), {.num_samples = -1}), "header.options.num_samples");
  EXPECT_EQ(field(good, Nile(), {.lease = absl::Seconds(1)}), "header.options.lease");
  std::vector<double> infinite = Nile();
  infinite[4] = std::numeric_limits<double>::infinity();
  EXPECT_FALSE(client.Smooth(good, infinite).ok());
  EXPECT_TRUE(client.List()->empty());
}

TEST_F(SmoothTest, ACovarianceThatIsSingularIsNamed) {
  const std::vector<double> zero = {0};
  StateSpaceModel model = ModelOf(nile_, 100);
  model.transition_covariance.values = zero;
  // Its level is constant: a mean of all years and of what was known before.
  const auto constant = Connect().Smooth(model, Nile());
  ASSERT_TRUE(constant.ok()) << constant.status();
  EXPECT_NEAR(constant->means[0], constant->means[99], 1e-9);
  ASSERT_EQ(constant->systems.size(), 1);
  EXPECT_EQ(constant->systems[0].form(), v1::ORTHOGONAL);
  EXPECT_EQ(constant->systems[0].reason(), v1::SmoothedSystem::COVARIANCE_IS_SINGULAR);
  EXPECT_LE(constant->systems[0].means_error(), 1e-7);
  const absl::Status status = Connect().Smooth(model, Nile(), {.keep = true}).status();
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  const auto detail = GetSingularCovariance(status);
  ASSERT_TRUE(detail.has_value()) << status;
  EXPECT_EQ(detail->matrix(), "Q");
  EXPECT_EQ(detail->row(), 0);
}

TEST_F(SmoothTest, AFormMayBeAskedFor) {
  for (const auto form : {v1::INFORMATION, v1::ORTHOGONAL, v1::ORTHOGONAL_IN_DOUBLE_DOUBLE}) {
    const auto smoothed = Connect().Smooth(ModelOf(nile_, 100), Nile(), {.form = form});
    ASSERT_TRUE(smoothed.ok()) << smoothed.status();
    EXPECT_EQ(smoothed->systems[0].form(), form);
  }
}

// Any order, each one once; a local level's filter, as the textbook has it.
TEST_F(SmoothTest, OutputsAreAskedForByName) {
  const std::vector<double> y = Nile();
  const auto smoothed =
      Connect().Smooth(ModelOf(nile_, 100), y,
                       {.covariances = SmoothedCovariances::kVariances,
                        .outputs = {v1::INNOVATIONS, v1::FILTERED_MEANS, v1::INNOVATIONS,
                                    v1::FILTERED_COVARIANCES, v1::STATE_DISTURBANCES}});
  ASSERT_TRUE(smoothed.ok()) << smoothed.status();
  ASSERT_EQ(smoothed->outputs.size(), 4);
  EXPECT_EQ(smoothed->systems[0].reason(), v1::SmoothedSystem::HAS_OUTPUTS);
  double level = y[0], variance = problems::kNileObservationVariance;
  for (size_t t = 0; t < 100; ++t) {
    if (t > 0) {
      const double predicted = variance + problems::kNileLevelVariance;
      const double spread = predicted + problems::kNileObservationVariance;
      const double error = y[t] - level;
      EXPECT_NEAR(smoothed->outputs.at(v1::INNOVATIONS)[t], error / std::sqrt(spread), 1e-12);
      level += predicted / spread * error;
      variance = predicted * problems::kNileObservationVariance / spread;
      EXPECT_NEAR(smoothed->outputs.at(v1::STATE_DISTURBANCES)[t - 1],
                  smoothed->means[t] - smoothed->means[t - 1], 1e-9);
    }
    EXPECT_NEAR(smoothed->outputs.at(v1::FILTERED_MEANS)[t], level, 1e-9);
    EXPECT_NEAR(smoothed->outputs.at(v1::FILTERED_COVARIANCES)[t], variance, 1e-8);
  }
  EXPECT_TRUE(std::isnan(smoothed->outputs.at(v1::INNOVATIONS)[0]));  // diffuse
  EXPECT_EQ(smoothed->outputs.at(v1::STATE_DISTURBANCES).size(), 99);
}

TEST_F(SmoothTest, AStateThatNothingIsKnownOfFails) {
  const auto status =
      Connect().Smooth(ModelOf(nile_, 100), std::vector<double>(100, kMissing)).status();
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_NE(status.message().find("do not tell 1 direction"), absl::string_view::npos) << status;
  const auto why = GetNotSmoothable(status);
  ASSERT_TRUE(why.has_value()) << status;
  EXPECT_EQ(why->reason(), v1::NotSmoothable::NOT_IDENTIFIED);
  EXPECT_EQ(why->directions(), 1);
  EXPECT_TRUE(Connect().List()->empty());
}

class FakeSmoothTest : public ::testing::Test {
 protected:
  // Answers with these messages, after all of the request.
  void Answer(std::vector<v1::SmoothReply> replies) {
    fake_.on_smooth = [replies](FakeSolver::SmoothPipe* pipe) {
      for (v1::SmoothRequest request; pipe->Read(&request);) {
      }
      for (const v1::SmoothReply& reply : replies) pipe->Write(reply);
      return grpc::Status::OK;
    };
  }
  absl::StatusOr<SmoothResult> Smooth() {
    return (*SolverClient::Connect(fake_.target()))
        .Smooth(ModelOf(nile_, 2), y_, {.covariances = SmoothedCovariances::kNone});
  }
  static v1::SmoothReply Head() {
    v1::SmoothReply reply;
    reply.mutable_head()->set_num_systems(1);
    reply.mutable_head()->add_system_of_series(0);
    reply.mutable_head()->add_log_likelihood(-3);
    reply.mutable_head()->add_observed(2);
    reply.mutable_head()->set_means_bytes(16);
    reply.mutable_head()->add_system()->set_form(v1::ORTHOGONAL);
    return reply;
  }
  static v1::SmoothReply Chunk(size_t bytes) {
    v1::SmoothReply reply;
    reply.set_chunk(std::string(bytes, '\0'));
    return reply;
  }

  FakeSolver fake_;
  const problems::SeriesModel nile_ = problems::NileModel();
  const std::vector<double> y_ = {1120, 1160};
};

TEST_F(FakeSmoothTest, AGoodAnswerIsTaken) {
  Answer({Head(), Chunk(3), Chunk(0), Chunk(13)});
  const auto smoothed = Smooth();
  ASSERT_TRUE(smoothed.ok()) << smoothed.status();
  EXPECT_EQ(smoothed->means, (std::vector<double>{0, 0}));
  EXPECT_EQ(smoothed->log_likelihood, (std::vector<double>{-3}));
  ASSERT_EQ(smoothed->systems.size(), 1);
  EXPECT_EQ(smoothed->systems[0].form(), v1::ORTHOGONAL);
}

TEST_F(FakeSmoothTest, AnAnswerThatIsNoneIsInternal) {
  const auto with = [](auto change) {
    v1::SmoothReply reply = Head();
    change(*reply.mutable_head());
    return reply;
  };
  const std::vector<std::vector<v1::SmoothReply>> answers = {
      {},
      {Chunk(16)},
      {Head()},
      {Head(), Chunk(15)},
      {Head(), Chunk(17)},
      {Head(), Chunk(16), Chunk(1)},
      {Head(), Head(), Chunk(16)},
      {with([](auto& head) { head.set_means_bytes(int64_t{1} << 50); })},
      {with([](auto& head) { head.set_means_bytes(-16); })},
      {with([](auto& head) { head.set_covariances_bytes(16); }), Chunk(32)},
      {with([](auto& head) { head.set_num_systems(2); }), Chunk(16)},
      {with([](auto& head) { head.set_system_of_series(0, 1); }), Chunk(16)},
      {with([](auto& head) { head.clear_log_likelihood(); }), Chunk(16)},
      {with([](auto& head) { head.add_handle("h"); }), Chunk(16)},
      {with([](auto& head) { head.clear_system(); }), Chunk(16)},
      {with([](auto& head) { head.add_output_bytes(16); }), Chunk(32)},
  };
  for (size_t i = 0; i < answers.size(); ++i) {
    Answer(answers[i]);
    const auto smoothed = Smooth();
    EXPECT_TRUE(absl::IsInternal(smoothed.status())) << i << ": " << smoothed.status();
  }
}

}  // namespace
}  // namespace blockd::client
