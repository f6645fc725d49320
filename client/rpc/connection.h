// The channels to one server, and what every call on them shares. Internal to the client.
//
// Thread-safe. Kept alive by the client, its handles, its sessions and its calls under way. Any
// thread may be the one that lets go last, a callback too, and so may the destructor of a static:
// nothing that a connection needs is destroyed before the process is gone.
#ifndef BLOCKD_CLIENT_RPC_CONNECTION_H_
#define BLOCKD_CLIENT_RPC_CONNECTION_H_

#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>

#include <functional>
#include <memory>
#include <string>
#include <type_traits>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "blockd/client/client_options.h"
#include "blockd/client/results.h"
#include "blockd/v1/blockd.grpc.pb.h"
#include "client/base/retry_budget.h"
#include "client/rpc/answer_queue.h"
#include "client/rpc/reconnection.h"
#include "client/shm/shm_link.h"

namespace blockd::client {

// Before anything is left to gRPC's own threads, which it keeps while there is a channel that had
// a callback. Whoever destroys the last such channel waits for those threads, which none of them
// can do. So one channel, which does nothing else, is never destroyed: the threads, and gRPC with
// them, stay until the process is gone. Not before that: they look at every connection too, and
// whoever waits for a call of its own then hears of its answer some 70 us later (one H200 machine,
// 16 processors: an empty call takes 160 us beside them and 90 us without).
void KeepCallbackThreads();

class Connection {
 public:
  static std::shared_ptr<Connection> Make(const std::string& target, const ClientOptions& options);

  const ClientOptions& options() const { return options_; }
  v1::Solver::Stub& stub() const { return *stub_; }
  // Large transfers have TCP connections of their own, so that a small Solve never waits behind
  // one: the first, and as many more as uploads go over.
  grpc::GenericStub& bulk(int channel = 0) const;
  // So has each session, which waits for nobody's transfers.
  std::unique_ptr<grpc::GenericStub> NewSessionStub() const;
  // Where its unary calls end.
  AnswerQueue& answers() const { return answers_; }
  // For the other services of the server.
  const std::shared_ptr<grpc::Channel>& channel() const { return channel_; }
  // Shared with the server; null: none. Opened before the first call.
  ShmLink* shared_memory() const { return shared_memory_.get(); }
  absl::Status OpenSharedMemory();
  // A unary call under way, whose Finish is for `answers`. `method`: of the Solver, or with a
  // leading slash a full name.
  template <typename Request>
  auto Start(grpc::ClientContext& context, const std::string& method,
             const Request& request) const {
    grpc::TemplatedGenericStub<Request, grpc::ByteBuffer> stub(channel_);
    auto call = stub.PrepareUnaryCall(&context, FullName(method), request, answers_.get());
    call->StartCall();
    return call;
  }
  // A unary call, of messages or of bytes, that the calling thread waits for as the options say.
  template <typename Request, typename Reply>
  grpc::Status Ask(grpc::ClientContext& context, const std::string& method, const Request& request,
                   Reply* reply) const {
    // gRPC ends the process of who sends more.
    if constexpr (requires { request.ByteSizeLong(); }) {
      if (request.ByteSizeLong() > kMostMessageBytes) return TooLarge(request.ByteSizeLong());
    }
    AnswerQueue::Awaited end;
    const auto call = Start(context, method, request);
    grpc::ByteBuffer received;
    grpc::Status status;
    call->Finish(&received, &status, answers_.TagOf(end));
    answers_.Await(end, poll_);
    if (!status.ok()) return status;
    if (!received.Valid()) return {grpc::StatusCode::UNIMPLEMENTED, "the server sent no message"};
    if constexpr (std::is_same_v<Reply, grpc::ByteBuffer>) {
      reply->Swap(&received);
      return status;
    } else {
      return grpc::SerializationTraits<Reply>::Deserialize(&received, reply);
    }
  }
  // One grpc.health.v1 Check of the whole server.
  absl::Status CheckHealth(grpc::ClientContext& context) const;
  bool WaitUntilConnected(absl::Time deadline);

  // Now plus the timeout, or plus the client's own where that is zero. A timeout of 30 years or
  // more is none.
  absl::Time Deadline(absl::Duration timeout) const;
  // `route`: of the handle that the call is about, if it has one.
  void Prepare(grpc::ClientContext& context, absl::Time deadline,
               const std::string& route = {}) const;
  // Calls until it succeeds, fails for good, or there is no time for another attempt. Blocks. `on`:
  // what the call is about. One that heals is not waited for where factoring again is what helps.
  absl::Status Retry(absl::Time deadline,
                     absl::FunctionRef<absl::Status(grpc::ClientContext&)> call,
                     const Factorization* on = nullptr) const;

  // The status of a call that nobody here has cancelled: ToStatusOfAnswer, and the proxy on the way
  // where no server may have been reached. Where nobody was there, has gRPC go on connecting.
  absl::Status EndOf(const absl::Status& status) const;

  // The budget that all retries take from, whoever makes them. Using it does not change the
  // connection.
  RetryBudget* retry_budget() const { return &retry_budget_; }

  // Gives one back on a thread that is there while there are any, without waiting; a failure is the
  // server's to mend (lease, eviction).
  static void ReleaseLater(const std::shared_ptr<Connection>& self, const Factorization& held);
  // False if some were still on their way after `limit`.
  bool AwaitReleases(absl::Duration limit);
  // Around a restoration, which may leave something to be released.
  void BeginRestore();
  void EndRestore();

  // The restorations of all handles that heal, together.
  void CountRestores(const RestoreCounters& more);
  RestoreCounters restore_counters();

 private:
  Connection(const std::string& target, const ClientOptions& options);
  static constexpr size_t kMostMessageBytes = (size_t{1} << 31) - 1;
  std::shared_ptr<grpc::Channel> NewChannel(const grpc::ChannelArguments& arguments) const;
  static std::string FullName(const std::string& method);
  static grpc::Status TooLarge(size_t bytes);
  void ReleaseAll() ABSL_LOCKS_EXCLUDED(mutex_);

  const std::string target_;
  const ClientOptions options_;
  const absl::Duration poll_;
  const std::string proxy_note_;
  mutable Reconnection reconnection_;
  AnswerQueue& answers_ = AnswerQueue::OfNextConnection();
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::Solver::Stub> stub_;
  std::unique_ptr<ShmLink> shared_memory_;
  mutable RetryBudget retry_budget_;
  mutable absl::Mutex mutex_;
  mutable std::vector<std::unique_ptr<grpc::GenericStub>> bulk_ ABSL_GUARDED_BY(mutex_);
  struct Held {
    std::string handle, route;
    absl::Time until;  // then it is the server's to mend
  };
  std::vector<Held> to_release_ ABSL_GUARDED_BY(mutex_);
  bool releasing_ ABSL_GUARDED_BY(mutex_) = false;  // somebody takes them
  int64_t releases_ ABSL_GUARDED_BY(mutex_) = 0;    // on their way, or to be expected
  RestoreCounters restores_ ABSL_GUARDED_BY(mutex_);
};

absl::Status ToStatus(const grpc::Status& status);
// The same for a call that nobody here has cancelled: where the server, or a router, ends it
// without an answer of its own, it is UNAVAILABLE.
absl::Status ToStatusOfAnswer(const absl::Status& status);
// `blockd-route` in what the call received; empty if there is none.
std::string RouteOf(const grpc::ClientContext& context);
// The status of a call that is not made because its deadline has passed. gRPC would make it: it
// rounds deadlines up to milliseconds.
absl::Status TimeIsOver();

}  // namespace blockd::client

#endif  // BLOCKD_CLIENT_RPC_CONNECTION_H_
