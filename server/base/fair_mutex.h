// A mutex whose holder can do long work in portions and let others in between them. Of absl::Mutex
// alone the one that has just released it takes it again before a thread that it has woken is
// there: who releases and locks in a loop keeps all others out for as long as the loop lasts.
#ifndef BLOCKD_SERVER_BASE_FAIR_MUTEX_H_
#define BLOCKD_SERVER_BASE_FAIR_MUTEX_H_

#include <atomic>
#include <cstdint>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace blockd::server {

// Thread-safe. Costs a thread that need not wait one attempt.
class ABSL_LOCKABLE FairMutex {
 public:
  void Lock() ABSL_EXCLUSIVE_LOCK_FUNCTION() {
    if (mutex_.TryLock()) return;
    std::atomic<int64_t>& waiting = waiting_[generation_.load() % 2];
    waiting.fetch_add(1);
    mutex_.Lock();
    waiting.fetch_sub(1);
  }
  void Unlock() ABSL_UNLOCK_FUNCTION() { mutex_.Unlock(); }

  // Without it, between two portions: returns when all who waited for it have had it, at once if
  // nobody did; after a second in any case.
  void LetOthersIn() ABSL_LOCKS_EXCLUDED(this);

  // Threads that wait for it now.
  int64_t waiting() const { return waiting_[0].load() + waiting_[1].load(); }

 private:
  absl::Mutex mutex_;
  // Who comes while others are let in is of the next generation: those are not waited for.
  std::atomic<uint64_t> generation_ = 0;
  std::atomic<int64_t> waiting_[2] = {0, 0};  // threads, by generation
};

class ABSL_SCOPED_LOCKABLE FairLock {
 public:
  explicit FairLock(FairMutex* mutex) ABSL_EXCLUSIVE_LOCK_FUNCTION(mutex) : mutex_(mutex) {
    mutex_->Lock();
  }
  ~FairLock() ABSL_UNLOCK_FUNCTION() { mutex_->Unlock(); }
  FairLock(const FairLock&) = delete;
  FairLock& operator=(const FairLock&) = delete;

 private:
  FairMutex* const mutex_;
};

}  // namespace blockd::server

#endif  // BLOCKD_SERVER_BASE_FAIR_MUTEX_H_
