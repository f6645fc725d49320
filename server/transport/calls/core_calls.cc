#include "server/transport/calls/core_calls.h"

#include <algorithm>
#include <span>

namespace blockd::server {
namespace {

std::span<const CoreCallKind> CoreCallKinds() {
  using Request = v1::SolveStreamRequest;
  using Reply = v1::SolveStreamReply;
  using v1::ShmOperation;
  static constexpr int kNone = CoreCall::kNoField;
  static constexpr CoreCallKind kKinds[] = {
      {Method::kFactor, NewFactor, "/blockd.v1.Solver/Factor", kNone, kNone, ShmOperation::kFactor},
      {Method::kSolve, NewSolve, "/blockd.v1.Solver/Solve", Request::kRequestFieldNumber,
       Reply::kReplyFieldNumber, ShmOperation::kSolve},
      {Method::kSolveMany, NewSolveMany, "/blockd.v1.Solver/SolveMany", Request::kManyFieldNumber,
       Reply::kManyFieldNumber, ShmOperation::kSolveMany},
      {Method::kFactorSolve, NewFactorSolve, "/blockd.v1.Solver/FactorSolve", kNone, kNone,
       ShmOperation::kFactorSolve},
      {Method::kFactorSolveMany, NewFactorSolveMany, "/blockd.v1.Solver/FactorSolveMany",
       Request::kRefactorFieldNumber, Reply::kManyFieldNumber, ShmOperation::kFactorSolveMany},
      {Method::kRelease, NewRelease, "/blockd.v1.Solver/Release", kNone, kNone,
       ShmOperation::kRelease},
  };
  return kKinds;
}

template <typename Is>
const CoreCallKind* Find(Is is) {
  const auto found = std::ranges::find_if(CoreCallKinds(), is);
  return found == CoreCallKinds().end() ? nullptr : &*found;
}

}  // namespace

const CoreCallKind* FindUnary(std::string_view method) {
  return Find([&](const CoreCallKind& kind) { return kind.name == method; });
}

const CoreCallKind* FindStreamPart(int field) {
  if (field == CoreCall::kNoField) return nullptr;
  return Find([&](const CoreCallKind& kind) { return kind.stream_field == field; });
}

const CoreCallKind* FindOperation(v1::ShmOperation operation) {
  return Find([&](const CoreCallKind& kind) { return kind.operation == operation; });
}

}  // namespace blockd::server
