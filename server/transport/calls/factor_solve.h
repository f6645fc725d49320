// The calls FactorSolve and FactorSolveMany.
#ifndef BLOCKD_SERVER_TRANSPORT_CALLS_FACTOR_SOLVE_H_
#define BLOCKD_SERVER_TRANSPORT_CALLS_FACTOR_SOLVE_H_

#include <memory>

#include "server/transport/rpc/call.h"
#include "server/transport/rpc/server_call.h"

namespace blockd::server {

std::shared_ptr<ServerCall> MakeFactorSolve(ServiceState* state,
                                            std::unique_ptr<IncomingCall> incoming);
std::shared_ptr<ServerCall> MakeFactorSolveMany(ServiceState* state,
                                                std::unique_ptr<IncomingCall> incoming);

}  // namespace blockd::server

#endif  // BLOCKD_SERVER_TRANSPORT_CALLS_FACTOR_SOLVE_H_
