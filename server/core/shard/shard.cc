#include "server/core/shard/shard.h"

#include <algorithm>
#include <limits>
#include <utility>
#include <vector>

#include "server/base/thread_name.h"
#include "server/core/common/errors.h"
#include "server/core/tenants/admission.h"

namespace blockd::server {
namespace {

// While what was chosen to be evicted is used, or what was evicted for is taken, by others.
constexpr int kDefragmentAttempts = 3;
constexpr int64_t kReservePart = 16;  // of the pool, unless the operator says otherwise

SchedulerLimits LimitsOf(const CoreLimits& limits) {
  return {.max_requests = limits.max_batch_requests,
          .max_items = limits.max_batch_rhs,
          .max_bytes = limits.max_batch_bytes,
          .max_shared_seconds = absl::ToDoubleSeconds(limits.max_shared_batch),
          .max_delay = limits.max_batch_delay};
}

Budget::Options BudgetOf(Resource resource, int64_t total, double share, const CoreLimits& limits,
                         BudgetGroup* group) {
  return {.resource = resource,
          .total = total,
          .share = share,
          .retry_delay = limits.retry_delay,
          .group = group};
}

std::vector<FreePiece> FreePiecesOf(const MemoryPool& pool) {
  constexpr size_t kAtATime = 64;
  std::vector<FreePiece> all, some;
  do {
    some = pool.FreePieces(all.empty() ? nullptr : all.back().end(), kAtATime);
    all.insert(all.end(), some.begin(), some.end());
  } while (some.size() == kAtATime);
  return all;
}

DeviceBuffer TakeReserve(MemoryPool& pool, int64_t bytes) {
  if (bytes < 0) return DeviceBuffer();
  if (bytes == 0) bytes = pool.stats().capacity_bytes / kReservePart;
  bytes = bytes / MemoryPool::kAlignment * MemoryPool::kAlignment;
  absl::StatusOr<DeviceBuffer> reserve = pool.Allocate(bytes);
  return reserve.ok() ? *std::move(reserve) : DeviceBuffer();
}

absl::Duration MaxInline(Solver& solver, const CoreLimits& limits) {
  return solver.backend().device().backend == "cpu" ? limits.max_inline_solve
                                                    : absl::ZeroDuration();
}

// Often enough that a factorization outlives its expiry by a quarter at most.
absl::Duration SweepPeriod(absl::Duration idle_expiry) {
  if (idle_expiry == absl::InfiniteDuration()) return idle_expiry;
  return std::clamp(idle_expiry / 4, absl::Milliseconds(10), absl::Seconds(30));
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

Shard::Shard(uint8_t index, std::unique_ptr<Solver> solver, const CoreLimits& limits,
             const ServerIdentity& server, DeviceBudgets* budgets, Metrics* metrics, Clock* clock,
             absl::AnyInvocable<void(const absl::Status&)> on_failure)
    : index_(index),
      limits_(limits),
      metrics_(metrics),
      clock_(clock),
      on_failure_(std::move(on_failure)),
      solver_(std::move(solver)),
      reserve_(TakeReserve(solver_->backend().pool(), limits.solve_reserve_bytes)),
      solve_reserve_(reserve_ ? std::make_unique<MemoryPool>(reserve_.data(), reserve_.bytes())
                              : nullptr),
      device_(BudgetOf(Resource::kDeviceBytes,
                       solver_->backend().pool().stats().capacity_bytes - reserve_.bytes(), 1,
                       limits, &budgets->device)),
      pinned_(BudgetOf(Resource::kPinnedBytes, device_.total(), limits.tenant_share, limits,
                       &budgets->pinned)),
      cache_({.tombstones = limits.tombstones,
              .idle_expiry = limits.idle_expiry,
              .shard = index,
              .pinned = &pinned_},
             server, clock, metrics),
      solves_({.limits = LimitsOf(limits),
               .poll = limits.poll,
               .max_inline = MaxInline(*solver_, limits)},
              clock, [this](absl::Time deadline) { WatchBefore(deadline); }),
      factors_({.limits = LimitsOf(limits),
                .poll = limits.poll,
                .max_inline = MaxInline(*solver_, limits)},
               clock, [this](absl::Time deadline) { WatchBefore(deadline); }) {
  device_.set_evictor(&cache_);
  watch_thread_ = std::thread([this] { WatchLoop(); });
}

Shard::~Shard() {
  {
    absl::MutexLock lock(&watch_mutex_);
    stop_ = true;
    watch_.SignalAll();
  }
  watch_thread_.join();
}

// -----------------------------------------------------------------------------------------------------
// Requests

void Shard::Submit(TaskPtr task) {
  Operation* const operation = task->operation;
  Ticket ticket = task->ticket();
  ticket.tenant = task->permit.tenant.get();
  ticket.priority = Admission::ClassOf(*task->context);
  ticket.deadline = task->context->deadline;
  ticket.owner = task->context.get();
  Lane& lane = LaneOf(ticket.key.kind);
  task->set_ticket(std::move(ticket));
  if (&lane == &solves_ && task->pending_on == nullptr) {
    task->pending_on.reset(&solver_->backend());
    task->pending_on->CountPendingSolves(1);
  }
  absl::Status status = lane.Push(task);
  if (!status.ok()) operation->Fail(std::move(task), status);
}

void Shard::Cancel(const RequestContext* context) {
  solves_.Cancel(context);
  factors_.Cancel(context);
}

absl::StatusOr<std::shared_ptr<const EliminationPlan>> Shard::PlanFor(const MatrixForm& form,
                                                                      int64_t systems) {
  const int64_t least = LeastFactorBytes(form.shape, systems);
  if (least > device_.total()) {
    return InsufficientMemoryError({.asked_bytes = least,
                                    .free_bytes = device_.free(),
                                    .evictable_bytes = cache_.EvictableBytes(),
                                    .total_bytes = device_.total()});
  }
  return solver_->Plan(form.shape, systems);
}

int64_t Shard::FactorCharge(const EliminationPlan& plan, int64_t border_rows) {
  return MemoryPool::Rounded(plan.factor_bytes()) +
         MemoryPool::Rounded(Border::Bytes(plan.shape(), border_rows));
}

int64_t Shard::MatrixCharge(const MatrixForm& form) {
  return MemoryPool::Rounded(StagedMatrix::BufferBytes(form));
}

bool Shard::Defragment(std::span<const int64_t> pieces) {
  for (int attempt = 0; attempt < kDefragmentAttempts; ++attempt) {
    const std::vector<FreePiece> free = FreePiecesOf(solver_->backend().pool());
    if (PlanEviction(free, {}, pieces)) return true;
    const double fair_bytes =
        static_cast<double>(device_.total()) / std::max(cache_.HoldersWeight(), 1e-9);
    const std::vector<IdleObject> idle = cache_.IdleObjects(fair_bytes);
    const std::optional<std::vector<IdleObject>> chosen = PlanEviction(free, idle, pieces);
    if (!chosen) return false;
    device_.Free(cache_.EvictChosen(*chosen));
  }
  return PlanEviction(FreePiecesOf(solver_->backend().pool()), {}, pieces).has_value();
}

void Shard::CountBusy(int change) {
  const absl::Time now = clock_->Now();
  absl::MutexLock lock(&busy_mutex_);
  if (busy_lanes_ > 0) {
    metrics_->RecordDeviceBusy(now - busy_since_);
    busy_ += now - busy_since_;
  }
  busy_since_ = now;
  busy_lanes_ += change;
}

Cost Shard::MakeCost(const Task& task, const RanBatch& batch, absl::Duration received) {
  Cost cost;
  cost.queue = std::max(batch.started - task.accepted, absl::ZeroDuration());
  cost.batch_requests = batch.requests;
  cost.batch_items = batch.items;
  cost.upload = received + absl::Seconds(batch.phases.upload_seconds);
  cost.compute = absl::Seconds(batch.phases.compute_seconds);
  cost.download = absl::Seconds(batch.phases.download_seconds);
  metrics_->RecordPhases(task.method, {cost.queue, cost.upload, cost.compute, cost.download});
  if (task.permit.tenant != nullptr && batch.requests > 0) {
    task.permit.tenant->device_nanoseconds.fetch_add(
        absl::ToInt64Nanoseconds(cost.compute) / batch.requests * task.requests,
        std::memory_order_relaxed);
  }
  return cost;
}

// -----------------------------------------------------------------------------------------------------
// The watch

void Shard::SetWatch(absl::AnyInvocable<absl::Time(absl::Time)> look) {
  absl::MutexLock lock(&look_mutex_);
  look_ = std::move(look);
}

void Shard::WatchBefore(absl::Time deadline) {
  absl::MutexLock lock(&watch_mutex_);
  if (deadline >= watched_) return;
  watched_ = deadline;
  watch_.Signal();
}

// Sleeps until the earliest deadline that it knows of. A request that is answered in time leaves
// its deadline behind, which then costs one look in vain: cheaper than taking it out each time.
void Shard::WatchLoop() {
  NameThread("watch");
  const absl::Duration period = SweepPeriod(limits_.idle_expiry);
  absl::Time sweep = clock_->Now() + period;
  absl::MutexLock lock(&watch_mutex_);
  while (!stop_) {
    watched_ = absl::InfiniteFuture();  // what comes from here on is noted
    watch_mutex_.Unlock();
    const absl::Time now = clock_->Now();
    absl::Time next = std::min(solves_.EndExpired(now), factors_.EndExpired(now));
    {
      absl::MutexLock look_lock(&look_mutex_);
      if (look_) next = std::min(next, look_(now));
    }
    if (now >= sweep) {
      cache_.Expire();
      sweep = now + period;
    }
    watch_mutex_.Lock();
    watched_ = std::min({watched_, next, sweep});
    if (!stop_ && clock_->Now() < watched_) clock_->WaitUntil(&watch_mutex_, &watch_, watched_);
  }
}

// -----------------------------------------------------------------------------------------------------
// Health and the end

void Shard::Note(const absl::Status& status) {
  if (!absl::IsInternal(status)) return;
  {
    absl::MutexLock lock(&health_mutex_);
    if (!failure_.ok()) return;
    failure_ = status;
  }
  on_failure_(status);
}

absl::Status Shard::CheckInService() const {
  if (in_service_) return absl::OkStatus();
  return RetryAfterError("the device that it waited for failed, another takes it",
                         limits_.retry_delay);
}

absl::Status Shard::failure() const {
  absl::MutexLock lock(&health_mutex_);
  return failure_;
}

void Shard::TakeOutOfService() {
  cache_.Close();
  device_.LeaveGroup();
  pinned_.LeaveGroup();
  in_service_ = false;  // from now on none of its handles is found
}

void Shard::WakeOverdue() {
  solves_.WakeOverdue();
  factors_.WakeOverdue();
  absl::MutexLock lock(&watch_mutex_);
  if (watched_ <= clock_->Now()) watch_.Signal();
}

void Shard::Flush() {
  solves_.Flush();
  factors_.Flush();
}

Shard::State Shard::state() {
  State state;
  const DeviceInfo& device = solver_->backend().device();
  state.backend = device.backend;
  state.name = device.name;
  state.parallelism = device.parallelism;
  state.memory_bytes = device_.total();
  state.free_bytes = device_.free();
  state.evictable_bytes = cache_.EvictableBytes();
  state.solve_reserve_bytes = reserve_.bytes();
  state.factorizations = cache_.totals().entries;
  state.pool = solver_->backend().pool().stats();
  state.backlog = Backlog();
  state.in_service = in_service();
  state.failure = failure();
  return state;
}

void Shard::Sample(GaugeSample& sample) {
  const Cache::Totals totals = cache_.totals();
  DeviceSample own;
  own.healthy = failure().ok();
  own.factorizations = totals.entries;
  own.budget_bytes = device_.total();
  own.budget_reserved_bytes = device_.reserved();
  own.budget_evictable_bytes = cache_.EvictableBytes();
  own.backlog_seconds = absl::ToDoubleSeconds(Backlog());
  {
    absl::MutexLock lock(&busy_mutex_);
    own.busy_seconds = absl::ToDoubleSeconds(busy_);
  }
  sample.devices.push_back(own);
  sample.queued[static_cast<size_t>(WorkKind::kSolve)] += solves_.size(WorkKind::kSolve);
  for (const WorkKind kind :
       {WorkKind::kFactor, WorkKind::kFactorSolve, WorkKind::kInverse, WorkKind::kSmooth}) {
    sample.queued[static_cast<size_t>(kind)] += factors_.size(kind);
  }
  if (!in_service()) return;
  sample.factorizations += totals.entries;
  sample.factorization_bytes += totals.bytes;
  sample.pinned_factorizations += totals.pinned;
  sample.budget_bytes += own.budget_bytes;
  sample.budget_reserved_bytes += own.budget_reserved_bytes;
  sample.budget_peak_reserved_bytes += device_.peak_reserved();
  sample.budget_evictable_bytes += own.budget_evictable_bytes;
  sample.solve_reserve_bytes += reserve_.bytes();
  const PoolStats pool = solver_->backend().pool().stats();
  sample.pool_bytes += pool.capacity_bytes;
  sample.pool_used_bytes += pool.used_bytes;
  sample.pool_peak_used_bytes += pool.peak_used_bytes;
  sample.pool_free_bytes += pool.free_bytes;
  sample.pool_largest_free_bytes =
      std::max(sample.pool_largest_free_bytes, pool.largest_free_bytes);
  sample.device_memory_bytes += solver_->backend().device().memory_bytes;
}

}  // namespace blockd::server
