// The threads that take what comes from a completion queue.
//
// gRPC 1.51 has one set of connections for the process, at which one thread looks at a time; when
// that one returns it wakes another to look on, and what it found may be for a third. While little
// comes one thread does alone: it is woken by what comes and nobody else is, and for `poll` after
// that it looks without sleeping (Patience). The others wait outside of gRPC. They join once it has
// worked for kCrowd without a look that finds nothing, or for most of some milliseconds where there
// is company: one caller that waits for each answer gains nothing from more threads. They leave
// when all of them together have taken less than a part of one processor for a while, and as well
// every now and then, to see whether one alone still is not enough: together they wake each other,
// so that what they take says little of what one would. They join also when it has been busy for
// kHeld and not come back: gRPC returns to nobody while a connection has more to read, whatever it
// reads. Where one is all there is to be, a second one waits for that alone.
//
// All that holds only while no other thread of the process waits in gRPC. Else it works, slower.
#ifndef BLOCKD_SERVER_TRANSPORT_SERVING_THREADS_H_
#define BLOCKD_SERVER_TRANSPORT_SERVING_THREADS_H_

#include <grpcpp/completion_queue.h>
#include <pthread.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace blockd::server {

class ServingThreads {
 public:
  static constexpr absl::Duration kCrowd = absl::Microseconds(250);
  static constexpr absl::Duration kHeld = absl::Milliseconds(50);

  // `take` has a tag of the queue, on any of `threads` threads, 1 or more. It must not block.
  // `company`: whether what came since it was asked last may have been of more than one.
  ServingThreads(int threads, absl::Duration poll, grpc::CompletionQueue* queue,
                 std::function<void(void* tag, bool ok)> take, std::function<bool()> company);
  ~ServingThreads();  // after the queue was shut down; takes what it still has

  // While it lives the calling thread, the only one of its queue, may do what takes long or waits:
  // after kHeld, or twice that, another one serves. False where threads share a queue, whose others
  // it would leave to do its work, and where that other one does it already.
  class Linger {
   public:
    Linger();
    ~Linger();
    Linger(const Linger&) = delete;
    Linger& operator=(const Linger&) = delete;
    explicit operator bool() const { return threads_ != nullptr; }

   private:
    ServingThreads* threads_;
  };

  // Whether all of them serve; else one does alone. For tests.
  bool together() const { return IsTogether(term_.load(std::memory_order_relaxed)); }
  // How often that changed. For tests.
  int64_t changes() const { return term_.load(std::memory_order_relaxed); }

 private:
  enum class End { kOver, kChange };
  // All serve in even terms, one does in odd ones.
  static constexpr bool IsTogether(int64_t term) { return term % 2 == 0; }

  void Serve(bool alone);
  End ServeAlone();
  End ServeTogether();
  // Whether the calling thread is to serve alone from now on, because little comes.
  bool LeaveOthers(absl::Time now);
  // False: it is over.
  bool AwaitCrowd();
  // Waits until all serve or it is over, and watches meanwhile whether the one that serves is held.
  void Watch() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Whether the one that serves alone has been busy since this was asked last and not come back.
  bool IsHeld() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void NextTerm() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Of the processor's, that all threads have taken so far.
  absl::Duration UsedSeconds() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const bool spare_;  // the second of two only helps where the other one is held
  const absl::Duration poll_;
  grpc::CompletionQueue* const queue_;
  const std::function<void(void* tag, bool ok)> take_;
  const std::function<bool()> company_;
  absl::Mutex mutex_;
  std::atomic<int64_t> term_;       // changes under the mutex
  std::atomic<int64_t> looks_ = 0;  // of those that served alone
  std::atomic<bool> lingers_ = false;
  bool over_ ABSL_GUARDED_BY(mutex_) = false;
  bool watched_ ABSL_GUARDED_BY(mutex_) = false;     // by one of those that wait
  int64_t looks_then_ ABSL_GUARDED_BY(mutex_) = -1;  // when IsHeld was asked
  int away_ ABSL_GUARDED_BY(mutex_) = 0;             // how often in a row it had not come back
  absl::Time window_ ABSL_GUARDED_BY(mutex_);        // since when UsedSeconds is looked at
  absl::Duration used_ ABSL_GUARDED_BY(mutex_);      // then
  absl::Time changed_ ABSL_GUARDED_BY(mutex_);       // the term
  absl::Duration most_ ABSL_GUARDED_BY(mutex_);      // that they serve together in one go
  std::vector<pthread_t> ids_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::thread> threads_;
};

}  // namespace blockd::server

#endif  // BLOCKD_SERVER_TRANSPORT_SERVING_THREADS_H_
