// Where the ends of unary calls come. Internal to the client.
//
// gRPC 1.51 has one set of connections for the process. One of the threads that wait in it looks at
// them, and wakes another to look on whenever it has found something. So one thread a queue waits
// in gRPC, for all calls of the queue: one of those who wait for a call, which takes what comes for
// others until its own call has ended, and then leaves that to the next. They wait outside of gRPC.
// Calls that nobody waits for (SolveAsync) have a thread of their own, which takes its turn while
// there are any.
//
// Thread-safe.
#ifndef BLOCKD_CLIENT_RPC_ANSWER_QUEUE_H_
#define BLOCKD_CLIENT_RPC_ANSWER_QUEUE_H_

#include <grpcpp/completion_queue.h>

#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace blockd::client {

// While it lives, one more of the threads of this process that wait in gRPC; those of its callbacks
// count too.
class WaitsInGrpc {
 public:
  WaitsInGrpc();
  ~WaitsInGrpc();
  WaitsInGrpc(const WaitsInGrpc&) = delete;
  WaitsInGrpc& operator=(const WaitsInGrpc&) = delete;
  static int count();
};

class AnswerQueue {
 public:
  // Something that comes once.
  class Event {
   protected:
    explicit Event(bool awaited) : awaited_(awaited) {}
    ~Event() = default;

   private:
    friend class AnswerQueue;
    const bool awaited_;
    bool ok_ = false;
  };
  // A call whose caller waits for it.
  class Awaited : public Event {
   public:
    Awaited() : Event(/*awaited=*/true) {}

   private:
    friend class AnswerQueue;
    // Under the queue's mutex.
    bool come_ = false;
    bool leads_ = false;  // it is this one's turn to wait in gRPC
    absl::CondVar woken_;
  };
  // One that nobody waits for. `Come` runs on the queue's thread for these, one after another, and
  // may destroy it. Who waits for a call of the queue does not wait for that.
  class Later : public Event {
   public:
    virtual void Come(bool ok) = 0;

   protected:
    Later() : Event(/*awaited=*/false) {}
    ~Later() = default;
  };

  // One of the process's, which are never destroyed; connections have them in turn.
  static AnswerQueue& OfNextConnection();
  static int count();  // how many there are, once there is a connection

  grpc::CompletionQueue* get() { return &queue_; }
  // The tag to give to gRPC before the call starts.
  void* TagOf(Awaited& call);
  void* TagOf(Later& call);
  // Before the first Later. RESOURCE_EXHAUSTED: the system has no thread for them.
  absl::Status ServeLater();
  // Returns when it has come. Looks for it up to `poll` before it sleeps, as long as no other
  // thread of the process WaitsInGrpc.
  void Await(Awaited& call, absl::Duration poll);

 private:
  AnswerQueue() = default;
  void RunLater();
  // Runs on the thread whose turn it is: takes what comes until `own` has come or, where `own` is
  // null, until a Later has.
  void Lead(const Awaited* own, absl::Duration poll);
  // Looks before it sleeps until then, if it is the only one of the process.
  Event& Next(absl::Time look_until);
  void Deliver(Event& event);
  // Ends the turn.
  void PassOn() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  grpc::CompletionQueue queue_;
  absl::Mutex mutex_;
  bool led_ ABSL_GUARDED_BY(mutex_) = false;  // somebody waits in gRPC
  std::vector<Awaited*> waiting_ ABSL_GUARDED_BY(mutex_);
  bool serves_later_ ABSL_GUARDED_BY(mutex_) = false;  // there is a thread for them
  int expected_ ABSL_GUARDED_BY(mutex_) = 0;           // Later, to come
  std::vector<Later*> later_ ABSL_GUARDED_BY(mutex_);  // have come
  absl::CondVar thread_for_later_;
};

}  // namespace blockd::client

#endif  // BLOCKD_CLIENT_RPC_ANSWER_QUEUE_H_
