// How factorizations make way for solves that need the same processors.
//
// While solves wait or run, some threads of the factorizations pause between tasks, and between the
// panels of a large block: one for each thread of the solves that run, and one while any is
// pending, for the threads that bring and answer it.
//
// Thread-safe, but for MakeWay: by one thread at a time for each number.
#ifndef BLOCKD_ENGINE_CPU_PENDING_SOLVES_H_
#define BLOCKD_ENGINE_CPU_PENDING_SOLVES_H_

#include <atomic>
#include <cstdint>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace blockd::cpu {

class PendingSolves {
 public:
  // A thread pauses at most so long at a stretch, and in the long run at most half of the time. So
  // solves without end slow a factorization down, and never stop it.
  static constexpr absl::Duration kLongestPause = absl::Milliseconds(50);

  // factor_threads: how many threads of factorizations make way, numbered from 0.
  explicit PendingSolves(int32_t factor_threads, absl::Duration longest_pause = kLongestPause)
      : longest_pause_(longest_pause), threads_(factor_threads, Thread{.left = longest_pause}) {}

  // So many callers more, or less, wait for a solve, from when they ask until they are answered.
  void Count(int32_t change);

  // A solve runs on so many threads until the object goes; null: factorizations do not make way.
  class Running {
   public:
    Running(PendingSolves* solves, int64_t threads);
    ~Running();
    Running(const Running&) = delete;

   private:
    PendingSolves* const solves_;
    const int32_t threads_;
  };

  // Called by the factorizations' thread of this number: pauses while solves want its processor.
  void MakeWay(int32_t thread);
  int32_t pausing() const {  // threads, now
    absl::MutexLock lock(&mutex_);
    return pausing_;
  }

 private:
  struct Thread {
    absl::Duration left;                      // that it may pause
    absl::Time since = absl::InfinitePast();  // its last pause
  };

  bool Want(int32_t thread) const {
    const int32_t callers = callers_.load(std::memory_order_relaxed) > 0 ? 1 : 0;
    return thread < running_.load(std::memory_order_relaxed) + callers;
  }
  void Wake();

  const absl::Duration longest_pause_;
  std::atomic<int32_t> callers_{0};
  std::atomic<int32_t> running_{0};  // threads of solves
  std::vector<Thread> threads_;      // each its own
  mutable absl::Mutex mutex_;        // guards going to sleep
  absl::CondVar fewer_;
  int32_t pausing_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace blockd::cpu

#endif  // BLOCKD_ENGINE_CPU_PENDING_SOLVES_H_
