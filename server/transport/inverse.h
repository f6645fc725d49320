// The calls SelectedInverse and Sample.
#ifndef BLOCKD_SERVER_TRANSPORT_INVERSE_H_
#define BLOCKD_SERVER_TRANSPORT_INVERSE_H_

#include <memory>

#include "server/transport/call.h"
#include "server/transport/server_call.h"

namespace blockd::server {

std::shared_ptr<ServerCall> MakeSelectedInverse(ServiceState* state,
                                                std::unique_ptr<IncomingCall> incoming);
std::shared_ptr<ServerCall> MakeSample(ServiceState* state, std::unique_ptr<IncomingCall> incoming);

}  // namespace blockd::server

#endif  // BLOCKD_SERVER_TRANSPORT_INVERSE_H_
