// Smooth calls of a core.
#ifndef BLOCKD_TESTS_SERVER_CORE_SMOOTH_SMOOTH_FIXTURE_H_
#define BLOCKD_TESTS_SERVER_CORE_SMOOTH_SMOOTH_FIXTURE_H_

#include <algorithm>
#include <cmath>
#include <memory>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "tests/server/core/core_fixture.h"
#include "tests/support/classical_smoother.h"
#include "tests/support/smooth_model.h"

namespace blockd::test {

struct SmoothAnswer {
  absl::StatusOr<server::SmoothReply> reply = absl::UnknownError("none");
  std::vector<double> means, covariances, lag_one, residuals, samples;
  std::vector<std::vector<double>> outputs;
};

// Nothing tells of its second state: neither the observations, nor anything known before.
inline SmoothModel UnseenState(int steps, int series) {
  SmoothModel model({.steps = steps,
                     .states = 2,
                     .observations = 1,
                     .series = series,
                     .per_step = false,
                     .offsets = false,
                     .missing = 0});
  model.f = model.q = {1, 0, 0, 1};
  model.h = {1, 0};
  model.params.diffuse = true;
  model.params.initial_mean = model.params.initial_covariance = {};
  return model;
}

// Holds what the call needs until it is answered.
struct AskedSmooth {
  SmoothAnswer answer;
  server::ContextPtr context = std::make_shared<server::RequestContext>();
  absl::Notification done;
  absl::Mutex mutex;
  std::vector<std::thread> posted ABSL_GUARDED_BY(mutex);
  ~AskedSmooth() {
    absl::MutexLock lock(&mutex);
    for (std::thread& thread : posted) thread.join();
  }
  const SmoothAnswer& Wait() {
    EXPECT_TRUE(done.WaitForNotificationWithTimeout(absl::Minutes(1)));
    return answer;
  }
};

// Without `post` each work has a thread of its own.
inline std::unique_ptr<AskedSmooth> AskSmooth(server::SolverCore& core, const SmoothParams& params,
                                              const CallOptions& call = {},
                                              server::PostWork post = nullptr,
                                              const server::KeepModel& kept = {}) {
  auto asked = std::make_unique<AskedSmooth>();
  asked->context->caller = call.caller;
  asked->context->deadline = call.deadline;
  const auto measured = server::MeasureSmooth(params, core.limits());
  if (!measured.ok()) {
    asked->answer.reply = measured.status();
    asked->done.Notify();
    return asked;
  }
  SmoothAnswer& answer = asked->answer;
  answer.means.resize(measured->sizes.means);
  answer.covariances.resize(measured->sizes.covariances);
  answer.lag_one.resize(measured->sizes.lag_one);
  answer.residuals.resize(measured->sizes.residuals);
  answer.samples.resize(measured->sizes.samples);
  server::SmoothResults results{answer.means,     answer.covariances, answer.lag_one,
                                answer.residuals, answer.samples,     {}};
  for (const int64_t size : measured->sizes.outputs) {
    answer.outputs.emplace_back(static_cast<size_t>(size));
  }
  results.outputs.assign(answer.outputs.begin(), answer.outputs.end());
  if (post == nullptr) {
    post = [asked = asked.get()](absl::AnyInvocable<void()> work) {
      absl::MutexLock lock(&asked->mutex);
      asked->posted.emplace_back(std::move(work));
    };
  }
  core.Smooth(asked->context, *measured, kept, results, post, [asked = asked.get()](auto pending) {
    if (pending.ok()) {
      asked->answer.reply = (*pending)->Finish();
    } else {
      asked->answer.reply = pending.status();
    }
    pending = absl::UnknownError("");
    asked->done.Notify();
  });
  return asked;
}

class SolverCoreSmoothTest : public CoreTest {
 protected:
  using Answer = SmoothAnswer;

  server::KeepModel kept_;
  std::unique_ptr<AskedSmooth> Ask(const SmoothParams& params) {
    return AskSmooth(*core_, params, {}, nullptr, kept_);
  }
  Answer Smooth(const SmoothParams& params) { return Ask(params)->Wait(); }

  // The largest error of a part, relative to the largest number of that part.
  static double Error(std::span<const double> values, const std::vector<long double>& expected) {
    EXPECT_EQ(values.size(), expected.size());
    long double error = 0, largest = 0;
    for (size_t i = 0; i < expected.size(); ++i) {
      error = std::max(error, std::abs(values[i] - expected[i]));
      largest = std::max(largest, std::abs(expected[i]));
      if (std::isnan(values[i])) error = 1;
    }
    return expected.empty() ? 0 : static_cast<double>(error / largest);
  }
  static void ExpectClassical(const SmoothParams& params, const Answer& answer, double tolerance,
                              long double diffuse_variance = 0) {
    ASSERT_TRUE(answer.reply.ok()) << answer.reply.status();
    const int64_t n = params.state_size, steps = params.num_steps;
    for (int64_t k = 0; k < params.num_series; ++k) {
      SCOPED_TRACE(k);
      // The 230 digits take too long for large models.
      const auto digits = n <= 8 ? ClassicalSmoother::Digits::k230 : ClassicalSmoother::Digits::k19;
      const ClassicalSmoother classical(params, k, diffuse_variance, digits);
      const int64_t s = answer.reply->system_of_series[k];
      EXPECT_LE(Error(std::span(answer.means).subspan(k * n * steps, n * steps), classical.means),
                tolerance);
      EXPECT_LE(Error(std::span(answer.covariances).subspan(s * n * n * steps, n * n * steps),
                      classical.covariances),
                tolerance);
      if (params.lag_one) {
        EXPECT_LE(
            Error(std::span(answer.lag_one).subspan(s * n * n * (steps - 1), n * n * (steps - 1)),
                  classical.lag_one),
            tolerance);
      }
      long double expected = classical.log_likelihood;
      if (diffuse_variance > 0) expected = classical.diffuse_log_likelihood;
      EXPECT_NEAR(answer.reply->log_likelihood[k], static_cast<double>(expected),
                  tolerance * std::max(1.0, std::abs(static_cast<double>(expected))));
    }
  }
};

}  // namespace blockd::test

#endif  // BLOCKD_TESTS_SERVER_CORE_SMOOTH_SMOOTH_FIXTURE_H_
