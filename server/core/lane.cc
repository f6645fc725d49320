#include "server/core/lane.h"

#include <algorithm>
#include <utility>

namespace blockd::server {
namespace {

// A prediction is wrong by some factor: only what would be late even at this part of it is refused.
constexpr double kSurely = 0.5;
// How fast the correction follows what is seen, and how far it goes.
constexpr double kLearning = 0.1;
constexpr double kLeastCorrection = 0.1, kMostCorrection = 10;

TaskPtr AsTask(WorkPtr work) { return TaskPtr(static_cast<Task*>(work.release())); }

}  // namespace

Lane::Lane(const SchedulerLimits& limits, Clock* clock,
           absl::AnyInvocable<void(absl::Time) const> on_deadline)
    : clock_(clock), on_deadline_(std::move(on_deadline)), scheduler_(limits) {
  thread_ = std::thread([this] { Loop(); });
}

Lane::~Lane() {
  {
    absl::MutexLock lock(&mutex_);
    stop_ = flush_ = true;
    work_.SignalAll();
  }
  thread_.join();
}

absl::Status Lane::Push(TaskPtr& task) {
  const absl::Time now = clock_->Now();
  const absl::Time deadline = task->context->deadline;
  {
    absl::MutexLock lock(&mutex_);
    // Whoever raises the flag looks for the task afterwards, under this lock.
    if (task->ended(now)) return task->EndStatus(now);
    if (deadline != absl::InfiniteFuture()) {
      const Ticket& ticket = task->ticket();
      const absl::Duration predicted =
          absl::Seconds((scheduler_.SecondsBefore(ticket) + ticket.seconds) * correction_ +
                        RunningSecondsLocked(now));
      const absl::Duration left = deadline - now;
      if (predicted * kSurely > left) {
        return DeadlineUnreachableError({.predicted = predicted, .left = left});
      }
    }
    scheduler_.Push(std::move(task), now);
    // While it is busy, the thread looks at the queue when it is done.
    if (running_.empty()) work_.Signal();
  }
  if (deadline != absl::InfiniteFuture()) on_deadline_(deadline);
  return absl::OkStatus();
}

double Lane::RunningSecondsLocked(absl::Time now) const {
  if (running_.empty()) return 0;
  const double spent = absl::ToDoubleSeconds(now - running_since_);
  return std::max(running_seconds_ * correction_ - spent, 0.0);
}

absl::Duration Lane::Backlog() const {
  const absl::Time now = clock_->Now();
  absl::MutexLock lock(&mutex_);
  return absl::Seconds(scheduler_.seconds() * correction_ + RunningSecondsLocked(now));
}

int64_t Lane::size(WorkKind kind) const {
  absl::MutexLock lock(&mutex_);
  return scheduler_.size(kind);
}

void Lane::Answer(std::vector<EndedWork> ended) {
  for (auto& [work, status] : ended) {
    TaskPtr task = AsTask(std::move(work));
    Operation* const operation = task->operation;
    operation->Fail(std::move(task), status);
  }
}

void Lane::Cancel(const void* owner) {
  const absl::Time now = clock_->Now();
  std::vector<EndedWork> ended;
  {
    absl::MutexLock lock(&mutex_);
    ended = scheduler_.Cancel(owner, now);
  }
  Answer(std::move(ended));
}

absl::Time Lane::EndExpired(absl::Time now) {
  std::vector<EndedWork> ended;
  absl::Time next;
  {
    absl::MutexLock lock(&mutex_);
    ended = scheduler_.TakeExpired(now);
    next = scheduler_.NextDeadline();
    for (Task* task : running_) {
      if (task->context->deadline > now) {
        next = std::min(next, task->context->deadline);
      } else {
        task->context->cancelled.store(true, std::memory_order_relaxed);
      }
    }
  }
  Answer(std::move(ended));
  return next;
}

void Lane::Flush() {
  absl::MutexLock lock(&mutex_);
  flush_ = true;
  work_.SignalAll();
}

void Lane::Loop() {
  absl::MutexLock lock(&mutex_);
  while (!(stop_ && scheduler_.empty())) {
    const absl::Time now = clock_->Now();
    if (scheduler_.empty()) {
      work_.Wait(&mutex_);
      continue;
    }
    if (const absl::Time close = scheduler_.NextClose(); close > now && !flush_) {
      clock_->WaitUntil(&mutex_, &work_, close);
      continue;
    }
    std::vector<EndedWork> ended;
    std::vector<WorkPtr> works = scheduler_.Take(now, flush_, &ended, correction_);
    running_seconds_ = 0;
    for (const WorkPtr& work : works) {
      running_.push_back(static_cast<Task*>(work.get()));
      const Ticket& ticket = work->ticket();
      running_seconds_ += running_seconds_ == 0 ? std::min(ticket.seconds, work->granted_seconds())
                                                : ticket.marginal_seconds;
    }
    running_since_ = now;
    mutex_.Unlock();
    Answer(std::move(ended));
    if (!works.empty()) RunBatch(std::move(works), now);
    mutex_.Lock();
  }
}

void Lane::RunBatch(std::vector<WorkPtr> works, absl::Time now) {
  std::vector<TaskPtr> batch;
  batch.reserve(works.size());
  for (WorkPtr& work : works) batch.push_back(AsTask(std::move(work)));
  // Who comes back keeps its place.
  for (TaskPtr& task : batch) {
    if (!task->is_piece()) task->permit.slot.Reset();
  }
  batch[0]->operation->Run(batch);
  const absl::Time end = clock_->Now();
  {
    absl::MutexLock lock(&mutex_);
    running_.clear();  // before they are destroyed
    const double seconds = absl::ToDoubleSeconds(end - now);
    if (running_seconds_ > 0 && seconds > 0) {
      const double seen = std::clamp(seconds / running_seconds_, kLeastCorrection, kMostCorrection);
      correction_ += kLearning * (seen - correction_);
    }
    if (!batch[0]->unfinished) return;
    batch[0]->unfinished = false;
    // Whoever raises the flag looks for the task afterwards, under this lock.
    if (!batch[0]->ended(end)) return scheduler_.Push(std::move(batch[0]), end);
  }
  const absl::Status status = batch[0]->EndStatus(end);
  Operation* const operation = batch[0]->operation;
  operation->Fail(std::move(batch[0]), status);
}

}  // namespace blockd::server
