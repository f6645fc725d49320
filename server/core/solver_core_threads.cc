// The queue, the device thread, the watch thread, and the end.
#include <algorithm>
#include <utility>

#include "server/core/solver_core_impl.h"

namespace blockd::server {
namespace {

BatchLimits LimitsOf(const CoreLimits& limits) {
  return {.max_queued = limits.max_queued_requests,
          .max_requests = limits.max_batch_requests,
          .max_items = limits.max_batch_rhs,
          .max_bytes = limits.max_batch_bytes,
          .max_delay = limits.max_batch_delay};
}

// Often enough that a factorization outlives its expiry by a quarter at most.
absl::Duration SweepPeriod(absl::Duration idle_expiry) {
  if (idle_expiry == absl::InfiniteDuration()) return idle_expiry;
  return std::clamp(idle_expiry / 4, absl::Milliseconds(10), absl::Seconds(30));
}

template <typename T>
std::vector<T*> As(const std::vector<TaskPtr>& tasks) {
  std::vector<T*> typed;
  typed.reserve(tasks.size());
  for (const TaskPtr& task : tasks) typed.push_back(static_cast<T*>(task.get()));
  return typed;
}

}  // namespace

SolverCore::Impl::Impl(std::unique_ptr<Solver> solver, const CoreLimits& limits,
                       const ServerIdentity& server, Metrics* metrics, Clock* clock)
    : limits_(limits),
      server_name_(server.name),
      metrics_(metrics),
      clock_(clock),
      solver_(std::move(solver)),
      budget_(solver_->backend().pool().stats().capacity_bytes, limits.retry_delay),
      cache_({.tombstones = limits.tombstones, .idle_expiry = limits.idle_expiry}, server, clock,
             metrics),
      batcher_(LimitsOf(limits)) {
  budget_.set_evictor(&cache_);
  metrics_->SetSampler([this] { return Sample(); });
  device_thread_ = std::thread([this] { DeviceLoop(); });
  watch_thread_ = std::thread([this] { WatchLoop(); });
}

SolverCore::Impl::~Impl() {
  Drain();
  metrics_->SetSampler(nullptr);
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
    work_.SignalAll();
    watch_.SignalAll();
  }
  device_thread_.join();
  watch_thread_.join();
}

void SolverCore::Impl::Drain() {
  absl::MutexLock lock(&mutex_);
  draining_ = true;
  work_.SignalAll();  // batches that wait for company close now
  while (outstanding_ > 0) finished_.Wait(&mutex_);
}

// -----------------------------------------------------------------------------------------------------
// The queue

Ticket SolverCore::Impl::TicketOf(const Task& task) {
  Ticket ticket;
  ticket.key.kind = task.kind;
  ticket.deadline = task.context->deadline;
  ticket.cancelled = &task.context->cancelled;
  if (task.kind == WorkKind::kSolve) {
    const auto& solve = static_cast<const SolveTask&>(task);
    ticket.key.plan = solve.pin->shared_plan();
    ticket.items = solve.params.num_rhs;
    ticket.bytes = static_cast<int64_t>(solve.params.rhs.size());
  } else if (task.kind == WorkKind::kFactor) {
    const auto& factor = static_cast<const FactorTask&>(task);
    ticket.key.plan = factor.plan;
    ticket.bytes = factor.params.num_systems * factor.params.form.bytes();
  } else {
    const auto& both = static_cast<const FactorSolveTask&>(task);
    ticket.key.plan = both.plan;
    ticket.items = both.params.num_rhs;
    ticket.bytes = both.params.matrix.form.bytes() + static_cast<int64_t>(both.params.rhs.size());
  }
  return ticket;
}

absl::Status SolverCore::Impl::RefuseNew(absl::Time now, EndedTasks* ended) {
  if (draining_) return DrainingError(server_name_, limits_.retry_delay);
  if (batcher_.size() + waiting_ >= limits_.max_queued_requests) *ended = batcher_.TakeEnded(now);
  if (batcher_.size() + waiting_ >= limits_.max_queued_requests) {
    return RetryAfterError("the queue is full", limits_.retry_delay);
  }
  return absl::OkStatus();
}

absl::Status SolverCore::Impl::BeginWork(const RequestContext& context) {
  const absl::Time now = clock_->Now();
  if (context.deadline <= now) return absl::DeadlineExceededError("the deadline has passed");
  if (context.cancelled.load(std::memory_order_relaxed)) {
    return absl::CancelledError("the request was cancelled");
  }
  EndedTasks ended;
  absl::Status status;
  {
    absl::MutexLock lock(&mutex_);
    status = RefuseNew(now, &ended);
    if (status.ok()) ++outstanding_;
  }
  FailAll(std::move(ended));
  return status;
}

void SolverCore::Impl::Finished(int64_t count) {
  absl::MutexLock lock(&mutex_);
  outstanding_ -= count;
  if (outstanding_ == 0) finished_.SignalAll();
}

bool SolverCore::Impl::Push(TaskPtr& task, absl::Time now) {
  const absl::Time deadline = task->context->deadline;
  const Ticket ticket = TicketOf(*task);
  if (!batcher_.Push(ticket, task, now)) return false;
  WatchBefore(deadline);
  // While the device is busy, whoever has it looks at the queue when it is done.
  if (!device_busy_) work_.Signal();
  return true;
}

void SolverCore::Impl::Queue(TaskPtr task) {
  const absl::Time now = clock_->Now();
  {
    absl::MutexLock lock(&mutex_);
    if (Push(task, now)) return;
  }
  Fail(*task, RetryAfterError("the queue is full", limits_.retry_delay));
  task.reset();
  Finished(1);
}

bool SolverCore::Impl::QueueSolve(std::unique_ptr<SolveTask>& task, bool at_once) {
  TaskPtr queued;
  EndedTasks ended;
  absl::Status status;
  {
    absl::MutexLock lock(&mutex_);
    status = RefuseNew(task->accepted, &ended);
    if (status.ok()) {
      ++outstanding_;
      if (at_once && !device_busy_ && batcher_.empty() && ended.empty()) {
        device_busy_ = true;
        return true;
      }
      queued.reset(task.release());
      Push(queued, queued->accepted);  // there is room
    }
  }
  FailAll(std::move(ended));
  if (!status.ok()) Fail(*task, status);
  return false;
}

void SolverCore::Impl::EndInline() {
  absl::MutexLock lock(&mutex_);
  device_busy_ = false;
  if (!batcher_.empty()) work_.Signal();
}

void SolverCore::Impl::Fail(Task& task, const absl::Status& status) {
  switch (task.kind) {
    case WorkKind::kSolve: {
      auto& solve = static_cast<SolveTask&>(task);
      solve.pin = {};
      return solve.done(status);
    }
    case WorkKind::kFactor:
      return AnswerFactor(static_cast<FactorTask&>(task), status);
    case WorkKind::kFactorSolve: {
      auto& both = static_cast<FactorSolveTask&>(task);
      both.reservation.Reset();
      return both.done(status);
    }
  }
}

void SolverCore::Impl::FailAll(EndedTasks ended) {
  for (auto& [task, status] : ended) {
    Fail(*task, status);
    task.reset();
    Finished(1);
  }
}

// -----------------------------------------------------------------------------------------------------
// The device thread

void SolverCore::Impl::RunBatch(const std::vector<TaskPtr>& batch) {
  switch (batch[0]->kind) {
    case WorkKind::kSolve:
      return RunSolves(As<SolveTask>(batch));
    case WorkKind::kFactor:
      return RunFactors(As<FactorTask>(batch));
    case WorkKind::kFactorSolve:
      return RunFactorSolves(As<FactorSolveTask>(batch));
  }
}

void SolverCore::Impl::DeviceLoop() {
  absl::MutexLock lock(&mutex_);
  while (!(stopping_ && batcher_.empty())) {
    const absl::Time now = clock_->Now();
    if (device_busy_ || batcher_.empty()) {
      work_.Wait(&mutex_);
      continue;
    }
    if (const absl::Time close = batcher_.NextClose(); close > now && !draining_) {
      clock_->WaitUntil(&mutex_, &work_, close);
      continue;
    }
    EndedTasks ended;
    std::vector<TaskPtr> batch = batcher_.Take(now, /*flush=*/draining_, &ended);
    device_busy_ = true;
    for (const TaskPtr& task : batch) running_.push_back(task.get());
    mutex_.Unlock();
    FailAll(std::move(ended));
    if (!batch.empty()) RunBatch(batch);
    mutex_.Lock();
    running_.clear();
    device_busy_ = false;
    mutex_.Unlock();
    const int64_t count = static_cast<int64_t>(batch.size());
    batch.clear();
    Finished(count);
    mutex_.Lock();
  }
}

Cost SolverCore::Impl::MakeCost(const Task& task, const Piece& piece, absl::Duration received) {
  Cost cost;
  cost.queue = std::max(piece.started - task.accepted, absl::ZeroDuration());
  cost.batch_requests = piece.requests;
  cost.batch_items = piece.items;
  cost.upload = received + absl::Seconds(piece.phases.upload_seconds);
  cost.compute = absl::Seconds(piece.phases.compute_seconds);
  cost.download = absl::Seconds(piece.phases.download_seconds);
  metrics_->RecordPhases(task.method, {cost.queue, cost.upload, cost.compute, cost.download});
  return cost;
}

// -----------------------------------------------------------------------------------------------------
// The watch thread

void SolverCore::Impl::WatchBefore(absl::Time deadline) {
  if (deadline >= watched_) return;
  watched_ = deadline;
  watch_.Signal();
}

absl::Time SolverCore::Impl::WatchDeadlines(absl::Time now, EndedTasks* ended) {
  *ended = batcher_.TakeEnded(now);
  absl::Time next = batcher_.NextDeadline();
  for (auto& [key, waiters] : keys_) {
    for (std::unique_ptr<FactorTask>& waiter : waiters) {
      if (!waiter->ended(now)) {
        next = std::min(next, waiter->context->deadline);
        continue;
      }
      absl::Status status = waiter->EndStatus(now);
      ended->push_back({std::move(waiter), std::move(status)});
      --waiting_;
    }
    std::erase(waiters, nullptr);
  }
  for (Task* task : running_) {
    if (task->context->deadline > now) {
      next = std::min(next, task->context->deadline);
    } else {
      task->context->cancelled.store(true, std::memory_order_relaxed);
    }
  }
  return next;
}

// Sleeps until the earliest deadline that it knows of. A request that is answered in time leaves
// its deadline behind, which then costs one look in vain: cheaper than taking it out each time.
void SolverCore::Impl::WatchLoop() {
  const absl::Duration period = SweepPeriod(limits_.idle_expiry);
  absl::Time sweep = clock_->Now() + period;
  absl::MutexLock lock(&mutex_);
  while (!stopping_) {
    const absl::Time now = clock_->Now();
    EndedTasks ended;
    const absl::Time next = WatchDeadlines(now, &ended);
    const bool sweeps = now >= sweep;
    if (sweeps) sweep = now + period;
    if (sweeps || !ended.empty()) {
      mutex_.Unlock();
      FailAll(std::move(ended));
      if (sweeps) cache_.Expire();
      mutex_.Lock();
      continue;
    }
    watched_ = std::min(next, sweep);
    clock_->WaitUntil(&mutex_, &watch_, watched_);
  }
}

// -----------------------------------------------------------------------------------------------------
// Health and metrics

void SolverCore::Impl::Note(const absl::Status& status) {
  if (!absl::IsInternal(status)) return;
  absl::AnyInvocable<void(const absl::Status&)> callback;
  {
    absl::MutexLock lock(&mutex_);
    if (!failure_.ok()) return;
    failure_ = status;
    callback = std::exchange(on_unhealthy_, nullptr);
  }
  if (callback) callback(status);
}

bool SolverCore::Impl::healthy() const {
  absl::MutexLock lock(&mutex_);
  return failure_.ok();
}

void SolverCore::Impl::OnUnhealthy(absl::AnyInvocable<void(const absl::Status&)> callback) {
  absl::Status failure;
  {
    absl::MutexLock lock(&mutex_);
    if (failure_.ok()) {
      on_unhealthy_ = std::move(callback);
      return;
    }
    failure = failure_;
  }
  callback(failure);
}

GaugeSample SolverCore::Impl::Sample() const {
  GaugeSample sample;
  const FactorizationCache::Totals totals = cache_.totals();
  sample.factorizations = totals.entries;
  sample.factorization_bytes = totals.bytes;
  sample.pinned_factorizations = totals.pinned;
  sample.budget_bytes = budget_.total_bytes();
  sample.budget_reserved_bytes = budget_.reserved_bytes();
  sample.budget_peak_reserved_bytes = budget_.peak_reserved_bytes();
  sample.budget_evictable_bytes = cache_.EvictableBytes();
  const PoolStats pool = solver_->backend().pool().stats();
  sample.pool_bytes = pool.capacity_bytes;
  sample.pool_used_bytes = pool.used_bytes;
  sample.pool_peak_used_bytes = pool.peak_used_bytes;
  sample.pool_free_bytes = pool.free_bytes;
  sample.pool_largest_free_bytes = pool.largest_free_bytes;
  sample.device_memory_bytes = solver_->backend().device().memory_bytes;
  absl::MutexLock lock(&mutex_);
  for (int kind = 0; kind < kWorkKinds; ++kind) {
    sample.queued[kind] = batcher_.size(static_cast<WorkKind>(kind));
  }
  sample.healthy = failure_.ok();
  return sample;
}

}  // namespace blockd::server
