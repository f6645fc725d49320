// The calls SelectedInverse and Sample.
#ifndef BLOCKD_SERVER_TRANSPORT_CALLS_INVERSE_H_
#define BLOCKD_SERVER_TRANSPORT_CALLS_INVERSE_H_

#include <memory>

#include "server/transport/rpc/call.h"
#include "server/transport/rpc/server_call.h"

namespace blockd::server {

std::shared_ptr<ServerCall> MakeSelectedInverse(ServiceState* state,
                                                std::unique_ptr<IncomingCall> incoming);
std::shared_ptr<ServerCall> MakeSample(ServiceState* state, std::unique_ptr<IncomingCall> incoming);

}  // namespace blockd::server

#endif  // BLOCKD_SERVER_TRANSPORT_CALLS_INVERSE_H_
