#include "server/transport/stream/stream_reply.h"

#include "server/transport/wire/wire.h"

namespace blockd::server {

namespace {

// `part`, without its solution, is field `field` of the message.
template <typename Part>
grpc::ByteBuffer WithSolution(uint64_t id, const Part& part, int field, const Payload& solution,
                              bool in_chunks) {
  v1::SolveStreamReply outer;
  outer.set_id(id);
  if (in_chunks) outer.set_solution_bytes(solution.bytes());
  return SerializeNestedWithBytes(outer, field, part, Part::kSolutionFieldNumber,
                                  in_chunks ? Payload() : solution);
}

}  // namespace

grpc::ByteBuffer SolutionMessage(uint64_t id, const SolveReply& reply, const Payload& solution,
                                 bool in_chunks) {
  v1::SolveReply wire;
  ToWire(reply, &wire);
  return WithSolution(id, wire, v1::SolveStreamReply::kReplyFieldNumber, solution, in_chunks);
}

grpc::ByteBuffer SolutionMessage(uint64_t id, const v1::SolveManyReply& reply,
                                 const Payload& solution, bool in_chunks) {
  return WithSolution(id, reply, v1::SolveStreamReply::kManyFieldNumber, solution, in_chunks);
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
