// FactorStream: a header, then chunks that are copied once, from where the transport holds them to
// the memory that the core has staged.
#ifndef BLOCKD_SERVER_FACTOR_STREAM_H_
#define BLOCKD_SERVER_FACTOR_STREAM_H_

#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/server_callback.h>

#include "server/call.h"

namespace blockd::server {

// The reactor owns itself; `state` outlives it.
grpc::ServerReadReactor<grpc::ByteBuffer>* StartFactorStream(ServiceState* state,
                                                             grpc::CallbackServerContext* rpc,
                                                             grpc::ByteBuffer* reply);

}  // namespace blockd::server

#endif  // BLOCKD_SERVER_FACTOR_STREAM_H_
