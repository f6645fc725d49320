#include "server/core/solver_core.h"

#include <utility>

#include "server/core/solver_core_impl.h"

namespace blockd::server {

SolverCore::SolverCore(std::unique_ptr<Solver> solver, const CoreLimits& limits,
                       const ServerIdentity& server, Metrics* metrics, Clock* clock)
    : impl_(std::make_unique<Impl>(std::move(solver), limits, server, metrics, clock)) {}

SolverCore::~SolverCore() = default;

void SolverCore::Factor(ContextPtr context, const FactorParams& params,
                        std::vector<BlockTridiagonalView> matrices, FactorDone done) {
  impl_->Factor(std::move(context), params, std::move(matrices), std::move(done));
}

absl::StatusOr<std::variant<std::unique_ptr<FactorUpload>, FactorReply>> SolverCore::BeginUpload(
    ContextPtr context, const FactorParams& params, std::span<const uint32_t> palette_diagonal,
    std::span<const uint32_t> palette_coupling) {
  return impl_->BeginUpload(std::move(context), params, palette_diagonal, palette_coupling);
}

void SolverCore::FinishUpload(std::unique_ptr<FactorUpload> upload, FactorDone done) {
  impl_->FinishUpload(std::move(upload), std::move(done));
}

void SolverCore::Solve(ContextPtr context, const SolveParams& params, SolveDone done) {
  impl_->Solve(std::move(context), params, std::move(done));
}

absl::StatusOr<Shape> SolverCore::ShapeOf(const std::string& caller, const Handle& handle) {
  absl::StatusOr<FactorizationStats> stats = impl_->cache_.Get(caller, handle);
  if (!stats.ok()) return stats.status();
  return stats->shape;
}

void SolverCore::FactorSolve(ContextPtr context, const FactorSolveParams& params, SolveDone done) {
  impl_->FactorSolve(std::move(context), params, std::move(done));
}

absl::StatusOr<int64_t> SolverCore::Release(const std::string& caller,
                                            std::span<const Handle> handles) {
  if (handles.empty()) return InvalidFieldError("handle", "none", "at least one handle");
  return impl_->cache_.Release(caller, handles);
}

absl::StatusOr<FactorizationStats> SolverCore::Get(const std::string& caller,
                                                   const Handle& handle) {
  return impl_->cache_.Get(caller, handle);
}

std::vector<FactorizationStats> SolverCore::List(const std::string& caller,
                                                 std::optional<Handle> after, int64_t limit) {
  return impl_->cache_.List(caller, after, limit);
}

absl::StatusOr<PlanReply> SolverCore::Plan(const MatrixForm& form, int64_t num_systems,
                                           int64_t num_rhs) {
  return impl_->Plan(form, num_systems, num_rhs);
}

SolverCore::MemoryStats SolverCore::memory() const {
  MemoryStats stats;
  stats.total_bytes = impl_->budget_.total_bytes();
  stats.free_bytes = impl_->budget_.free_bytes();
  stats.evictable_bytes = impl_->cache_.EvictableBytes();
  stats.factorizations = impl_->cache_.totals().entries;
  stats.pool = impl_->solver_->backend().pool().stats();
  return stats;
}

const CoreLimits& SolverCore::limits() const { return impl_->limits_; }
Backend& SolverCore::backend() { return impl_->solver_->backend(); }
bool SolverCore::healthy() const { return impl_->healthy(); }

void SolverCore::OnUnhealthy(absl::AnyInvocable<void(const absl::Status&)> callback) {
  impl_->OnUnhealthy(std::move(callback));
}

void SolverCore::Drain() { impl_->Drain(); }

}  // namespace blockd::server
