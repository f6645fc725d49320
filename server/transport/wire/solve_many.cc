#include "server/transport/wire/solve_many.h"

#include <numeric>
#include <string>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "server/transport/wire/wire.h"

namespace blockd::server {
namespace {

constexpr int kMaxDetailedFailures = 1000;  // of a reply
constexpr double kNotMeasured = -1;

absl::Status Invalid(absl::string_view field, absl::string_view came, absl::string_view expected) {
  return InvalidFieldError(std::string(field), std::string(came), std::string(expected));
}

absl::Status CheckEntries(absl::string_view field, int64_t entries, int64_t solves) {
  if (entries == 0 || entries == solves) return absl::OkStatus();
  return Invalid(field, absl::StrCat(entries, " entries"),
                 absl::StrCat(solves, ", one a solve, or none"));
}

}  // namespace

absl::StatusOr<int64_t> CountSolves(const v1::SolveManyRequest& request) {
  const size_t bytes = request.handles().size();
  const auto solves = static_cast<int64_t>(bytes / Handle::kBytes);
  if (bytes % Handle::kBytes != 0) {
    return Invalid("handles", absl::StrCat(bytes, " bytes"),
                   absl::StrCat(Handle::kBytes, " bytes a solve, as Factor returned them"));
  }
  if (solves < 1) return Invalid("handles", "0 solves", "at least 1");
  if (solves > kMaxSolves) {
    return Invalid("handles", absl::StrCat(solves, " solves"),
                   absl::StrCat("at most ", kMaxSolves));
  }
  absl::Status status = CheckEntries("num_rhs", request.num_rhs_size(), solves);
  if (status.ok()) status = CheckEntries("rhs_bytes", request.rhs_bytes_size(), solves);
  if (!status.ok()) return status;
  return solves;
}

absl::Status CheckRhsBytes(const v1::SolveManyRequest& request, int64_t solves, int64_t bytes) {
  const auto& parts = request.rhs_bytes();
  if (parts.empty()) {
    if (bytes > 0 && bytes % solves == 0) return absl::OkStatus();
    return Invalid("rhs", absl::StrCat(bytes, " bytes without rhs_bytes"),
                   absl::StrCat("the same for each of ", solves, " solves"));
  }
  const int64_t sum = std::accumulate(parts.begin(), parts.end(), int64_t{0});
  if (sum == bytes && bytes > 0) return absl::OkStatus();
  if (sum == bytes) return Invalid("rhs", "0 bytes", "right-hand sides");
  return Invalid("rhs_bytes", absl::StrCat(sum, " bytes in all"),
                 absl::StrCat("the ", bytes, " of rhs"));
}

SolveManyParams ToSolveManyParams(const v1::SolveManyRequest& request,
                                  std::span<std::byte> values) {
  const std::string_view handles = request.handles();
  const size_t solves = handles.size() / Handle::kBytes;
  SolveManyParams params;
  params.handles.reserve(solves);
  params.solves.reserve(solves);
  size_t at = 0;
  for (size_t i = 0; i < solves; ++i) {
    const int k = static_cast<int>(i);
    const size_t bytes =
        request.rhs_bytes_size() > 0 ? request.rhs_bytes(k) : values.size() / solves;
    const std::span<std::byte> columns = values.subspan(at, bytes);
    at += bytes;
    params.handles.push_back(
        *Handle::FromBytes(handles.substr(i * Handle::kBytes, Handle::kBytes)));
    params.solves.push_back(
        {request.num_rhs_size() > 0 ? request.num_rhs(k) : 1, columns, columns});
  }
  params.residual = request.options().residual();
  params.max_refinements = request.options().max_refinements();
  params.check_finite = request.options().check_finite();
  return params;
}

void ToWire(const SolveManyReply& reply, v1::SolveManyReply* wire) {
  const std::vector<SolveOutcome>& outcomes = reply.outcomes;
  const int solves = static_cast<int>(outcomes.size());
  bool measured = false, refined = false;
  wire->mutable_backward_error_bound()->Reserve(solves);
  for (int i = 0; i < solves; ++i) {
    const SolveOutcome& outcome = outcomes[static_cast<size_t>(i)];
    wire->add_backward_error_bound(outcome.status.ok() ? outcome.backward_error_bound : 0);
    if (outcome.status.ok()) {
      measured |= outcome.backward_error.has_value();
      refined |= outcome.refinements > 0;
      continue;
    }
    v1::SolveFailure* const failure = wire->add_failure();
    failure->set_solve(static_cast<uint32_t>(i));
    if (wire->failure_size() <= kMaxDetailedFailures) {
      *failure->mutable_status() = ToRpcStatus(outcome.status);
    } else {
      failure->mutable_status()->set_code(static_cast<int>(outcome.status.code()));
    }
  }
  for (const SolveOutcome& outcome : outcomes) {
    const bool ok = outcome.status.ok();
    if (measured) {
      wire->add_backward_error(ok ? outcome.backward_error.value_or(kNotMeasured) : 0);
    }
    if (refined) wire->add_refinements(ok ? static_cast<uint32_t>(outcome.refinements) : 0);
  }
  ToWire(reply.cost, wire->mutable_cost());
}

void ToWire(const FactorSolveReply& reply, v1::SolveManyReply* wire) {
  SolveManyReply solved;
  solved.cost = reply.cost;
  solved.outcomes.reserve(reply.systems.size());
  for (const FactorSolveOutcome& system : reply.systems) solved.outcomes.push_back(system.solve);
  ToWire(solved, wire);
  bool kept = false;
  for (const FactorSolveOutcome& system : reply.systems) {
    wire->add_growth(system.solve.status.ok() ? system.growth : 0);
    kept |= system.matrix_kept;
  }
  for (const FactorSolveOutcome& system : reply.systems) {
    if (kept) wire->add_matrix_kept(system.matrix_kept);
  }
}

}  // namespace blockd::server
