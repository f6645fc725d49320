// Which finished requests are worth a line in the log: so many a second, and as many failures
// beside them, so that a flood of one does not hide the other. Time is an argument. Thread-safe.
#ifndef BLOCKD_SERVER_LOG_REQUEST_SAMPLER_H_
#define BLOCKD_SERVER_LOG_REQUEST_SAMPLER_H_

#include <algorithm>
#include <cstdint>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace blockd::server {

class RequestSampler {
 public:
  explicit RequestSampler(int64_t lines_per_second) : rate_(lines_per_second) {}

  // True if this request is logged; else it is counted.
  bool Admit(bool succeeded, absl::Time now) {
    absl::MutexLock lock(&mutex_);
    Budget& budget = succeeded ? successes_ : failures_;
    const auto rate = static_cast<double>(rate_);
    if (now > budget.since) {
      budget.lines =
          std::min(rate, budget.lines + rate * absl::ToDoubleSeconds(now - budget.since));
      budget.since = now;
    }
    if (budget.lines >= 1) {
      budget.lines -= 1;
      return true;
    }
    ++left_out_;
    ++left_out_ever_;
    return false;
  }

  // How many were left out since this was last asked and answered, at most once a second; else 0.
  int64_t TakeLeftOut(absl::Time now) {
    absl::MutexLock lock(&mutex_);
    if (left_out_ == 0 || now - said_ < absl::Seconds(1)) return 0;
    said_ = now;
    return std::exchange(left_out_, 0);
  }

  int64_t left_out_ever() const {
    absl::MutexLock lock(&mutex_);
    return left_out_ever_;
  }

 private:
  // A second's lines at most are saved up.
  struct Budget {
    double lines = 0;
    absl::Time since = absl::UnixEpoch();
  };

  const int64_t rate_;
  mutable absl::Mutex mutex_;
  Budget successes_ ABSL_GUARDED_BY(mutex_), failures_ ABSL_GUARDED_BY(mutex_);
  int64_t left_out_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t left_out_ever_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Time said_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();
};

}  // namespace blockd::server

#endif  // BLOCKD_SERVER_LOG_REQUEST_SAMPLER_H_
