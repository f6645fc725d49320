// How factorizations make way for solves that run beside them on the same processors.
//
// They have threads of lower priority, which the system takes off a processor as soon as another
// thread of the server can run. Where processors are short, in a container with a quota, that is
// not enough: what they use counts against everybody. So they also pause where they can while a
// solve runs, as many of them as the solve has threads.
#ifndef BLOCKD_ENGINE_CPU_BACKGROUND_H_
#define BLOCKD_ENGINE_CPU_BACKGROUND_H_

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace blockd::cpu {

// Lowers the priority of the calling thread for good: to raise it again needs privileges.
void LowerPriority();

// The solve that runs now, of which there is one at a time.
class RunningSolve {
 public:
  // The longest time that a thread waits for one solve; then it shares the processors with it.
  static constexpr absl::Duration kLongestWait = absl::Milliseconds(50);

  // threads: of factorizations.
  explicit RunningSolve(int32_t threads) : shares_with_(threads, 0) {}

  // A solve that has so many threads runs, until the object goes; null: nothing.
  class Scope {
   public:
    Scope(RunningSolve* running, int64_t threads);
    ~Scope();
    Scope(const Scope&) = delete;

   private:
    RunningSolve* const running_;
  };

  // The factorization's thread of this number: waits for the end of the solve that runs, if that
  // has more threads than that, and of no other, so that it goes on between two solves.
  void MakeWay(int32_t thread);

 private:
  static constexpr uint32_t kMostThreads = 1024;

  std::atomic<uint32_t> state_{
      0};  // threads of the solve that runs, 0: none; + kMostThreads a solve
  std::vector<uint32_t> shares_with_;  // a state, each thread its own
  absl::Mutex mutex_;
  absl::CondVar ended_;
};

// A thread of low priority that runs calls for others.
class BackgroundThread {
 public:
  BackgroundThread();
  ~BackgroundThread();
  BackgroundThread(const BackgroundThread&) = delete;

  // Returns when call() has. By one thread at a time.
  void Run(absl::FunctionRef<void()> call);

 private:
  void Work();
  bool HasCall() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return call_ != nullptr || stop_; }
  bool HasNone() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return call_ == nullptr; }

  absl::Mutex mutex_;
  const absl::FunctionRef<void()>* call_ ABSL_GUARDED_BY(mutex_) = nullptr;
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace blockd::cpu

#endif  // BLOCKD_ENGINE_CPU_BACKGROUND_H_
