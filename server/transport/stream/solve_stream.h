// SolveStream: a controller's loop. Requests carry an id, right-hand sides may come in interleaved
// chunks, replies go out as they finish, large solutions in chunks, as fast as the client takes
// them. Frames bring many solves as one request.
//
// The stream reads on only while it holds fewer requests and bytes than its limits, unless all that
// it holds is still arriving: then it must read, and refuses what does not fit.
#ifndef BLOCKD_SERVER_TRANSPORT_STREAM_SOLVE_STREAM_H_
#define BLOCKD_SERVER_TRANSPORT_STREAM_SOLVE_STREAM_H_

#include <memory>

#include "server/transport/rpc/call.h"
#include "server/transport/rpc/server_call.h"

namespace blockd::server {

// `state` outlives the call.
std::shared_ptr<ServerCall> MakeSolveStream(ServiceState* state,
                                            std::unique_ptr<IncomingCall> incoming);

}  // namespace blockd::server

#endif  // BLOCKD_SERVER_TRANSPORT_STREAM_SOLVE_STREAM_H_
