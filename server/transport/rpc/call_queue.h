// The completion queues that calls arrive on and go on over, with their threads, and the thread
// that looks from time to time whether a call waits for something too long.
//
// gRPC's callback API is not used for calls of ours: in 1.51 its threads are half as many as
// processors, and sleep 100 ms at a time once nothing has come for a second.
#ifndef BLOCKD_SERVER_TRANSPORT_RPC_CALL_QUEUE_H_
#define BLOCKD_SERVER_TRANSPORT_RPC_CALL_QUEUE_H_

#include <grpcpp/completion_queue.h>
#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/server_builder.h>

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_set.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "server/base/steady_time.h"
#include "server/transport/rpc/server_call.h"
#include "server/transport/rpc/serving_threads.h"
#include "server/transport/rpc/waiting_calls.h"

namespace blockd::server {

// Never null: a call of an unknown method is a call too.
using MakeCall = std::function<std::shared_ptr<ServerCall>(std::unique_ptr<IncomingCall>)>;

class CallQueue {
 public:
  struct Options {
    // Few serve more calls than many: all look at one set of connections in turn, and the one that
    // finds an event wakes the next (server/transport/README.md has figures, and those of gRPC's
    // callback API).
    int threads = 2;
    // Each has a part of the connections and of the threads.
    int queues = 1;
    absl::Duration poll;  // as of ServingThreads
    CallLimits limits;
    absl::Duration look_every;  // at all calls
    MakeCall make_call;
    // A call was reset, by this peer in gRPC's words, before its message came. From any thread.
    std::function<void(const std::string& peer)> on_reset;
    WaitingCalls::IsIdentified is_identified;
    std::function<void()> also;  // whenever calls are looked at
  };
  explicit CallQueue(Options options);
  ~CallQueue();  // stops

  // Before the server is built; then Start.
  void AddTo(grpc::ServerBuilder* builder);
  void Start();
  // After the server has shut down: returns once every call that has arrived is counted as one.
  void WaitForLastCall();
  // After that, when all calls are over.
  void Stop();

  // Calls that have arrived and are not over.
  void Add(ServerCall* call);
  void Remove(ServerCall* call);
  WaitingCalls& waiting() { return waiting_; }
  void EndOneTooMany(const ServerCall& call);  // of the same peer
  void NoteReset(const std::string& peer) { options_.on_reset(peer); }

 private:
  class Slot;
  void OnSlotGone();
  void LookLoop();
  void LookAtAll(absl::Time now);
  static void EndTaken(const WaitingCalls::Taken& taken);
  // Counts it as work, and hands it on.
  void Take(void* tag, bool ok);

  const Options options_;
  grpc::AsyncGenericService service_;
  std::vector<std::unique_ptr<grpc::ServerCompletionQueue>> queues_;
  WaitingCalls waiting_;
  absl::Mutex mutex_;
  int slots_ ABSL_GUARDED_BY(mutex_) = 0;  // that ask for calls
  absl::flat_hash_set<ServerCall*> calls_ ABSL_GUARDED_BY(mutex_);
  std::atomic<bool> worked_ = false;  // since somebody looked
  SteadyEvent stopping_;
  std::thread looking_;
  std::vector<std::unique_ptr<ServingThreads>> serving_;
};

}  // namespace blockd::server

#endif  // BLOCKD_SERVER_TRANSPORT_RPC_CALL_QUEUE_H_
