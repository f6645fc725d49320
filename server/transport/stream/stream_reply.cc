#include "server/transport/stream/stream_reply.h"

#include "server/transport/wire/wire.h"

namespace blockd::server {

grpc::ByteBuffer SolutionMessage(uint64_t id, int part, const google::protobuf::Message& reply,
                                 int solution_field, const Payload& solution, bool in_chunks) {
  v1::SolveStreamReply outer;
  outer.set_id(id);
  if (in_chunks) outer.set_solution_bytes(solution.bytes());
  return SerializeNestedWithBytes(outer, part, reply, solution_field,
                                  in_chunks ? Payload() : solution);
}

grpc::ByteBuffer ChunkMessage(uint64_t id, const Payload& solution, int64_t offset,
                              int64_t length) {
  v1::SolveStreamReply wire;
  wire.set_id(id);
  return SerializeChunk(wire, v1::SolveStreamReply::kChunkFieldNumber, solution, offset, length);
}

grpc::ByteBuffer FailureMessage(uint64_t id, const absl::Status& status) {
  v1::SolveStreamReply wire;
  wire.set_id(id);
  *wire.mutable_status() = ToRpcStatus(status);
  return SerializeMessage(wire);
}

}  // namespace blockd::server
