// grpc.reflection.v1 and v1alpha, whose messages are the same, on the threads of all other calls.
// gRPC's own service of it has threads beside them (health.h).
//
// Thread-safe.
#ifndef BLOCKD_SERVER_TRANSPORT_CALLS_REFLECTION_H_
#define BLOCKD_SERVER_TRANSPORT_CALLS_REFLECTION_H_

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "server/transport/rpc/call_tracker.h"
#include "server/transport/rpc/executor.h"
#include "server/transport/rpc/server_call.h"

namespace blockd::server {

class Reflection {
 public:
  // Lists `services`, and describes everything that the process has a descriptor of. `work`
  // outlives the calls.
  Reflection(std::vector<std::string> services, Executor* work)
      : services_(std::move(services)), work_(work) {}

  // Null, and `incoming` as it was, if the method is another one. This outlives the call. No drain
  // waits for such calls.
  std::shared_ptr<ServerCall> MakeCall(std::string_view method,
                                       std::unique_ptr<IncomingCall>* incoming);
  // As of HealthBoard.
  bool AwaitCalls(absl::Duration timeout) { return calls_.WaitUntilIdle(timeout); }

 private:
  class Call;

  const std::vector<std::string> services_;
  Executor* const work_;
  CallTracker calls_;
};

}  // namespace blockd::server

#endif  // BLOCKD_SERVER_TRANSPORT_CALLS_REFLECTION_H_
