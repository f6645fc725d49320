#include "client/calls/factor_solve.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "client/calls/factor.h"
#include "client/calls/healer.h"
#include "client/calls/shm_calls.h"
#include "client/wire/requests.h"

namespace blockd::client {
namespace {

FactorSolveResult ResultOf(v1::FactorSolveReply& reply) {
  FactorSolveResult result;
  if (reply.has_backward_error()) result.backward_error = reply.backward_error();
  result.backward_error_bound = reply.backward_error_bound();
  result.refinements = reply.refinements();
  if (reply.has_log_determinant()) result.log_determinant = reply.log_determinant();
  result.growth = reply.growth();
  result.matrix_kept = reply.matrix_kept();
  result.cost = std::move(*reply.mutable_cost());
  return result;
}

// The reply's solution, in its place. INTERNAL if it is not as long as it must be.
absl::Status TakeSolution(const v1::FactorSolveReply& reply, std::span<std::byte> solution) {
  if (reply.solution().size() != solution.size()) {
    return absl::InternalError("the server sent a solution of another size");
  }
  std::copy_n(reinterpret_cast<const std::byte*>(reply.solution().data()), solution.size(),
              solution.data());
  return absl::OkStatus();
}

// By shared memory where there is room, else in one message. `request` gets the data for the
// latter.
absl::Status Send(const Connection& connection, const Factorization* on,
                  v1::FactorSolveRequest& request, const FactorSolveCall& call,
                  v1::FactorSolveReply* reply) {
  // Without what it may have from an attempt before.
  request.clear_system();
  request.clear_rhs();
  std::vector<SharedData> data;
  SharedData::AddMatrix(call.system, &data);
  data.push_back(SharedData::Columns(call.rhs, call.solution));
  const auto shared = CallShared(connection, on, v1::ShmOperation::kFactorSolve, request,
                                 std::move(data), call.deadline, reply);
  if (shared) return *shared;
  if (TotalBytes({&call.system, 1}) + static_cast<int64_t>(call.rhs.size()) >
      connection.options().stream_threshold_bytes) {
    return absl::OutOfRangeError("too large for one message");
  }
  SetData(call.system, request.mutable_system());
  request.set_rhs(call.rhs.data(), call.rhs.size());
  const absl::Status status = connection.Retry(
      call.deadline,
      [&](grpc::ClientContext& context) {
        return ToStatus(connection.Ask(context, "FactorSolve", request, reply));
      },
      on);
  return status.ok() ? TakeSolution(*reply, call.solution) : status;
}

}  // namespace

v1::FactorSolveRequest MakeFactorSolveRequest(const SystemView& system, int64_t columns,
                                              const SolveOptions& solve,
                                              const FactorOptions& factor) {
  v1::FactorSolveRequest request;
  *request.mutable_spec() = ToProto(system);
  request.set_num_rhs(columns);
  *request.mutable_options() = ToProto(solve);
  request.set_check_finite(factor.check_finite);
  request.set_log_determinant(factor.log_determinant);
  request.set_accuracy(ToProto(factor.accuracy));
  return request;
}

absl::StatusOr<FactorSolveResult> FactorSolveOnce(const Connection& connection,
                                                  v1::FactorSolveRequest request,
                                                  const FactorSolveCall& call) {
  v1::FactorSolveReply reply;
  const absl::Status status = Send(connection, nullptr, request, call, &reply);
  if (!status.ok()) return status;
  return ResultOf(reply);
}

absl::StatusOr<FactorSolveResult> RefactorSolveHealing(const Connection& connection,
                                                       const Factorization& factorization,
                                                       v1::FactorSolveRequest request,
                                                       const FactorSolveCall& call,
                                                       const FactorOptions& factor) {
  Healer* const healer = factorization.healer.get();
  while (true) {
    Healer::Current now = healer != nullptr ? healer->current() : Healer::Current{factorization};
    now.factorization.healer = factorization.healer;
    request.set_handle(now.factorization.handle);
    v1::FactorSolveReply reply;
    const absl::Status status = Send(connection, &now.factorization, request, call, &reply);
    if (status.ok()) {
      if (healer == nullptr || healer->Refactored(now.generation, call.system, factor)) {
        return ResultOf(reply);
      }
      continue;  // what was restored meanwhile has the values before
    }
    if (healer == nullptr || !healer->Mends(now.generation, status)) return status;
    const absl::Status restored = healer->AwaitRestored(now.generation, status, call.deadline);
    if (!restored.ok()) return restored;
  }
}

}  // namespace blockd::client
