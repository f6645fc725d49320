// The messages that a SolveStream sends. Pure functions, thread-safe.
#ifndef BLOCKD_SERVER_TRANSPORT_STREAM_STREAM_REPLY_H_
#define BLOCKD_SERVER_TRANSPORT_STREAM_STREAM_REPLY_H_

#include <grpcpp/support/byte_buffer.h>

#include <cstdint>

#include "absl/status/status.h"
#include "blockd/v1/blockd.pb.h"
#include "google/protobuf/message.h"
#include "server/transport/wire/raw_message.h"

namespace blockd::server {

// `reply`, as the field `part` of SolveStreamReply, with the solution as its field
// `solution_field`, or, where `in_chunks`, without it and with its length.
grpc::ByteBuffer SolutionMessage(uint64_t id, int part, const google::protobuf::Message& reply,
                                 int solution_field, const Payload& solution, bool in_chunks);
// A piece of it.
grpc::ByteBuffer ChunkMessage(uint64_t id, const Payload& solution, int64_t offset, int64_t length);
grpc::ByteBuffer FailureMessage(uint64_t id, const absl::Status& status);

}  // namespace blockd::server

#endif  // BLOCKD_SERVER_TRANSPORT_STREAM_STREAM_REPLY_H_
