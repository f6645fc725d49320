// So much a second, and as much again at once. Thread-safe; time is an argument.
#ifndef BLOCKD_SERVER_BASE_TOKEN_BUCKET_H_
#define BLOCKD_SERVER_BASE_TOKEN_BUCKET_H_

#include <algorithm>
#include <cstdint>
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

  // Taken in the last second, whether there is a limit or not. It takes what was taken in each
  // second of the clock as spread evenly over it.
  double TakenOfLate(absl::Time now) const {
    absl::MutexLock lock(&mutex_);
    const int64_t second = absl::ToUnixSeconds(now);
    const double passed = absl::ToDoubleSeconds(now - absl::FromUnixSeconds(second));
    if (second == second_) return taken_ + taken_before_ * (1 - passed);
    return second == second_ + 1 ? taken_ * (1 - passed) : 0;
  }

  // Zero if `amount` was taken; else nothing was, and after so long it may be tried again.
  absl::Duration Take(double amount, absl::Time now) {
    absl::MutexLock lock(&mutex_);
    if (rate_ == std::numeric_limits<double>::infinity()) {
      Note(amount, now);
      return absl::ZeroDuration();
    }
    if (rate_ <= 0) return absl::InfiniteDuration();
    // Full after a second, and at the first time.
    if (now > last_) level_ = std::min(rate_, level_ + rate_ * absl::ToDoubleSeconds(now - last_));
    last_ = now;  // also where the clock was set back
    if (level_ <= 0) return absl::Seconds((1 - level_) / rate_);
    level_ -= amount;
    Note(amount, now);
    return absl::ZeroDuration();
  }

 private:
  void Note(double amount, absl::Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const int64_t second = absl::ToUnixSeconds(now);
    if (second > second_) {
      taken_before_ = second == second_ + 1 ? taken_ : 0;
      taken_ = 0;
      second_ = second;
    }
    taken_ += amount;
  }

  mutable absl::Mutex mutex_;
  double rate_ ABSL_GUARDED_BY(mutex_) = std::numeric_limits<double>::infinity();
  double level_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Time last_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();
  // In this second of the clock and in the one before it.
  int64_t second_ ABSL_GUARDED_BY(mutex_) = 0;
  double taken_ ABSL_GUARDED_BY(mutex_) = 0;
  double taken_before_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace blockd::server

#endif  // BLOCKD_SERVER_BASE_TOKEN_BUCKET_H_
