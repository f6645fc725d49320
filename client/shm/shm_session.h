// The client's side of a shared-memory session: sends requests and takes their replies. Internal to
// the client.
//
// Thread-safe. Of the threads that wait one reads the ring for all; when it has its own reply,
// another one does. The reader looks for a bounded time, then sleeps on the session's socket. One
// of them is the session's own: it completes the requests that no thread waits for, starts with the
// first of these, and keeps the session until LetGo or its end.
#ifndef BLOCKD_CLIENT_SHM_SHM_SESSION_H_
#define BLOCKD_CLIENT_SHM_SHM_SESSION_H_

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "client/shm/shm_memory.h"
#include "proto/blockd/v1/shared_memory.h"

namespace blockd::client {

class ShmSession : public std::enable_shared_from_this<ShmSession> {
 public:
  // A request that no thread waits for. What is in it is the session's, with its mutex.
  struct Later;
  using LaterPtr = std::shared_ptr<Later>;
  // Gets the result as Call returns it; on the session's own thread.
  using Done = std::function<void(absl::StatusOr<v1::ShmReply>)>;

  struct Options {
    std::string path;  // of the socket
    uint64_t bytes = 0;
    std::string caller, token;
    absl::Duration poll;
    absl::Duration timeout;  // for the hello
  };
  // UNAVAILABLE if nobody listens there; what the server says if it refuses.
  static absl::StatusOr<std::shared_ptr<ShmSession>> Open(const Options& options);
  ~ShmSession();

  const std::shared_ptr<ShmMemory>& memory() const { return memory_; }
  // The server has ended it, or is gone, or does not answer.
  bool ended() const { return ended_.load(std::memory_order_acquire); }

  // Sends the request, whose id and timeout it sets, and waits for the reply, for as long as the
  // server has time and some seconds more. UNAVAILABLE once the session has ended.
  absl::StatusOr<v1::ShmReply> Call(v1::ShmRequest request, absl::Time deadline)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // The same without waiting: `done` is called once. Where all slots are taken it is sent when one
  // is free. UNAVAILABLE, and no `done`, once the session has ended.
  absl::StatusOr<LaterPtr> CallLater(const v1::ShmRequest& request, absl::Time deadline, Done done)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // It is not wanted any more: its answer, CANCELLED or not, comes as ever.
  void Cancel(const LaterPtr& later) ABSL_LOCKS_EXCLUDED(mutex_);
  // Nobody will call any more: its thread ends after the last answer.
  void LetGo() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  // Beyond its deadline, in which the server says that it has passed.
  static constexpr absl::Duration kPatience = absl::Seconds(20);

  // Who waits for the one that reads, or is it.
  struct Waiter {
    std::atomic<bool> done{false};
    bool asleep = false;
    absl::CondVar wake;
  };
  struct Pending : Waiter {
    uint64_t id = 0;
    v1::ShmReply reply;
    LaterPtr later;  // null: a thread waits
  };

  ShmSession(int socket, std::shared_ptr<ShmMemory> memory, absl::Duration poll);
  absl::StatusOr<Pending*> Send(v1::ShmRequest& request, absl::Time deadline)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // In a slot that is free.
  Pending& Put(v1::ShmRequest& request, absl::Time deadline) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void WakeServerIfAsleep();
  void FreeSlot(const Pending& answered) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Await(Waiter& mine, absl::Time until);
  // As the one that reads, until mine is done or the time is over.
  void Read(Waiter& mine, absl::Time spin_end, absl::Time until);
  bool TakeReplies() ABSL_LOCKS_EXCLUDED(mutex_);
  void Sleep(absl::Time until);
  void End(const std::string& why) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status EndStatus();
  bool StartReading();
  void StopReading() ABSL_LOCKS_EXCLUDED(mutex_);
  // Until it is done, or the time is over, or nobody reads.
  bool AwaitReader(Waiter& mine, absl::Time until) ABSL_LOCKS_EXCLUDED(mutex_);
  void WakeNextReader() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // shm_later.cc
  // RESOURCE_EXHAUSTED: it does not run, and the system has none.
  absl::Status WakeThread() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Run() ABSL_LOCKS_EXCLUDED(mutex_);  // the thread
  void PutLater(const LaterPtr& later) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Finish(LaterPtr later, absl::StatusOr<v1::ShmReply> reply)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Finishes requests whose answers nobody will hear: of an ended session, or late and unsent.
  void FinishHopeless() ABSL_LOCKS_EXCLUDED(mutex_);

  const int socket_;
  const std::shared_ptr<ShmMemory> memory_;
  const absl::Duration poll_;
  std::atomic<bool> ended_{false};
  std::atomic<bool> reading_{false};
  uint64_t replies_taken_ = 0;  // of the one that reads
  absl::Mutex mutex_;
  uint64_t sent_ ABSL_GUARDED_BY(mutex_) = 0;
  std::vector<Pending> pending_;                        // `slots`; a request has one of them
  int asleep_ ABSL_GUARDED_BY(mutex_) = 0;              // of them
  std::vector<uint32_t> free_ ABSL_GUARDED_BY(mutex_);  // indices
  absl::CondVar has_free_;
  std::string why_ ABSL_GUARDED_BY(mutex_);  // it ended

  Waiter thread_;  // done: some are finished
  absl::CondVar has_work_;
  bool runs_ ABSL_GUARDED_BY(mutex_) = false, let_go_ ABSL_GUARDED_BY(mutex_) = false;
  int laters_ ABSL_GUARDED_BY(mutex_) = 0;                  // that are not finished
  std::deque<LaterPtr> unsent_ ABSL_GUARDED_BY(mutex_);     // no slot was free
  std::vector<LaterPtr> finished_ ABSL_GUARDED_BY(mutex_);  // `done` is to be called
};

struct ShmSession::Later {
  v1::ShmRequest request;
  absl::Time deadline;
  Done done;
  uint64_t sent_id = 0;  // once it has a slot; none is 0
  bool is_over = false;  // answered
  absl::StatusOr<v1::ShmReply> reply;
};

}  // namespace blockd::client

#endif  // BLOCKD_CLIENT_SHM_SHM_SESSION_H_
