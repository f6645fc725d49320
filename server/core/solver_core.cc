#include "server/core/solver_core.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "server/core/common/checks.h"
#include "server/core/operations/border_costs.h"
#include "server/core/smooth/smooth.h"

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

std::vector<std::unique_ptr<Solver>> JustOne(std::unique_ptr<Solver> solver) {
  std::vector<std::unique_ptr<Solver>> solvers;
  solvers.push_back(std::move(solver));
  return solvers;
}

}  // namespace

SolverCore::SolverCore(std::vector<std::unique_ptr<Solver>> solvers, const CoreLimits& limits,
                       const ServerIdentity& server, Metrics* metrics, Clock* clock)
    : metrics_(metrics),
      tenants_(limits.max_tenants),
      host_(HostBudget(limits)),
      admission_(limits, server, &tenants_, clock, [this] { return shards_.ShortestBacklog(); }),
      shards_(std::move(solvers), limits, server, metrics, clock),
      host_memory_(shards_.HostMemory()),
      steps_(std::max(1, limits.model_threads)),
      factor_(&admission_, &shards_, &host_),
      solve_(&admission_, &shards_, &solve_on_),
      factor_solve_(&shards_, &factor_solve_on_) {
  for (size_t i = 0; i < shards_.size(); ++i) {
    solve_on_.emplace_back(&shards_[i]);
    factor_solve_on_.emplace_back(&admission_, &shards_[i]);
    inverse_on_.emplace_back(&admission_, &shards_[i]);
    smooth_on_.emplace_back(&shards_[i]);
  }
  shards_[0].SetWatch([this](absl::Time now) { return factor_.EndExpired(now); });
  metrics_->SetSampler([this] {
    GaugeSample sample;
    shards_.Sample(sample);
    sample.host_budget_bytes = host_.total();
    sample.host_budget_reserved_bytes = host_.reserved();
    sample.host_budget_peak_reserved_bytes = host_.peak_reserved();
    sample.tenants = tenants_.Uses();
    return sample;
  });
}

SolverCore::SolverCore(std::unique_ptr<Solver> solver, const CoreLimits& limits,
                       const ServerIdentity& server, Metrics* metrics, Clock* clock)
    : SolverCore(JustOne(std::move(solver)), limits, server, metrics, clock) {}

SolverCore::~SolverCore() {
  Drain();
  metrics_->SetSampler(nullptr);
  shards_[0].SetWatch(nullptr);
}

Tenants& SolverCore::tenants() { return tenants_; }
Budget& SolverCore::host() { return host_; }
Shards& SolverCore::shards() { return shards_; }

void SolverCore::Cancel(RequestContext& context) {
  context.cancelled.store(true, std::memory_order_relaxed);
  shards_.Cancel(&context);
  factor_.Cancel(&context);
}

void SolverCore::Factor(ContextPtr context, const FactorParams& params,
                        std::vector<BlockTridiagonalView> matrices, FactorDone done) {
  factor_.Start(std::move(context), params, std::move(matrices), std::move(done));
}

absl::StatusOr<std::variant<std::unique_ptr<FactorUpload>, FactorReply>> SolverCore::BeginUpload(
    ContextPtr context, const FactorParams& params, std::span<const uint32_t> palette_diagonal,
    std::span<const uint32_t> palette_coupling) {
  return factor_.BeginUpload(std::move(context), params, palette_diagonal, palette_coupling);
}

void SolverCore::FinishUpload(std::unique_ptr<FactorUpload> upload, FactorDone done) {
  factor_.FinishUpload(std::move(upload), std::move(done));
}

void SolverCore::Solve(ContextPtr context, const SolveParams& params, SolveDone done) {
  solve_.Start(std::move(context), params, std::move(done));
}

void SolverCore::SolveMany(ContextPtr context, SolveManyParams params, SolveManyDone done) {
  solve_.StartMany(std::move(context), std::move(params), std::move(done));
}

absl::StatusOr<BorderedShape> SolverCore::ShapeOf(const std::string& caller, const Handle& handle) {
  absl::StatusOr<FactorizationStats> stats = Get(caller, handle);
  if (!stats.ok()) return stats.status();
  return stats->shape;
}

void SolverCore::FactorSolve(ContextPtr context, FactorSolveParams params, FactorSolveDone done) {
  factor_solve_.Start(std::move(context), std::move(params), std::move(done));
}

void SolverCore::SelectedInverse(ContextPtr context, const SelectedInverseParams& params,
                                 CostDone done) {
  inverse_on_[shards_.IndexOf(params.handle)].StartInverse(std::move(context), params,
                                                           std::move(done));
}

void SolverCore::Sample(ContextPtr context, const SampleParams& params, CostDone done) {
  inverse_on_[shards_.IndexOf(params.handle)].StartSample(std::move(context), params,
                                                          std::move(done));
}

void SolverCore::Smooth(ContextPtr context, const MeasuredSmooth& measured, const KeepModel& kept,
                        const SmoothResults& results, PostWork post, SmoothDone done) {
  StartSmooth({&admission_, &shards_, &solve_, &smooth_on_, &steps_, &host_}, std::move(context),
              measured, kept, results, std::move(post), std::move(done));
}

absl::StatusOr<int64_t> SolverCore::Release(const std::string& caller,
                                            std::span<const Handle> handles) {
  if (handles.empty()) return InvalidFieldError("handle", "none", "at least one handle");
  return shards_.Release(caller, handles);
}

absl::StatusOr<FactorizationStats> SolverCore::Get(const std::string& caller,
                                                   const Handle& handle) {
  absl::StatusOr<KeptStats> stats = shards_.Of(handle).cache().Get(caller, handle);
  if (!stats.ok()) return stats.status();
  return ToFactorizationStats(*std::move(stats));
}

std::vector<FactorizationStats> SolverCore::List(const std::string& caller,
                                                 std::optional<Handle> after, int64_t limit) {
  std::vector<FactorizationStats> list;
  for (KeptStats& stats : shards_.List(caller, after, limit)) {
    list.push_back(ToFactorizationStats(std::move(stats)));
  }
  return list;
}

absl::StatusOr<PlanReply> SolverCore::Plan(const MatrixForm& form, int64_t num_systems,
                                           int64_t num_rhs) {
  Shard& shard = shards_.front();
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
  const int64_t p = form.border_rows;
  reply.solve_workspace_bytes = solver.SolveWorkspaceBytes(*reply.plan, num_rhs, false, p);
  reply.factor_bytes = reply.plan->factor_bytes() + Border::Bytes(form.shape, p);
  reply.factor_flops = FactorFlops(*reply.plan, p) * static_cast<double>(num_systems);
  reply.solve_flops = SolveFlops(*reply.plan, num_rhs, p);
  const CostModel costs = solver.backend().costs(reply.plan->shape());
  reply.factor_seconds = PredictedFactorSeconds(*reply.plan, costs, num_systems) +
                         PredictedBorderSeconds(*reply.plan, p, costs, num_systems);
  reply.solve_seconds = PredictedSolveSeconds(*reply.plan, num_rhs, costs);
  return reply;
}

SolverCore::MemoryStats SolverCore::memory() {
  MemoryStats sum;
  for (size_t i = 0; i < shards_.size(); ++i) {
    const Shard::State state = shards_[i].state();
    if (!state.in_service) continue;
    sum.total_bytes += state.memory_bytes;
    sum.free_bytes += state.free_bytes;
    sum.evictable_bytes += state.evictable_bytes;
    sum.factorizations += state.factorizations;
    sum.solve_reserve_bytes += state.solve_reserve_bytes;
    sum.pool.capacity_bytes += state.pool.capacity_bytes;
    sum.pool.used_bytes += state.pool.used_bytes;
    sum.pool.peak_used_bytes += state.pool.peak_used_bytes;
    sum.pool.free_bytes += state.pool.free_bytes;
    sum.pool.largest_free_bytes =
        std::max(sum.pool.largest_free_bytes, state.pool.largest_free_bytes);
  }
  return sum;
}

const CoreLimits& SolverCore::limits() const { return admission_.limits(); }
std::shared_ptr<MemoryPool> SolverCore::host_memory() { return host_memory_; }
Backend& SolverCore::backend() { return shards_.front().solver().backend(); }
bool SolverCore::healthy() const { return shards_.healthy(); }

void SolverCore::OnDeviceFailure(std::function<void(const DeviceFailure&)> callback) {
  shards_.OnFailure(std::move(callback));
}

void SolverCore::Drain() {
  admission_.Close();
  shards_.Flush();
  admission_.WaitUntilIdle();
}

}  // namespace blockd::server
