// The calls that the core answers, and what brings each of them.
#ifndef BLOCKD_SERVER_TRANSPORT_CALLS_CORE_CALLS_H_
#define BLOCKD_SERVER_TRANSPORT_CALLS_CORE_CALLS_H_

#include <memory>
#include <string_view>

#include "server/core/common/metrics.h"
#include "server/transport/calls/core_call.h"

namespace blockd::server {

std::unique_ptr<CoreCall> NewFactor();
std::unique_ptr<CoreCall> NewSolve();
std::unique_ptr<CoreCall> NewSolveMany();
std::unique_ptr<CoreCall> NewFactorSolve();
std::unique_ptr<CoreCall> NewFactorSolveMany();
std::unique_ptr<CoreCall> NewRelease();

struct CoreCallKind {
  Method method;
  std::unique_ptr<CoreCall> (*make)();
  // Its carriers. A unary call of gRPC, by the path of its method.
  std::string_view name;
  // A stream: the field of SolveStreamRequest that is its message, and of SolveStreamReply that is
  // its reply.
  int stream_field = CoreCall::kNoField, stream_reply_field = CoreCall::kNoField;
  // Shared memory.
  v1::ShmOperation operation;
};
// Null where no call is such a method, part or operation.
const CoreCallKind* FindUnary(std::string_view method);
const CoreCallKind* FindStreamPart(int field);
const CoreCallKind* FindOperation(v1::ShmOperation operation);

}  // namespace blockd::server

#endif  // BLOCKD_SERVER_TRANSPORT_CALLS_CORE_CALLS_H_
