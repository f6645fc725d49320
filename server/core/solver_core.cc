#include "server/core/solver_core.h"

#include <limits>
#include <utility>

#include "server/core/operations/checks.h"
#include "server/core/operations/factor.h"
#include "server/core/operations/factor_solve.h"
#include "server/core/operations/solve.h"
#include "server/core/shard.h"

namespace blockd::server {
namespace {

Budget::Options HostBudget(const CoreLimits& limits) {
  const int64_t bytes = limits.max_inflight_request_bytes;
  return {.resource = Resource::kHostBytes,
          .total = bytes > 0 ? bytes : std::numeric_limits<int64_t>::max(),
          .share = limits.tenant_share,
          .retry_delay = limits.retry_delay,
          .limit = "max_inflight_request_bytes"};
}

}  // namespace

// Members are destroyed in reverse order. Lanes run what is left, which needs the operations: these
// go last but for what they use.
class SolverCore::Impl {
 public:
  Impl(std::unique_ptr<Solver> solver, const CoreLimits& limits, const ServerIdentity& server,
       Metrics* metrics, Clock* clock)
      : metrics(metrics),
        tenants(limits.max_tenants),
        host(HostBudget(limits)),
        shard(std::move(solver), limits, server, &tenants, metrics, clock) {
    shard.SetWatch([this](absl::Time now) { return factor.EndExpired(now); });
    metrics->SetSampler([this] {
      GaugeSample sample;
      shard.Sample(sample);
      sample.host_budget_bytes = host.total();
      sample.host_budget_reserved_bytes = host.reserved();
      sample.host_budget_peak_reserved_bytes = host.peak_reserved();
      sample.tenants = tenants.Uses();
      return sample;
    });
  }
  ~Impl() {
    Drain();
    metrics->SetSampler(nullptr);
    shard.SetWatch(nullptr);
  }

  void Drain() {
    shard.Close();
    shard.WaitUntilIdle();
  }

  Metrics* const metrics;
  Tenants tenants;
  Budget host;
  Shard shard;
  FactorOperation factor{&shard, &host};
  SolveOperation solve{&shard};
  FactorSolveOperation factor_solve{&shard};
};

SolverCore::SolverCore(std::unique_ptr<Solver> solver, const CoreLimits& limits,
                       const ServerIdentity& server, Metrics* metrics, Clock* clock)
    : impl_(std::make_unique<Impl>(std::move(solver), limits, server, metrics, clock)) {}

SolverCore::~SolverCore() = default;

Tenants& SolverCore::tenants() { return impl_->tenants; }
Budget& SolverCore::host() { return impl_->host; }

void SolverCore::Cancel(RequestContext& context) {
  context.cancelled.store(true, std::memory_order_relaxed);
  impl_->shard.Cancel(&context);
  impl_->factor.Cancel(&context);
}

void SolverCore::Factor(ContextPtr context, const FactorParams& params,
                        std::vector<BlockTridiagonalView> matrices, FactorDone done) {
  impl_->factor.Start(std::move(context), params, std::move(matrices), std::move(done));
}

absl::StatusOr<std::variant<std::unique_ptr<FactorUpload>, FactorReply>> SolverCore::BeginUpload(
    ContextPtr context, const FactorParams& params, std::span<const uint32_t> palette_diagonal,
    std::span<const uint32_t> palette_coupling) {
  return impl_->factor.BeginUpload(std::move(context), params, palette_diagonal, palette_coupling);
}

void SolverCore::FinishUpload(std::unique_ptr<FactorUpload> upload, FactorDone done) {
  impl_->factor.FinishUpload(std::move(upload), std::move(done));
}

void SolverCore::Solve(ContextPtr context, const SolveParams& params, SolveDone done) {
  impl_->solve.Start(std::move(context), params, std::move(done));
}

void SolverCore::SolveMany(ContextPtr context, SolveManyParams params, SolveManyDone done) {
  impl_->solve.StartMany(std::move(context), std::move(params), std::move(done));
}

absl::StatusOr<Shape> SolverCore::ShapeOf(const std::string& caller, const Handle& handle) {
  absl::StatusOr<FactorizationStats> stats = cache().Get(caller, handle);
  if (!stats.ok()) return stats.status();
  return stats->shape;
}

void SolverCore::FactorSolve(ContextPtr context, const FactorSolveParams& params, SolveDone done) {
  impl_->factor_solve.Start(std::move(context), params, std::move(done));
}

absl::StatusOr<int64_t> SolverCore::Release(const std::string& caller,
                                            std::span<const Handle> handles) {
  if (handles.empty()) return InvalidFieldError("handle", "none", "at least one handle");
  return cache().Release(caller, handles);
}

absl::StatusOr<FactorizationStats> SolverCore::Get(const std::string& caller,
                                                   const Handle& handle) {
  return cache().Get(caller, handle);
}

FactorizationCache& SolverCore::cache() { return impl_->shard.cache(); }

std::vector<FactorizationStats> SolverCore::List(const std::string& caller,
                                                 std::optional<Handle> after, int64_t limit) {
  return cache().List(caller, after, limit);
}

absl::StatusOr<PlanReply> SolverCore::Plan(const MatrixForm& form, int64_t num_systems,
                                           int64_t num_rhs) {
  Shard& shard = impl_->shard;
  absl::Status status = CheckSpec(form);
  status.Update(CheckSystems(num_systems, shard.limits()));
  status.Update(CheckColumns(num_rhs, shard.limits()));
  if (!status.ok()) return status;
  absl::StatusOr<std::shared_ptr<const EliminationPlan>> plan = shard.PlanFor(form, num_systems);
  if (!plan.ok()) return plan.status();
  Solver& solver = shard.solver();
  PlanReply reply;
  reply.plan = *std::move(plan);
  reply.factor_workspace_bytes = solver.FactorWorkspaceBytes(*reply.plan, form, num_systems);
  reply.solve_workspace_bytes = solver.SolveWorkspaceBytes(*reply.plan, num_rhs, false);
  reply.factor_flops = reply.plan->factor_flops() * static_cast<double>(num_systems);
  reply.solve_flops = reply.plan->solve_flops(num_rhs);
  const CostModel costs = solver.backend().costs(reply.plan->shape());
  reply.factor_seconds = PredictedFactorSeconds(*reply.plan, costs, num_systems);
  reply.solve_seconds = PredictedSolveSeconds(*reply.plan, num_rhs, costs);
  return reply;
}

SolverCore::MemoryStats SolverCore::memory() {
  MemoryStats stats;
  stats.total_bytes = impl_->shard.device().total();
  stats.free_bytes = impl_->shard.device().free();
  stats.evictable_bytes = cache().EvictableBytes();
  stats.factorizations = cache().totals().entries;
  stats.pool = backend().pool().stats();
  const MemoryPool* const reserve = impl_->shard.solve_reserve();
  stats.solve_reserve_bytes = reserve != nullptr ? reserve->stats().capacity_bytes : 0;
  return stats;
}

const CoreLimits& SolverCore::limits() const { return impl_->shard.limits(); }
Backend& SolverCore::backend() { return impl_->shard.solver().backend(); }
bool SolverCore::healthy() const { return impl_->shard.healthy(); }

void SolverCore::OnUnhealthy(absl::AnyInvocable<void(const absl::Status&)> callback) {
  impl_->shard.OnUnhealthy(std::move(callback));
}

void SolverCore::Drain() { impl_->Drain(); }

}  // namespace blockd::server
