// The channels to one server, and what every call on them shares. Internal to the client.
//
// Thread-safe. Kept alive by the client, its handles, its sessions and its calls under way. Any
// thread may be the one that lets go last, a callback too, and so may the destructor of a static:
// nothing that a connection needs is destroyed before the process is gone.
#ifndef BLOCKD_CLIENT_CONNECTION_H_
#define BLOCKD_CLIENT_CONNECTION_H_

#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>

#include <functional>
#include <memory>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "blockd/client/client_options.h"
#include "blockd/client/results.h"
#include "blockd/v1/blockd.grpc.pb.h"
#include "client/retry_budget.h"

namespace blockd::client {

class Connection {
 public:
  static std::shared_ptr<Connection> Make(const std::string& target, const ClientOptions& options);

  const ClientOptions& options() const { return options_; }
  v1::Solver::Stub& stub() const { return *stub_; }
  // Large transfers have a TCP connection of their own, so that a small Solve never waits behind
  // one.
  grpc::GenericStub& bulk() const { return *bulk_; }
  // So has each session, which waits for nobody's transfers.
  std::unique_ptr<grpc::GenericStub> NewSessionStub() const;
  // For the other services of the server.
  const std::shared_ptr<grpc::Channel>& channel() const { return channel_; }
  // One grpc.health.v1 Check of the whole server.
  absl::Status CheckHealth(grpc::ClientContext& context) const;
  bool WaitUntilConnected(absl::Time deadline);

  // Now plus the timeout, or plus the client's own where that is zero.
  absl::Time Deadline(absl::Duration timeout) const;
  // `route`: of the handle that the call is about, if it has one.
  void Prepare(grpc::ClientContext& context, absl::Time deadline,
               const std::string& route = {}) const;
  // Calls until it succeeds, fails for good, or there is no time for another attempt. Blocks. `on`:
  // what the call is about. One that heals is not waited for where factoring again is what helps.
  absl::Status Retry(absl::Time deadline,
                     absl::FunctionRef<absl::Status(grpc::ClientContext&)> call,
                     const Factorization* on = nullptr) const;

  // What retries take from, whoever makes them. It does not change the connection.
  RetryBudget* retry_budget() const { return &retry_budget_; }

  // Gives one back without waiting; a failure is the server's to mend (lease, eviction).
  static void ReleaseLater(const std::shared_ptr<Connection>& self, const Factorization& held);
  // False if some were still on their way after `limit`.
  bool AwaitReleases(absl::Duration limit);
  // Around a restoration, which may leave something to be released.
  void BeginRestore();
  void EndRestore();

  // Of all handles that heal.
  void CountRestores(const RestoreCounters& more);
  RestoreCounters restore_counters();

 private:
  Connection(const std::string& target, const ClientOptions& options);

  const std::string target_;
  const ClientOptions options_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::Solver::Stub> stub_;
  std::unique_ptr<grpc::GenericStub> bulk_;
  mutable RetryBudget retry_budget_;
  absl::Mutex mutex_;
  int64_t releases_ ABSL_GUARDED_BY(mutex_) = 0;  // on their way, or to be expected
  RestoreCounters restores_ ABSL_GUARDED_BY(mutex_);
};

absl::Status ToStatus(const grpc::Status& status);
// The same for a call that nobody here has cancelled: where the server, or a router, ends it
// without an answer of its own, it is UNAVAILABLE.
absl::Status ToStatusOfAnswer(const absl::Status& status);
// `blockd-route` in what the call received; empty if there is none.
std::string RouteOf(const grpc::ClientContext& context);
// What a call says that is not made because its deadline has passed. gRPC would make it: it rounds
// deadlines up to milliseconds.
absl::Status TimeIsOver();
double UniformRandom();  // from [0, 1)
std::string RandomBytes(size_t count);

}  // namespace blockd::client

#endif  // BLOCKD_CLIENT_CONNECTION_H_
