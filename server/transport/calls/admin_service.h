// The calls of blockd.v1.Admin: what who runs the server asks of it.
//
// They need the role ADMIN; those that change nothing, ADMIN or METRICS. Each leaves a line `audit`
// in the log, also where it is refused: who, what, on whose handles, and what came of it. Neither a
// rate nor the log's level leaves it out.
#ifndef BLOCKD_SERVER_TRANSPORT_CALLS_ADMIN_SERVICE_H_
#define BLOCKD_SERVER_TRANSPORT_CALLS_ADMIN_SERVICE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>

#include "absl/status/statusor.h"
#include "server/transport/rpc/call.h"
#include "server/transport/rpc/server_call.h"

namespace blockd::server {

// The effects of the calls on the process. Any thread may call them.
struct AdminActions {
  struct Reloaded {
    int64_t tenants = 0;   // that the file names
    bool changed = false;  // it says something else than before
  };
  std::function<void()> drain;  // begins, and returns at once
  std::function<absl::StatusOr<Reloaded>()> reload;
};

class AdminService {
 public:
  // `state` outlives it.
  AdminService(ServiceState* state, AdminActions actions)
      : state_(state), actions_(std::move(actions)) {}

  // Null if the call's method is none of this service, and `incoming` is as it was. This object
  // outlives the call.
  std::shared_ptr<ServerCall> MakeCall(std::unique_ptr<IncomingCall>* incoming) const;

  ServiceState* state() const { return state_; }
  const AdminActions& actions() const { return actions_; }

 private:
  ServiceState* const state_;
  const AdminActions actions_;
};

}  // namespace blockd::server

#endif  // BLOCKD_SERVER_TRANSPORT_CALLS_ADMIN_SERVICE_H_
