// The threads that take what comes from a completion queue.
//
// gRPC 1.51 has one set of connections for the process, at which one thread looks at a time; when
// that one returns it wakes another to look on. So one thread serves alone, which for `poll` after
// something came looks without sleeping (Patience), and the others wait outside of gRPC: one caller
// that waits for each answer is served fastest so. All serve together for a while once the one that
// is alone has not found the queue empty for kCrowd, while it used a processor or took many events,
// or has not come back for kHeld: gRPC does not return while a connection has more to read,
// whatever it reads. (Time alone says nothing on a busy machine, nor processor time of a thread
// that waits for a device.)
//
// A caller is served fastest only while no other thread of the process waits in gRPC.
#ifndef BLOCKD_SERVER_TRANSPORT_RPC_SERVING_THREADS_H_
#define BLOCKD_SERVER_TRANSPORT_RPC_SERVING_THREADS_H_

#include <grpcpp/completion_queue.h>

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
  // They serve together for the shortest term, and for twice the last one where one alone was
  // enough for less than kEnough since then.
  static constexpr absl::Duration kShortestTerm = absl::Milliseconds(40);
  static constexpr absl::Duration kLongestTerm = absl::Milliseconds(640);
  static constexpr absl::Duration kEnough = absl::Milliseconds(100);

  // `take` has a tag of the queue, on any of `threads` threads, 2 or more. It must not block.
  ServingThreads(int threads, absl::Duration poll, grpc::CompletionQueue* queue,
                 std::function<void(void* tag, bool ok)> take);
  ~ServingThreads();  // after the queue was shut down; takes what it still has
  ServingThreads(const ServingThreads&) = delete;
  ServingThreads& operator=(const ServingThreads&) = delete;

  // True while all of them serve. For tests.
  bool together() const { return IsTogether(term_.load(std::memory_order_relaxed)); }

 private:
  static constexpr bool IsTogether(int64_t term) { return term % 2 == 0; }

  void Serve();
  void ServeAlone(int64_t term);  // until the term is over
  void ServeTogether(int64_t term, absl::Time end);
  void AwaitNextTerm(int64_t term) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // If it is still this one.
  void EndTerm(int64_t term) ABSL_LOCKS_EXCLUDED(mutex_);
  void EndTermLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void EndAll() ABSL_LOCKS_EXCLUDED(mutex_);

  const absl::Duration poll_;
  grpc::CompletionQueue* const queue_;
  const std::function<void(void* tag, bool ok)> take_;
  absl::Mutex mutex_;
  std::atomic<int64_t> term_ = 1;   // in even ones all serve; changes under the mutex
  std::atomic<int64_t> looks_ = 0;  // of those that served alone
  bool over_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Time began_ ABSL_GUARDED_BY(mutex_);                       // the term
  absl::Duration length_ ABSL_GUARDED_BY(mutex_) = kShortestTerm;  // when they serve together
  bool has_one_ ABSL_GUARDED_BY(mutex_) = false;                   // that serves alone in this term
  bool watched_ ABSL_GUARDED_BY(mutex_) = false;  // is that one, by one of those that wait
  std::vector<std::thread> threads_;
};

}  // namespace blockd::server

#endif  // BLOCKD_SERVER_TRANSPORT_RPC_SERVING_THREADS_H_
