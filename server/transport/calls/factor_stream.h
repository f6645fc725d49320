// FactorStream: a header or a join, then chunks that are copied once, from where the transport
// holds them to the memory that the core has staged, several at a time.
#ifndef BLOCKD_SERVER_TRANSPORT_CALLS_FACTOR_STREAM_H_
#define BLOCKD_SERVER_TRANSPORT_CALLS_FACTOR_STREAM_H_

#include <memory>

#include "server/transport/rpc/call.h"
#include "server/transport/rpc/server_call.h"

namespace blockd::server {

// `state` outlives the call.
std::shared_ptr<ServerCall> MakeFactorStream(ServiceState* state,
                                             std::unique_ptr<IncomingCall> incoming);

}  // namespace blockd::server

#endif  // BLOCKD_SERVER_TRANSPORT_CALLS_FACTOR_STREAM_H_
