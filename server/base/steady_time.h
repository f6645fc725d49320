// The time since the process began by a clock that nobody sets, added to what the wall said then.
// All durations and deadlines of the server are of it: whoever sets the machine's clock ends no
// lease and lengthens none. Times from elsewhere are taken over by what is left until them.
#ifndef BLOCKD_SERVER_BASE_STEADY_TIME_H_
#define BLOCKD_SERVER_BASE_STEADY_TIME_H_

#include <chrono>
#include <condition_variable>
#include <mutex>

#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace blockd::server {

inline absl::Time SteadyNow() {
  const auto steady = [] { return std::chrono::steady_clock::now().time_since_epoch(); };
  static const absl::Time zero = absl::Now() - absl::FromChrono(steady());
  return zero + absl::FromChrono(steady());
}

// Happens once. Who waits for it waits so long, whatever the wall's clock says.
class SteadyEvent {
 public:
  void Notify() {
    const std::lock_guard lock(mutex_);
    notified_ = true;
    changed_.notify_all();
  }
  // False if it has not happened by then.
  bool WaitFor(absl::Duration timeout) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, absl::ToChronoNanoseconds(timeout),
                             [this] { return notified_; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool notified_ = false;
};

// The time of the wall's clock as SteadyNow will say it.
inline absl::Time ToSteady(absl::Time wall) {
  const absl::Time now = SteadyNow();
  return now + (wall - absl::Now());
}

}  // namespace blockd::server

#endif  // BLOCKD_SERVER_BASE_STEADY_TIME_H_
