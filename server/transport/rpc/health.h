// grpc.health.v1.Health, on the threads that serve all other calls. gRPC's own service of it has
// threads beside them, which look at every connection too: each call then waits for one thread to
// wake another (README).
//
// Thread-safe.
#ifndef BLOCKD_SERVER_TRANSPORT_RPC_HEALTH_H_
#define BLOCKD_SERVER_TRANSPORT_RPC_HEALTH_H_

#include <memory>
#include <string>
#include <string_view>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "server/transport/rpc/call_tracker.h"
#include "server/transport/rpc/server_call.h"

namespace blockd::server {

inline constexpr char kHealthServiceName[] = "grpc.health.v1.Health";

class HealthBoard {
 public:
  // HealthCheckResponse.ServingStatus.
  enum class Status { kServing = 1, kNotServing = 2, kServiceUnknown = 3 };

  // "": the whole server. Whoever watches is told.
  void Set(const std::string& service, bool serving);
  Status StatusOf(const std::string& service);

  // Check or Watch; null, and `incoming` as it was, if the method is neither. The board outlives
  // the call. No drain waits for those that watch: they end when they are cancelled.
  std::shared_ptr<ServerCall> MakeCall(std::string_view method,
                                       std::unique_ptr<IncomingCall>* incoming);
  // Waits until all calls have ended, those that watch too; false: not in time. Before the queues
  // that they ask things of are shut down.
  bool AwaitCalls(absl::Duration timeout) { return calls_.WaitUntilIdle(timeout); }

 private:
  class CheckCall;
  class WatchCall;

  CallTracker calls_;
  absl::Mutex mutex_;
  absl::flat_hash_map<std::string, Status> statuses_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<WatchCall*, std::weak_ptr<WatchCall>> watching_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace blockd::server

#endif  // BLOCKD_SERVER_TRANSPORT_RPC_HEALTH_H_
