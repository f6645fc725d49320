// Smooth calls of a core, and models for them.
#ifndef BLOCKD_TESTS_SERVER_SMOOTH_FIXTURE_H_
#define BLOCKD_TESTS_SERVER_SMOOTH_FIXTURE_H_

#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "tests/server/core_fixture.h"

namespace blockd::test {

inline constexpr double kMissing = std::numeric_limits<double>::quiet_NaN();

// A model and its arrays, of random numbers.
struct SmoothModel {
  struct Options {
    int64_t steps = 20, states = 3, observations = 2, series = 1;
    bool per_step = true;
    bool offsets = true;
    double missing = 0.2;  // of the elements
    double scale = 1;      // of Q
  };
  explicit SmoothModel(const Options& options, uint64_t seed = 1) : random(seed) {
    const int64_t n = options.states, ny = options.observations, steps = options.steps;
    const int64_t all = options.per_step ? steps : 1, moves = options.per_step ? steps - 1 : 1;
    f = Draw(moves * n * n, 0.6 / std::sqrt(static_cast<double>(n)));
    for (int64_t t = 0; t < moves; ++t) {
      for (int64_t i = 0; i < n; ++i) f[t * n * n + i * n + i] += 0.5;
    }
    h = Draw(all * ny * n, 1);
    q = Covariances(moves, n, options.scale);
    r = Covariances(all, ny, 1);
    p = Covariances(1, n, 2);
    m = Draw(n, 1);
    if (options.offsets) {
      c = Draw(moves * n, 1);
      d = Draw(all * ny, 1);
    }
    y = Draw(ny * steps * options.series, 2);
    std::uniform_real_distribution<double> uniform(0, 1);
    for (double& value : y) {
      if (uniform(random) < options.missing) value = kMissing;
    }
    params.num_steps = steps;
    params.state_size = n;
    params.observation_size = ny;
    params.num_series = options.series;
    if (steps > 1) {
      params.transition = {f, options.per_step};
      params.transition_covariance = {q, options.per_step};
      if (options.offsets) params.transition_offset = {c, options.per_step};
    }
    params.observation = {h, options.per_step};
    params.observation_covariance = {r, options.per_step};
    if (options.offsets) params.observation_offset = {d, options.per_step};
    params.initial_mean = m;
    params.initial_covariance = p;
    params.observations = y;
    params.covariances = server::SmoothedCovariances::kFull;
    params.lag_one = steps > 1;
    params.log_likelihood = true;
  }

  std::vector<double> Draw(int64_t count, double deviation) {
    std::normal_distribution<double> normal(0, deviation);
    std::vector<double> values(static_cast<size_t>(count));
    for (double& value : values) value = normal(random);
    return values;
  }
  // Dense, with NaN in no triangle, and of a moderate condition.
  std::vector<double> Covariances(int64_t count, int64_t n, double scale) {
    std::vector<double> all;
    for (int64_t k = 0; k < count; ++k) {
      const std::vector<double> g = Draw(n * n, 1);
      for (int64_t j = 0; j < n; ++j) {
        for (int64_t i = 0; i < n; ++i) {
          double sum = i == j ? 0.5 : 0;
          for (int64_t l = 0; l < n; ++l)
            sum += g[l * n + i] * g[l * n + j] / static_cast<double>(n);
          all.push_back(scale * sum);
        }
      }
    }
    return all;
  }

  std::mt19937_64 random;
  std::vector<double> f, q, h, r, c, d, m, p, y;
  server::SmoothParams params;
};

struct SmoothAnswer {
  absl::StatusOr<server::SmoothReply> reply = absl::UnknownError("none");
  std::vector<double> means, covariances, lag_one, residuals, samples;
};

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
inline std::unique_ptr<AskedSmooth> AskSmooth(server::SolverCore& core,
                                              const server::SmoothParams& params,
                                              const CallOptions& call = {},
                                              server::PostWork post = nullptr) {
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
  const server::SmoothResults results{answer.means, answer.covariances, answer.lag_one,
                                      answer.residuals, answer.samples};
  if (post == nullptr) {
    post = [asked = asked.get()](absl::AnyInvocable<void()> work) {
      absl::MutexLock lock(&asked->mutex);
      asked->posted.emplace_back(std::move(work));
    };
  }
  core.Smooth(asked->context, *measured, results, post, [asked = asked.get()](auto pending) {
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

}  // namespace blockd::test

#endif  // BLOCKD_TESTS_SERVER_SMOOTH_FIXTURE_H_
