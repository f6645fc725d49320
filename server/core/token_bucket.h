// So much a second, and as much again at once. Thread-safe; time is an argument.
#ifndef BLOCKD_SERVER_CORE_TOKEN_BUCKET_H_
#define BLOCKD_SERVER_CORE_TOKEN_BUCKET_H_

#include <algorithm>
#include <limits>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace blockd::server {

// It may be overdrawn: whoever finds it above zero takes all that it needs, so that something
// larger than the bucket passes, and those after it wait for as long as it took too much.
class TokenBucket {
 public:
  // Infinity: no limit.
  void SetRate(double per_second) {
    absl::MutexLock lock(&mutex_);
    rate_ = per_second;
    level_ = std::min(level_, rate_);
  }

  double rate() const {
    absl::MutexLock lock(&mutex_);
    return rate_;
  }

  // Zero if `amount` was taken; else nothing was, and after so long it may be tried again.
  absl::Duration Take(double amount, absl::Time now) {
    absl::MutexLock lock(&mutex_);
    if (rate_ == std::numeric_limits<double>::infinity()) return absl::ZeroDuration();
    if (rate_ <= 0) return absl::InfiniteDuration();
    // Full after a second, and at the first time.
    if (now > last_) level_ = std::min(rate_, level_ + rate_ * absl::ToDoubleSeconds(now - last_));
    last_ = std::max(last_, now);
    if (level_ <= 0) return absl::Seconds((1 - level_) / rate_);
    level_ -= amount;
    return absl::ZeroDuration();
  }

 private:
  mutable absl::Mutex mutex_;
  double rate_ ABSL_GUARDED_BY(mutex_) = std::numeric_limits<double>::infinity();
  double level_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Time last_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();
};

}  // namespace blockd::server

#endif  // BLOCKD_SERVER_CORE_TOKEN_BUCKET_H_
