#include "server/transport/stream_reply.h"

#include <utility>

#include "blockd/v1/blockd.pb.h"
#include "server/transport/wire.h"

namespace blockd::server {

grpc::ByteBuffer SolutionMessage(uint64_t id, const SolveReply& reply, const Payload& solution,
                                 bool in_chunks) {
  v1::SolveReply wire;
  ToWire(reply, &wire);
  v1::SolveStreamReply outer;
  outer.set_id(id);
  if (!in_chunks) {
    return SerializeNestedWithBytes(outer, v1::SolveStreamReply::kReplyFieldNumber, wire,
                                    v1::SolveReply::kSolutionFieldNumber, solution);
  }
  *outer.mutable_reply() = std::move(wire);
  outer.set_solution_bytes(solution.bytes());
  return SerializeMessage(outer);
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
