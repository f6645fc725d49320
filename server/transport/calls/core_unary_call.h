// A unary call that carries a CoreCall.
#ifndef BLOCKD_SERVER_TRANSPORT_CALLS_CORE_UNARY_CALL_H_
#define BLOCKD_SERVER_TRANSPORT_CALLS_CORE_UNARY_CALL_H_

#include <memory>

#include "server/core/common/metrics.h"
#include "server/transport/calls/core_call.h"
#include "server/transport/rpc/server_call.h"

namespace blockd::server {

std::shared_ptr<ServerCall> MakeCoreUnaryCall(ServiceState* state, Method method,
                                              std::unique_ptr<IncomingCall> incoming,
                                              std::unique_ptr<CoreCall> call);

}  // namespace blockd::server

#endif  // BLOCKD_SERVER_TRANSPORT_CALLS_CORE_UNARY_CALL_H_
