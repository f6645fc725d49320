// When to try again, and when to give up: exponential backoff with jitter, within a deadline.
//
// Pure: time and randomness come from the caller. Not thread-safe; one object a call.
#ifndef BLOCKD_CLIENT_BACKOFF_H_
#define BLOCKD_CLIENT_BACKOFF_H_

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
};

class Backoff {
 public:
  // `uniform` draws from [0, 1).
  Backoff(const RetryOptions& options, absl::Time deadline, std::function<double()> uniform);

  // After an attempt that ended with `status` at `now`: how long to wait before the next one, or
  // nothing if the status is final. Only UNAVAILABLE is tried again. The delay that the server asks
  // for is the least that is waited; the jitter comes on top, so that callers do not return all at
  // once.
  std::optional<absl::Duration> Next(const absl::Status& status, absl::Time now);

  int attempts() const { return attempts_; }  // that have ended

 private:
  RetryOptions options_;
  absl::Time deadline_;
  std::function<double()> uniform_;
  absl::Duration delay_;
  int attempts_ = 0;
};

}  // namespace blockd::client

#endif  // BLOCKD_CLIENT_BACKOFF_H_
