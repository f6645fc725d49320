// How factorizations make way for solves that need the same processors.
//
// While solves wait or run, some threads of the factorizations pause between tasks, and between the
// panels of a large block: as many as the solves that run have, and at least one, for the threads
// that bring and answer a solve. Threads without a task are counted among them. If there are
// others, that one lingers for a moment after the last solve, so that the next one finds a free
// processor: a pause that begins with the solve is late, for the thread that brings the solve must
// get a processor first. Any thread may be the one; they take turns.
//
// Thread-safe, but for MakeWay: by one thread at a time for each number.
#ifndef BLOCKD_ENGINE_CPU_THREADS_PENDING_SOLVES_H_
#define BLOCKD_ENGINE_CPU_THREADS_PENDING_SOLVES_H_

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <vector>

namespace blockd::cpu {

class PendingSolves {
 public:
  using Clock = std::chrono::steady_clock;

  struct Limits {
    // A thread pauses at most so long at a stretch, and in the long run at most half of the time.
    // So solves without end slow a factorization down, and never stop it.
    Clock::duration longest_pause = std::chrono::milliseconds(50);
    // After the last solve. Longer than the gap between the solves of a caller who asks again and
    // again.
    Clock::duration linger = std::chrono::milliseconds(3);
  };

  // factor_threads: how many threads of factorizations make way, numbered from 0. `working`, which
  // outlives this: how many of them have tasks.
  PendingSolves(int32_t factor_threads, const std::atomic<int32_t>& working)
      : PendingSolves(factor_threads, working, Limits()) {}
  PendingSolves(int32_t factor_threads, const std::atomic<int32_t>& working, const Limits& limits);

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
  int32_t pausing() const { return pausing_; }  // threads, now

 private:
  struct Thread {
    Clock::duration left;     // that it may pause
    Clock::time_point since;  // its last pause
  };

  Clock::time_point LingersUntil() const {
    return Clock::time_point(Clock::duration(answered_)) + linger_;
  }
  int32_t Wanted(Clock::time_point now) const;
  Clock::time_point NextLook(Clock::time_point now, Clock::time_point end) const;
  void Wake();

  const std::atomic<int32_t>& working_;
  const Clock::duration longest_pause_;
  const Clock::duration linger_;  // 0 if there is one thread: it would only wait
  std::atomic<int32_t> callers_{0};
  std::atomic<int32_t> running_{0};   // threads of solves
  std::atomic<Clock::rep> answered_;  // when a caller last was
  std::vector<Thread> threads_;       // each its own
  std::mutex mutex_;                  // guards going to sleep; Abseil's waits by the wall's clock
  std::condition_variable fewer_;
  std::atomic<int32_t> pausing_{0};  // changes under the mutex
};

}  // namespace blockd::cpu

#endif  // BLOCKD_ENGINE_CPU_THREADS_PENDING_SOLVES_H_
