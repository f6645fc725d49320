// A clock that stands still until a test moves it.
#ifndef BLOCKD_TESTS_SERVER_FAKE_CLOCK_H_
#define BLOCKD_TESTS_SERVER_FAKE_CLOCK_H_

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "server/core/clock.h"

namespace blockd::test {

class FakeClock : public server::Clock {
 public:
  absl::Time Now() override {
    absl::MutexLock lock(&mutex_);
    return now_;
  }

  bool WaitUntil(absl::Mutex* mutex, absl::CondVar* condition, absl::Time deadline) override {
    const std::pair<absl::Mutex*, absl::CondVar*> waiter(mutex, condition);
    {
      absl::MutexLock lock(&mutex_);
      if (now_ >= deadline) return true;
      waiters_.push_back(waiter);
    }
    condition->Wait(mutex);
    absl::MutexLock lock(&mutex_);
    waiters_.erase(std::find(waiters_.begin(), waiters_.end(), waiter));
    return now_ >= deadline;
  }

  // Moves the time and wakes everybody who waits. What they wait on must outlive the call.
  void Advance(absl::Duration duration) {
    std::vector<std::pair<absl::Mutex*, absl::CondVar*>> waiters;
    {
      absl::MutexLock lock(&mutex_);
      now_ += duration;
      waiters = waiters_;
    }
    for (const auto& [mutex, condition] : waiters) {
      absl::MutexLock lock(mutex);  // a waiter that is on its way into Wait is in it now
      condition->SignalAll();
    }
  }

 private:
  absl::Mutex mutex_;
  absl::Time now_ ABSL_GUARDED_BY(mutex_) = absl::FromUnixSeconds(1'000'000'000);
  std::vector<std::pair<absl::Mutex*, absl::CondVar*>> waiters_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace blockd::test

#endif  // BLOCKD_TESTS_SERVER_FAKE_CLOCK_H_
