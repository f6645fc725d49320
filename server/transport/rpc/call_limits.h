// How long a call may wait for its caller, as the options have it.
//
// Values; no thread is involved.
#ifndef BLOCKD_SERVER_TRANSPORT_RPC_CALL_LIMITS_H_
#define BLOCKD_SERVER_TRANSPORT_RPC_CALL_LIMITS_H_

#include "absl/time/time.h"
#include "server/options/options.h"
#include "server/transport/rpc/server_call.h"

namespace blockd::server {

CallLimits CallLimitsOf(const ServerOptions& options);

// How often all calls are looked at.
absl::Duration LookEvery(const ServerOptions& options);

}  // namespace blockd::server

#endif  // BLOCKD_SERVER_TRANSPORT_RPC_CALL_LIMITS_H_
