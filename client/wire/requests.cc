#include "client/wire/requests.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "blockd/client/errors.h"
#include "client/base/random.h"
#include "client/wire/wire.h"

namespace blockd::client {
namespace {

const char* Name(Scalar scalar) { return scalar == Scalar::kFloat64 ? "float64" : "float32"; }

bool LaidOutAlike(const SystemView& a, const SystemView& b) {
  return a.num_blocks == b.num_blocks && a.block_size == b.block_size && a.scalar == b.scalar &&
         a.arrow_size == b.arrow_size && a.diagonal_form == b.diagonal_form &&
         a.coupling_form == b.coupling_form && a.num_diagonal == b.num_diagonal &&
         a.num_coupling == b.num_coupling &&
         std::ranges::equal(a.diagonal_index, b.diagonal_index) &&
         std::ranges::equal(a.coupling_index, b.coupling_index);
}

}  // namespace

absl::StatusOr<int64_t> CountColumns(int64_t rows, Scalar expected, Scalar scalar, size_t rhs_bytes,
                                     size_t solution_bytes) {
  if (scalar != expected) {
    return InvalidFieldError("rhs", Name(scalar), absl::StrCat("the matrix's ", Name(expected)));
  }
  const size_t column = rows * ScalarBytes(scalar);
  if (column == 0 || rhs_bytes == 0 || rhs_bytes % column != 0) {
    return InvalidFieldError("rhs", absl::StrCat(rhs_bytes / ScalarBytes(scalar), " numbers"),
                             absl::StrCat("a multiple of the system's rows, ", rows));
  }
  if (solution_bytes != rhs_bytes) {
    return InvalidFieldError("solution",
                             absl::StrCat(solution_bytes / ScalarBytes(scalar), " numbers"),
                             absl::StrCat("as many as rhs: ", rhs_bytes / ScalarBytes(scalar)));
  }
  return static_cast<int64_t>(rhs_bytes / column);
}

absl::StatusOr<v1::SolveRequest> MakeSolveRequest(const Factorization& factorization, Scalar scalar,
                                                  size_t rhs_bytes, size_t solution_bytes,
                                                  const SolveOptions& options) {
  const absl::StatusOr<int64_t> columns =
      CountColumns(factorization.rows(), factorization.scalar, scalar, rhs_bytes, solution_bytes);
  if (!columns.ok()) return columns.status();
  v1::SolveRequest request;
  request.set_handle(factorization.handle);
  request.set_num_rhs(*columns);
  *request.mutable_options() = ToProto(options);
  return request;
}

v1::SolveOptions ToProto(const SolveOptions& options) {
  v1::SolveOptions proto;
  proto.set_residual(options.residual);
  proto.set_max_refinements(options.max_refinements);
  proto.set_check_finite(options.check_finite);
  proto.set_priority(ToProto(options.priority));
  return proto;
}

SolveResult ToResult(v1::SolveReply& reply) {
  SolveResult result;
  if (reply.has_backward_error()) result.backward_error = reply.backward_error();
  result.backward_error_bound = reply.backward_error_bound();
  result.refinements = reply.refinements();
  result.cost = std::move(*reply.mutable_cost());
  return result;
}

Conditioning ConditioningOf(const v1::FactoredSystem& system) {
  Conditioning conditioning;
  conditioning.growth = system.growth();
  if (system.has_condition_estimate()) {
    conditioning.condition_estimate = system.condition_estimate();
  }
  conditioning.backward_error_bound = system.backward_error_bound();
  conditioning.matrix_kept = system.matrix_kept();
  return conditioning;
}

v1::Accuracy ToProto(Accuracy accuracy) {
  return accuracy == Accuracy::kGuaranteed ? v1::ACCURACY_GUARANTEED : v1::ACCURACY_STANDARD;
}

v1::PriorityClass ToProto(Priority priority) {
  switch (priority) {
    case Priority::kRealtime:
      return v1::REALTIME;
    case Priority::kBulk:
      return v1::BULK;
    default:
      return v1::INTERACTIVE;
  }
}

v1::FactorOptions ToProto(const FactorOptions& options, std::span<const Factorization> handles) {
  v1::FactorOptions proto;
  for (const Factorization& handle : handles) proto.add_handle(handle.handle);
  proto.set_overwrite(options.overwrite);
  proto.set_keep_matrix(options.keep_matrix);
  proto.set_check_finite(options.check_finite);
  if (options.lease != absl::ZeroDuration()) *proto.mutable_lease() = ToProto(options.lease);
  proto.set_pin(options.pin);
  proto.set_log_determinant(options.log_determinant);
  proto.set_accuracy(ToProto(options.accuracy));
  proto.set_condition_estimate(options.condition_estimate);
  proto.set_priority(ToProto(options.priority));
  if (!options.idempotency_key.empty()) {
    proto.set_idempotency_key(options.idempotency_key);
  } else if (handles.empty()) {
    proto.set_idempotency_key(RandomBytes(16));
  }
  return proto;
}

absl::Status CheckSystems(std::span<const SystemView> systems,
                          std::span<const Factorization> handles) {
  if (systems.empty()) return InvalidFieldError("system", "none", "at least 1");
  for (size_t k = 0; k < systems.size(); ++k) {
    if (absl::Status status = CheckSystem(systems[k]); !status.ok()) return status;
    if (!LaidOutAlike(systems[0], systems[k])) {
      return InvalidFieldError(absl::StrCat("system[", k, "]"), "of another shape or form",
                               "that of system[0]");
    }
  }
  if (!handles.empty() && handles.size() != systems.size()) {
    return InvalidFieldError("options.handle", absl::StrCat(handles.size(), " handles"),
                             absl::StrCat("one a system, so ", systems.size()));
  }
  for (const Factorization& handle : handles) {
    if (handle.num_blocks != systems[0].num_blocks || handle.block_size != systems[0].block_size ||
        handle.scalar != systems[0].scalar || handle.arrow_size != systems[0].arrow_size) {
      return InvalidFieldError("options.handle", "a handle of another shape", "that of the system");
    }
  }
  return absl::OkStatus();
}

int64_t TotalBytes(std::span<const SystemView> systems) {
  return static_cast<int64_t>(systems.size()) * systems[0].bytes();
}

void SetData(const SystemView& system, v1::SystemData* data) {
  data->set_diagonal(system.diagonal, system.diagonal_bytes());
  data->set_coupling(system.coupling, system.coupling_bytes());
  data->set_border(system.border, system.border_bytes());
  data->set_corner(system.corner, system.corner_bytes());
}

}  // namespace blockd::client
