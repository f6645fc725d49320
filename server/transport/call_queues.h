// The completion queues that calls arrive on and go on over, with a thread each, and the thread
// that looks from time to time whether a call waits for something too long.
//
// gRPC's callback API is not used for calls of ours: in 1.51 its threads are half as many as
// processors, and sleep 100 ms at a time once nothing has come for a second.
#ifndef BLOCKD_SERVER_TRANSPORT_CALL_QUEUES_H_
#define BLOCKD_SERVER_TRANSPORT_CALL_QUEUES_H_

#include <grpcpp/completion_queue.h>
#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/server_builder.h>

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_set.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "server/transport/server_call.h"

namespace blockd::server {

// Never null: a call of an unknown method is a call too.
using MakeCall = std::function<std::shared_ptr<ServerCall>(std::unique_ptr<IncomingCall>)>;
// A call was reset, by this peer in gRPC's words, before its message came. From any thread.
using OnReset = std::function<void(const std::string& peer)>;

// A completion queue and the threads that serve it.
class CallQueue {
 public:
  CallQueue(int threads, std::unique_ptr<grpc::ServerCompletionQueue> queue,
            grpc::AsyncGenericService* service, MakeCall make_call, OnReset on_reset);
  ~CallQueue();

  void Start();
  // Calls that have arrived and are not over.
  void Add(ServerCall* call);
  void Remove(ServerCall* call);
  void NoteReset(const std::string& peer) { on_reset_(peer); }
  void LookAtAll(absl::Time now, absl::Duration reply_timeout);
  // Whether there is a call, or was one since this was asked.
  bool WasBusy();
  void WaitForLastCall();
  void Stop();

 private:
  class Slot;
  void Serve();
  void OnSlotGone();

  const int num_threads_;
  const std::unique_ptr<grpc::ServerCompletionQueue> queue_;
  grpc::AsyncGenericService* const service_;
  const MakeCall make_call_;
  const OnReset on_reset_;
  std::vector<std::thread> threads_;
  absl::Mutex mutex_;
  int slots_ ABSL_GUARDED_BY(mutex_) = 0;  // that ask for calls
  absl::flat_hash_set<ServerCall*> calls_ ABSL_GUARDED_BY(mutex_);
  bool came_ ABSL_GUARDED_BY(mutex_) = false;  // a call, since WasBusy was asked
};

class CallQueues {
 public:
  // So many threads, two on a queue. Few serve more calls than many: all look at one set of
  // connections in turn, and the one that finds an event wakes the next (server/README.md has
  // figures, and those of gRPC's callback API). A call ends whose client has not taken its reply
  // for `reply_timeout`; calls are looked at every `look_every`, and `also` is called each time.
  CallQueues(int threads, absl::Duration reply_timeout, absl::Duration look_every,
             MakeCall make_call, OnReset on_reset, std::function<void()> also);
  ~CallQueues();  // stops

  // Before the server is built; then Start.
  void AddTo(grpc::ServerBuilder* builder);
  void Start();
  // After the server has shut down: returns once every call that has arrived is counted as one.
  void WaitForLastCall();
  // After that, when all calls are over.
  void Stop();

 private:
  const int threads_;
  const absl::Duration reply_timeout_, look_every_;
  const MakeCall make_call_;
  const OnReset on_reset_;
  const std::function<void()> also_;
  grpc::AsyncGenericService service_;
  std::vector<std::unique_ptr<CallQueue>> queues_;
  absl::Notification stopping_;
  std::thread looking_;
};

}  // namespace blockd::server

#endif  // BLOCKD_SERVER_TRANSPORT_CALL_QUEUES_H_
