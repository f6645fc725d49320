// Smooth: a header, then chunks, copied to where the core reads them; a head, then chunks, from
// where the core wrote them.
#ifndef BLOCKD_SERVER_TRANSPORT_CALLS_SMOOTH_H_
#define BLOCKD_SERVER_TRANSPORT_CALLS_SMOOTH_H_

#include <memory>

#include "server/transport/rpc/call.h"
#include "server/transport/rpc/server_call.h"

namespace blockd::server {

// `state` outlives the call.
std::shared_ptr<ServerCall> MakeSmooth(ServiceState* state, std::unique_ptr<IncomingCall> incoming);

}  // namespace blockd::server

#endif  // BLOCKD_SERVER_TRANSPORT_CALLS_SMOOTH_H_
