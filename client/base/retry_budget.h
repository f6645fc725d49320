// The retries that all calls of a client may make together: tokens, of which each call brings a
// share of one and each retry takes one. Internal to the client. Thread-safe.
#ifndef BLOCKD_CLIENT_BASE_RETRY_BUDGET_H_
#define BLOCKD_CLIENT_BASE_RETRY_BUDGET_H_

#include <algorithm>

#include "absl/synchronization/mutex.h"
#include "blockd/client/backoff.h"

namespace blockd::client {

class RetryBudget {
 public:
  // Full at first.
  explicit RetryBudget(const RetryOptions& options)
      : ratio_(options.budget_ratio), burst_(options.budget_burst), tokens_(burst_) {}

  void CountCall() {
    absl::MutexLock lock(&mutex_);
    tokens_ = std::min(tokens_ + ratio_, burst_);
  }

  // False where the budget is used up.
  bool TakeRetry() {
    absl::MutexLock lock(&mutex_);
    if (tokens_ < 1) {
      ++counters_.over_budget;
      return false;
    }
    tokens_ -= 1;
    ++counters_.retries;
    return true;
  }

  RetryCounters counters() const {
    absl::MutexLock lock(&mutex_);
    return counters_;
  }

 private:
  const double ratio_, burst_;
  mutable absl::Mutex mutex_;
  double tokens_ ABSL_GUARDED_BY(mutex_);
  RetryCounters counters_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace blockd::client

#endif  // BLOCKD_CLIENT_BASE_RETRY_BUDGET_H_
