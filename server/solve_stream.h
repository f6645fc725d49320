// SolveStream: a controller's loop. Requests carry an id, right-hand sides may come in interleaved
// chunks, replies go out as they finish, large solutions in chunks, as fast as the client takes
// them.
//
// The stream reads on only while it holds fewer requests and bytes than its limits, unless all that
// it holds is still arriving: then it must read, and refuses what does not fit.
#ifndef BLOCKD_SERVER_SOLVE_STREAM_H_
#define BLOCKD_SERVER_SOLVE_STREAM_H_

#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/server_callback.h>

#include "server/call.h"

namespace blockd::server {

// The reactor owns itself; `state` outlives it.
grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* StartSolveStream(
    ServiceState* state, grpc::CallbackServerContext* rpc);

}  // namespace blockd::server

#endif  // BLOCKD_SERVER_SOLVE_STREAM_H_
