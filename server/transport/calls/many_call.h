// A call of many solves, or of many systems that are factored and solved for: its reply.
#ifndef BLOCKD_SERVER_TRANSPORT_CALLS_MANY_CALL_H_
#define BLOCKD_SERVER_TRANSPORT_CALLS_MANY_CALL_H_

#include <algorithm>
#include <cstddef>
#include <memory>
#include <vector>

#include "server/transport/calls/core_call.h"
#include "server/transport/wire/solve_many.h"

namespace blockd::server {

template <typename Request, typename CoreReply>
class ManyCallOf : public CoreCallWith<Request, CoreReply> {
 public:
  bool has_long_reply() const final { return columns_.size() > kFewSolves; }
  size_t BytesToClear() const final {
    size_t bytes = 0;
    ForEachFailed(
        [&](const SolveManyParams::Columns& columns) { bytes += columns.solution.size(); });
    return bytes;
  }
  int solution_field() const final { return v1::SolveManyReply::kSolutionFieldNumber; }
  std::unique_ptr<google::protobuf::Message> Reply(size_t room) final {
    ForEachFailed([](const SolveManyParams::Columns& columns) {
      std::ranges::fill(columns.solution, std::byte{0});
    });
    auto wire = std::make_unique<v1::SolveManyReply>();
    ToWire(this->reply_, wire.get());
    if (wire->ByteSizeLong() > room) ClearWords(wire->mutable_failure());
    return wire;
  }

 protected:
  // More of them keep other callers waiting.
  static constexpr size_t kFewSolves = 256;

  std::vector<SolveManyParams::Columns> columns_;  // where their solutions lie

 private:
  static bool Failed(const SolveOutcome& outcome) { return !outcome.status.ok(); }
  static bool Failed(const FactorSolveOutcome& outcome) { return Failed(outcome.solve); }
  static const auto& OutcomesOf(const SolveManyReply& reply) { return reply.outcomes; }
  static const auto& OutcomesOf(const FactorSolveReply& reply) { return reply.systems; }

  template <typename Do>
  void ForEachFailed(Do todo) const {
    for (size_t i = 0; i < columns_.size(); ++i) {
      if (Failed(OutcomesOf(this->reply_)[i])) todo(columns_[i]);
    }
  }
};

}  // namespace blockd::server

#endif  // BLOCKD_SERVER_TRANSPORT_CALLS_MANY_CALL_H_
