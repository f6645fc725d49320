// What a request must be, and the memory for it.
#include <algorithm>
#include <limits>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/core/finite_scanner.h"
#include "server/core/solver_core_impl.h"

namespace blockd::server {
namespace {

constexpr size_t kMaxKeyBytes = 256;
constexpr int32_t kMaxRefinements = 10;

absl::Status OutOfRange(std::string_view field, int64_t came, int64_t least, int64_t most) {
  return InvalidFieldError(field, absl::StrCat(came), absl::StrCat(least, " to ", most));
}

absl::Status CheckIndex(const char* field, std::span<const uint32_t> index, int64_t expected,
                        int64_t palette) {
  if (static_cast<int64_t>(index.size()) != expected) {
    return InvalidFieldError(field, absl::StrCat(index.size(), " entries"),
                             absl::StrCat(expected, " entries"));
  }
  for (size_t i = 0; i < index.size(); ++i) {
    if (index[i] >= palette) {
      return InvalidFieldError(absl::StrCat(field, "[", i, "]"), absl::StrCat(index[i]),
                               absl::StrCat("0 to ", palette - 1));
    }
  }
  return absl::OkStatus();
}

// Bytes that a factor of this shape has at least, for `systems` systems; the largest number where
// they overflow. It bounds the work of making a plan before one is made.
int64_t LeastFactorBytes(const Shape& shape, int64_t systems) {
  const int64_t n = shape.block_size;
  const int64_t scalars = shape.num_blocks * (n * (n + 1) / 2) + (shape.num_blocks - 1) * n * n;
  const absl::StatusOr<int64_t> bytes =
      CheckedProduct(scalars, systems * ScalarBytes(shape.scalar));
  return bytes.ok() ? *bytes : std::numeric_limits<int64_t>::max();
}

}  // namespace

absl::Status SolverCore::Impl::CheckForm(const MatrixForm& form) const {
  const Shape& shape = form.shape;
  if (shape.block_size < 1 || shape.block_size > kMaxBlockSize) {
    return OutOfRange("spec.block_size", shape.block_size, 1, kMaxBlockSize);
  }
  if (shape.num_blocks < 1 || shape.num_blocks > kMaxRows / shape.block_size) {
    return OutOfRange("spec.num_blocks", shape.num_blocks, 1, kMaxRows / shape.block_size);
  }
  const absl::Status status = blockd::CheckForm(form);
  if (status.ok()) return status;
  return InvalidFieldError("spec", ToString(shape), std::string(status.message()));
}

absl::Status SolverCore::Impl::CheckLease(absl::Duration lease) const {
  if (lease >= absl::ZeroDuration() && lease <= limits_.max_lease) return absl::OkStatus();
  return InvalidFieldError("options.lease", absl::FormatDuration(lease),
                           absl::StrCat("0 to ", absl::FormatDuration(limits_.max_lease)));
}

absl::Status SolverCore::Impl::CheckFactor(const FactorParams& params) const {
  absl::Status status = CheckForm(params.form);
  if (!status.ok()) return status;
  if (params.num_systems < 1 || params.num_systems > limits_.max_systems) {
    return OutOfRange("num_systems", params.num_systems, 1, limits_.max_systems);
  }
  if (!(status = CheckLease(params.lease)).ok()) return status;
  if (params.idempotency_key.size() > kMaxKeyBytes) {
    return InvalidFieldError("options.idempotency_key",
                             absl::StrCat(params.idempotency_key.size(), " bytes"),
                             absl::StrCat("at most ", kMaxKeyBytes, " bytes"));
  }
  const int64_t handles = static_cast<int64_t>(params.handles.size());
  if (handles == 0) return absl::OkStatus();
  if (handles != params.num_systems) {
    return InvalidFieldError("options.handle", absl::StrCat(handles, " handles"),
                             absl::StrCat(params.num_systems, ", one a system, or none"));
  }
  if (!params.idempotency_key.empty()) {
    return InvalidFieldError("options.idempotency_key", "a key together with handles",
                             "one of the two");
  }
  std::vector<Handle> sorted = params.handles;
  std::sort(sorted.begin(), sorted.end());
  const auto twice = std::adjacent_find(sorted.begin(), sorted.end());
  if (twice == sorted.end()) return absl::OkStatus();
  return InvalidFieldError("options.handle", twice->hex() + " twice", "distinct handles");
}

absl::Status SolverCore::Impl::CheckRhs(const Shape& shape, int64_t num_rhs, int64_t rhs_bytes,
                                        int64_t solution_bytes, int32_t max_refinements) const {
  if (num_rhs < 1 || num_rhs > limits_.max_rhs) {
    return OutOfRange("num_rhs", num_rhs, 1, limits_.max_rhs);
  }
  const absl::StatusOr<int64_t> expected =
      CheckedProduct(shape.rows() * ScalarBytes(shape.scalar), num_rhs);
  if (!expected.ok() || rhs_bytes != *expected) {
    return InvalidFieldError(
        "rhs", absl::StrCat(rhs_bytes, " bytes"),
        absl::StrCat(expected.ok() ? *expected : std::numeric_limits<int64_t>::max(), " bytes (",
                     shape.rows(), " rows x ", num_rhs, " right-hand sides x ",
                     ScalarBytes(shape.scalar), ")"));
  }
  if (solution_bytes != rhs_bytes) {
    return InvalidFieldError("solution", absl::StrCat(solution_bytes, " bytes"),
                             absl::StrCat(rhs_bytes, " bytes"));
  }
  if (max_refinements < 0 || max_refinements > kMaxRefinements) {
    return OutOfRange("options.max_refinements", max_refinements, 0, kMaxRefinements);
  }
  return absl::OkStatus();
}

absl::Status SolverCore::Impl::CheckPalette(const MatrixForm& form,
                                            std::span<const uint32_t> diagonal_index,
                                            std::span<const uint32_t> coupling_index) const {
  const int64_t blocks = form.shape.num_blocks;
  absl::Status status = CheckIndex("spec.palette.diagonal_index", diagonal_index,
                                   form.diagonal_palette > 0 ? blocks : 0, form.diagonal_palette);
  if (!status.ok()) return status;
  return CheckIndex("spec.palette.coupling_index", coupling_index,
                    form.coupling_palette > 0 ? blocks - 1 : 0, form.coupling_palette);
}

absl::Status SolverCore::Impl::CheckMatrices(std::span<const BlockTridiagonalView> matrices,
                                             const MatrixForm& form, bool check_finite) const {
  const int64_t blocks = form.shape.num_blocks;
  for (size_t k = 0; k < matrices.size(); ++k) {
    const BlockTridiagonalView& view = matrices[k];
    const std::string system = absl::StrCat("system[", k, "]");
    if (!(view.form == form)) {
      return InvalidFieldError(system, ToString(view.shape()), ToString(form.shape));
    }
    if (view.diagonal == nullptr || (view.coupling == nullptr && form.coupling_bytes() > 0)) {
      return InvalidFieldError(system, "no data", absl::StrCat(form.bytes(), " bytes"));
    }
    // Systems of a request usually share the positions, which then are checked once.
    if (k == 0 || view.diagonal_index != matrices[k - 1].diagonal_index ||
        view.coupling_index != matrices[k - 1].coupling_index) {
      const auto entries = [](const uint32_t* index, int64_t count) {
        return index ? std::span(index, static_cast<size_t>(count)) : std::span<const uint32_t>();
      };
      absl::Status status = CheckPalette(form, entries(view.diagonal_index, blocks),
                                         entries(view.coupling_index, blocks - 1));
      if (!status.ok()) return status;
    }
    if (!check_finite) continue;
    FiniteScanner scanner(form, static_cast<int64_t>(k));
    const auto part = [](const void* data, int64_t bytes) {
      return std::span(static_cast<const std::byte*>(data), static_cast<size_t>(bytes));
    };
    absl::Status status = scanner.Scan(part(view.diagonal, form.diagonal_bytes()));
    if (status.ok()) status = scanner.Scan(part(view.coupling, form.coupling_bytes()));
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<const EliminationPlan>> SolverCore::Impl::PlanFor(
    const MatrixForm& form, int64_t systems) {
  const int64_t least = LeastFactorBytes(form.shape, systems);
  if (least > budget_.total_bytes()) {
    return InsufficientMemoryError({.asked_bytes = least,
                                    .free_bytes = budget_.free_bytes(),
                                    .evictable_bytes = cache_.EvictableBytes(),
                                    .total_bytes = budget_.total_bytes()});
  }
  return solver_->Plan(form.shape, systems);
}

absl::StatusOr<PlanReply> SolverCore::Impl::Plan(const MatrixForm& form, int64_t num_systems,
                                                 int64_t num_rhs) {
  absl::Status status = CheckForm(form);
  if (!status.ok()) return status;
  if (num_systems < 1 || num_systems > limits_.max_systems) {
    return OutOfRange("num_systems", num_systems, 1, limits_.max_systems);
  }
  if (num_rhs < 1 || num_rhs > limits_.max_rhs) {
    return OutOfRange("num_rhs", num_rhs, 1, limits_.max_rhs);
  }
  absl::StatusOr<std::shared_ptr<const EliminationPlan>> plan = PlanFor(form, num_systems);
  if (!plan.ok()) return plan.status();
  PlanReply reply;
  reply.plan = *std::move(plan);
  reply.factor_workspace_bytes = solver_->FactorWorkspaceBytes(*reply.plan, form, num_systems);
  reply.solve_workspace_bytes = solver_->SolveWorkspaceBytes(*reply.plan, num_rhs, false);
  reply.factor_flops = reply.plan->factor_flops() * static_cast<double>(num_systems);
  reply.solve_flops = reply.plan->solve_flops(num_rhs);
  const CostModel costs = solver_->backend().costs(reply.plan->shape());
  reply.factor_seconds = PredictedFactorSeconds(*reply.plan, costs, num_systems);
  reply.solve_seconds = PredictedSolveSeconds(*reply.plan, num_rhs, costs);
  return reply;
}

int64_t SolverCore::Impl::FactorCharge(const EliminationPlan& plan) {
  return MemoryPool::Rounded(plan.factor_bytes());
}

int64_t SolverCore::Impl::MatrixCharge(const MatrixForm& form) {
  return MemoryPool::Rounded(StagedMatrix::BufferBytes(form));
}

absl::Status SolverCore::Impl::PinRefactored(FactorTask& task) {
  const FactorParams& params = task.params;
  for (size_t i = 0; i < params.handles.size(); ++i) {
    absl::StatusOr<FactorizationCache::Pin> pin =
        cache_.Lookup(task.context->caller, params.handles[i]);
    if (!pin.ok()) return pin.status();
    if (!((*pin)->shape() == params.form.shape)) {
      return InvalidFieldError(
          "spec", ToString(params.form.shape),
          absl::StrCat(ToString((*pin)->shape()), ", the shape of options.handle[", i, "]"));
    }
    task.pins.push_back(*std::move(pin));
  }
  return absl::OkStatus();
}

absl::Status SolverCore::Impl::AdmitFactor(FactorTask& task, bool staged) {
  const FactorParams& params = task.params;
  absl::Status status = PinRefactored(task);
  if (!status.ok()) return status;
  absl::StatusOr<std::shared_ptr<const EliminationPlan>> plan =
      PlanFor(params.form, params.num_systems);
  if (!plan.ok()) return plan.status();
  task.plan = *std::move(plan);

  // An overwritten factor's own memory serves the new one: only what that lacks is asked for.
  const bool matrices = staged || params.may_keep_matrix();
  int64_t bytes = solver_->FactorWorkspaceBytes(*task.plan, params.form, params.num_systems,
                                                matrices, params.condition_estimate);
  for (int64_t i = 0; i < params.num_systems; ++i) {
    const int64_t charge = FactorCharge(*task.plan);
    const int64_t reused = params.overwrite && !task.pins.empty()
                               ? std::min(charge, FactorCharge(task.pins[i]->plan()))
                               : 0;
    task.factor_reserved.push_back(charge - reused);
    bytes += charge - reused;
    if (matrices) bytes += MatrixCharge(params.form);
  }
  absl::StatusOr<Reservation> reservation = budget_.Reserve(bytes);
  if (!reservation.ok()) return reservation.status();
  task.reservation = *std::move(reservation);
  return absl::OkStatus();
}

absl::Status SolverCore::Impl::AdmitFactorSolve(FactorSolveTask& task) {
  const FactorSolveParams& params = task.params;
  const MatrixForm& form = params.matrix.form;
  absl::StatusOr<std::shared_ptr<const EliminationPlan>> plan = PlanFor(form, 1);
  if (!plan.ok()) return plan.status();
  task.plan = *std::move(plan);
  const bool keeps = params.may_keep_matrix();
  int64_t bytes = FactorCharge(*task.plan) +
                  solver_->FactorWorkspaceBytes(*task.plan, form, 1, keeps) +
                  solver_->SolveWorkspaceBytes(*task.plan, params.num_rhs, keeps);
  if (keeps) bytes += MatrixCharge(form);
  absl::StatusOr<Reservation> reservation = budget_.Reserve(bytes);
  if (!reservation.ok()) return reservation.status();
  task.reservation = *std::move(reservation);
  return absl::OkStatus();
}

bool SolverCore::Impl::Defragment(int64_t bytes) {
  MemoryPool& pool = solver_->backend().pool();
  bool evicted = false;
  do {
    std::vector<Evicted> oldest = cache_.EvictOldest();
    if (oldest.empty()) break;
    budget_.Free(std::move(oldest));
    evicted = true;
  } while (pool.stats().largest_free_bytes < bytes);
  return evicted;
}

}  // namespace blockd::server
