// When to try again, and when to give up: exponential backoff with jitter, within a deadline.
//
// Pure: time and randomness come from the caller. Not thread-safe; one object a call.
#ifndef BLOCKD_CLIENT_BACKOFF_H_
#define BLOCKD_CLIENT_BACKOFF_H_

#include <cstdint>
#include <functional>
#include <optional>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace blockd::client {

struct RetryOptions {
  int max_attempts = 5;  // the first one counts; 1: never retry
  absl::Duration initial_delay = absl::Milliseconds(50);
  absl::Duration max_delay = absl::Seconds(5);
  double multiplier = 2;  // of the delay, from one retry to the next
  // All calls of a client together: retries are at most this share of its calls, beyond a burst. So
  // a server in trouble gets no more work than it would have anyway. A burst of 0: never retry.
  double budget_ratio = 0.1;
  double budget_burst = 256;
};

// Sums over all calls of a client.
struct RetryCounters {
  int64_t retries = 0;
  int64_t over_budget = 0;  // calls that failed because the budget was used up
};

class RetryBudget;

class Backoff {
 public:
  // Starts with the call that it serves. `uniform` draws from [0, 1). `budget`, if there is one,
  // outlives this.
  Backoff(const RetryOptions& options, absl::Time deadline, std::function<double()> uniform,
          RetryBudget* budget = nullptr);

  // After an attempt that ended with `status` at `now`: how long to wait before the next one, or
  // nothing if the status is final: waiting does not help (errors.h), or attempts, time or budget
  // are used up. The delay that the server asks for is the least that is waited. It grows with
  // every refusal, and up to half of it comes on top by chance, so that callers do not return all
  // at once.
  std::optional<absl::Duration> Next(const absl::Status& status, absl::Time now);

  int attempts() const { return attempts_; }  // that have ended

 private:
  RetryOptions options_;
  absl::Time deadline_;
  std::function<double()> uniform_;
  RetryBudget* budget_;
  absl::Duration delay_;
  double growth_ = 1;  // of what the server asks for
  int attempts_ = 0;
};

}  // namespace blockd::client

#endif  // BLOCKD_CLIENT_BACKOFF_H_
