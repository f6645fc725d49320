// A clock that stands still until a test moves it, or has said when it will.
#ifndef BLOCKD_TESTS_SERVER_BASE_FAKE_CLOCK_H_
#define BLOCKD_TESTS_SERVER_BASE_FAKE_CLOCK_H_

#include <algorithm>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "server/base/clock.h"

namespace blockd::test {

class FakeClock : public server::Clock {
 public:
  absl::Time Now() override {
    absl::MutexLock lock(&mutex_);
    if (looks_ > 0 && --looks_ == 0) now_ += jump_;
    return now_;
  }
  // From that look at it on it is so much later. Wakes nobody.
  void JumpAtLook(int64_t looks, absl::Duration jump) {
    absl::MutexLock lock(&mutex_);
    looks_ = looks;
    jump_ = jump;
  }

  bool WaitUntil(absl::Mutex* mutex, absl::CondVar* condition, absl::Time deadline) override {
    const Waiter waiter{mutex, condition, deadline};
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

  // Moves the time and wakes those whose deadline has come, and nobody else: who waits for too late
  // a time is not helped. What they wait on must outlive the call.
  void Advance(absl::Duration duration) {
    std::vector<Waiter> waiters;
    {
      absl::MutexLock lock(&mutex_);
      now_ += duration;
      for (const Waiter& waiter : waiters_) {
        if (waiter.deadline <= now_) waiters.push_back(waiter);
      }
    }
    for (const Waiter& waiter : waiters) {
      absl::MutexLock lock(waiter.mutex);  // a waiter that is on its way into Wait is in it now
      waiter.condition->SignalAll();
    }
  }

 private:
  struct Waiter {
    absl::Mutex* mutex;
    absl::CondVar* condition;
    absl::Time deadline;
    friend bool operator==(const Waiter&, const Waiter&) = default;
  };

  absl::Mutex mutex_;
  absl::Time now_ ABSL_GUARDED_BY(mutex_) = absl::FromUnixSeconds(1'000'000'000);
  int64_t looks_ ABSL_GUARDED_BY(mutex_) = 0;  // until it jumps; 0: it does not
  absl::Duration jump_ ABSL_GUARDED_BY(mutex_);
  std::vector<Waiter> waiters_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace blockd::test

#endif  // BLOCKD_TESTS_SERVER_BASE_FAKE_CLOCK_H_
