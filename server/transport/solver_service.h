// The calls of blockd.v1.Solver: thin asynchronous handlers over SolverCore.
//
// Every message comes raw, so that bytes that are no message are refused in our own words, and so
// that matrices and solutions are not copied more than once. No thread waits for a request: a
// handler starts the work and the core's callback finishes the call.
#ifndef BLOCKD_SERVER_TRANSPORT_SOLVER_SERVICE_H_
#define BLOCKD_SERVER_TRANSPORT_SOLVER_SERVICE_H_

#include <memory>
#include <string_view>

#include "server/transport/rpc/call.h"
#include "server/transport/rpc/server_call.h"

namespace blockd::server {

// The call that its method names; one that is answered UNIMPLEMENTED if there is none of that name.
// `state` outlives it.
std::shared_ptr<ServerCall> MakeSolverCall(ServiceState* state,
                                           std::unique_ptr<IncomingCall> incoming);
// The same for `method`, whatever `incoming` says: "/blockd.v1.Solver/Solve".
std::shared_ptr<ServerCall> MakeSolverCallOf(std::string_view method, ServiceState* state,
                                             std::unique_ptr<IncomingCall> incoming);

}  // namespace blockd::server

#endif  // BLOCKD_SERVER_TRANSPORT_SOLVER_SERVICE_H_
