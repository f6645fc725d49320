#include "server/core/solver_core.h"

#include <algorithm>
#include <deque>
#include <limits>
#include <utility>

#include "blockd/engine/step_pool.h"
#include "server/core/common/checks.h"
#include "server/core/operations/border_costs.h"
#include "server/core/operations/factor.h"
#include "server/core/operations/factor_solve.h"
#include "server/core/operations/factor_solve_requests.h"
#include "server/core/operations/inverse.h"
#include "server/core/operations/solve.h"
#include "server/core/operations/solve_requests.h"
#include "server/core/smooth.h"
#include "server/core/tenants/admission.h"

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

// Members are destroyed in reverse order. Lanes run what is left, which needs the operations: these
// go last but for what they use.
class SolverCore::Impl {
 public:
  Impl(std::vector<std::unique_ptr<Solver>> solvers, const CoreLimits& limits,
       const ServerIdentity& server, Metrics* metrics, Clock* clock)
      : metrics(metrics),
        tenants(limits.max_tenants),
        host(HostBudget(limits)),
        admission(limits, server, &tenants, clock, [this] { return shards.ShortestBacklog(); }),
        shards(std::move(solvers), limits, server, metrics, clock) {
    for (size_t i = 0; i < shards.size(); ++i) {
      solve_on.emplace_back(&shards[i]);
      factor_solve_on.emplace_back(&admission, &shards[i]);
      inverse_on.emplace_back(&admission, &shards[i]);
    }
    shards[0].SetWatch([this](absl::Time now) { return factor.EndExpired(now); });
    metrics->SetSampler([this] {
      GaugeSample sample;
      shards.Sample(sample);
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
    shards[0].SetWatch(nullptr);
  }

  void Drain() {
    admission.Close();
    shards.Flush();
    admission.WaitUntilIdle();
  }

  Metrics* const metrics;
  Tenants tenants;
  Budget host;
  Admission admission;
  Shards shards;
  const std::shared_ptr<MemoryPool> host_memory = shards.HostMemory();
  StepPool steps{std::max(1, admission.limits().model_threads)};
  FactorOperation factor{&admission, &shards, &host};
  std::deque<SolveOperation> solve_on;  // these three: one a device
  std::deque<FactorSolveOperation> factor_solve_on;
  std::deque<InverseOperation> inverse_on;
  SolveRequests solve{&admission, &shards, &solve_on};
  FactorSolveRequests factor_solve{&shards, &factor_solve_on};
};

SolverCore::SolverCore(std::vector<std::unique_ptr<Solver>> solvers, const CoreLimits& limits,
                       const ServerIdentity& server, Metrics* metrics, Clock* clock)
    : impl_(std::make_unique<Impl>(std::move(solvers), limits, server, metrics, clock)) {}

SolverCore::SolverCore(std::unique_ptr<Solver> solver, const CoreLimits& limits,
                       const ServerIdentity& server, Metrics* metrics, Clock* clock)
    : SolverCore(JustOne(std::move(solver)), limits, server, metrics, clock) {}

SolverCore::~SolverCore() = default;

Tenants& SolverCore::tenants() { return impl_->tenants; }
Budget& SolverCore::host() { return impl_->host; }

void SolverCore::Cancel(RequestContext& context) {
  context.cancelled.store(true, std::memory_order_relaxed);
  impl_->shards.Cancel(&context);
  impl_->factor.Cancel(&context);
}

void SolverCore::Factor(ContextPtr context, const FactorParams& params,
                        std::vector<BlockTridiagonalView> matrices, FactorDone done) {
  impl_->factor.Start(std::move(context), params, std::move(matrices), std::move(done));
}

void SolverCore::Factor(ContextPtr context, const FactorParams& params,
                        const InformationForm& information, FactorDone done) {
  impl_->factor.Start(std::move(context), params, information, std::move(done));
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

absl::StatusOr<BorderedShape> SolverCore::ShapeOf(const std::string& caller, const Handle& handle) {
  absl::StatusOr<FactorizationStats> stats = Get(caller, handle);
  if (!stats.ok()) return stats.status();
  return stats->shape;
}

void SolverCore::FactorSolve(ContextPtr context, FactorSolveParams params, FactorSolveDone done) {
  impl_->factor_solve.Start(std::move(context), std::move(params), std::move(done));
}

void SolverCore::SelectedInverse(ContextPtr context, const SelectedInverseParams& params,
                                 CostDone done) {
  impl_->inverse_on[impl_->shards.IndexOf(params.handle)].StartInverse(std::move(context), params,
                                                                       std::move(done));
}

void SolverCore::Sample(ContextPtr context, const SampleParams& params, CostDone done) {
  impl_->inverse_on[impl_->shards.IndexOf(params.handle)].StartSample(std::move(context), params,
                                                                      std::move(done));
}

void SolverCore::Smooth(ContextPtr context, const MeasuredSmooth& measured, const KeepModel& kept,
                        const SmoothResults& results, PostWork post, SmoothDone done) {
  StartSmooth(this, &impl_->admission, &impl_->steps, std::move(context), measured, kept, results,
              std::move(post), std::move(done));
}

absl::StatusOr<std::optional<FactorReply>> SolverCore::FindFactored(const RequestContext& context,
                                                                    const FactorParams& params) {
  return impl_->factor.FindKey(context, params);
}

absl::StatusOr<int64_t> SolverCore::Release(const std::string& caller,
                                            std::span<const Handle> handles) {
  if (handles.empty()) return InvalidFieldError("handle", "none", "at least one handle");
  return impl_->shards.Release(caller, handles);
}

absl::StatusOr<FactorizationStats> SolverCore::Get(const std::string& caller,
                                                   const Handle& handle) {
  return impl_->shards.Of(handle).cache().Get(caller, handle);
}

Shards& SolverCore::shards() { return impl_->shards; }

std::vector<FactorizationStats> SolverCore::List(const std::string& caller,
                                                 std::optional<Handle> after, int64_t limit) {
  return impl_->shards.List(caller, after, limit);
}

absl::StatusOr<PlanReply> SolverCore::Plan(const MatrixForm& form, int64_t num_systems,
                                           int64_t num_rhs) {
  Shard& shard = impl_->shards.front();
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
  for (size_t i = 0; i < impl_->shards.size(); ++i) {
    const Shard::State state = impl_->shards[i].state();
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

const CoreLimits& SolverCore::limits() const { return impl_->admission.limits(); }
std::shared_ptr<MemoryPool> SolverCore::host_memory() { return impl_->host_memory; }
Backend& SolverCore::backend() { return impl_->shards.front().solver().backend(); }
bool SolverCore::healthy() const { return impl_->shards.healthy(); }

void SolverCore::OnDeviceFailure(std::function<void(const DeviceFailure&)> callback) {
  impl_->shards.OnFailure(std::move(callback));
}

void SolverCore::Drain() { impl_->Drain(); }

}  // namespace blockd::server
