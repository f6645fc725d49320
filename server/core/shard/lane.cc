#include "server/core/shard/lane.h"

#include <algorithm>
#include <utility>

#include "server/base/relax.h"
#include "server/base/short_slices.h"
#include "server/base/thread_name.h"

namespace blockd::server {
namespace {

// A prediction is wrong by some factor: only what would be late even at this part of it is refused,
// and at the pace of the fastest work of late, which is forgotten by kForgetting a flight.
constexpr double kSurely = 0.5;
constexpr double kForgetting = 0.01;
// How fast the correction follows what is seen, and how far it goes.
constexpr double kLearning = 0.1;
constexpr double kLeastCorrection = 0.1, kMostCorrection = 10;

// The correction also contains late wake-ups, which a thread that is awake does not have.
constexpr double kInlineCorrection = 1.5;

TaskPtr AsTask(WorkPtr work) { return TaskPtr(static_cast<Task*>(work.release())); }

}  // namespace

Lane::Lane(const Options& options, Clock* clock,
           absl::AnyInvocable<void(absl::Time) const> on_deadline)
    : max_inline_(options.max_inline),
      clock_(clock),
      on_deadline_(std::move(on_deadline)),
      work_(options.poll),
      done_(options.poll),
      scheduler_(options.limits) {
  feeder_ = std::thread([this] {
    NameThread("feeder");
    AskForShortSlices();
    Loop();
  });
  completer_ = std::thread([this] {
    NameThread("completer");
    AskForShortSlices();
    CompleteLoop();
  });
}

Lane::~Lane() {
  {
    absl::MutexLock lock(&mutex_);
    stop_ = flush_ = true;
    work_.Signal();
  }
  feeder_.join();
  {
    absl::MutexLock lock(&mutex_);
    fed_ = true;
    done_.Signal();
  }
  completer_.join();
}

absl::Status Lane::Push(TaskPtr& task) {
  const absl::Time now = clock_->Now();
  const absl::Time deadline = task->context->deadline;
  Flight* flight = nullptr;
  std::vector<EndedWork> ended;
  {
    absl::MutexLock lock(&mutex_);
    // A thread that raises the flag afterwards finds the task in the queue, under this lock.
    if (task->ended(now)) return task->EndStatus(now);
    if (deadline != absl::InfiniteFuture()) {
      const Ticket& ticket = task->ticket();
      const absl::Duration predicted =
          absl::Seconds((scheduler_.SecondsBefore(ticket) + ticket.seconds) * correction_ +
                        RunningSecondsLocked(now, correction_));
      const absl::Duration left = deadline - now;
      if (predicted * std::min(kSurely, fastest_ / correction_) > left) {
        return DeadlineUnreachableError({.predicted = predicted, .left = left});
      }
    }
    const bool may_run_here = task->context->may_run_here && !task->ticket().refines;
    scheduler_.Push(std::move(task), now);
    if (may_run_here && RunsInlineLocked(now)) inline_ = flight = TakeFlightLocked(now, &ended);
    // Else the thread looks at the queue when a flight is done.
    if (flight == nullptr && HasRoomLocked()) work_.Signal();
  }
  if (deadline != absl::InfiniteFuture()) on_deadline_(deadline);
  Answer(std::move(ended));
  if (flight != nullptr) Run(flight);
  return absl::OkStatus();
}

bool Lane::RunsInlineLocked(absl::Time now) const {
  return max_inline_ > absl::ZeroDuration() && flights_.empty() && scheduler_.size() == 1 &&
         scheduler_.NextClose() <= now &&
         absl::Seconds(scheduler_.seconds() * std::min(correction_, kInlineCorrection)) <=
             max_inline_;
}

double Lane::RunningSecondsLocked(absl::Time now, double stretch) const {
  if (flights_.empty()) return 0;
  double seconds = 0;
  for (const auto& flight : flights_) seconds += flight->seconds;
  const absl::Time since = std::max(flights_.front()->started, last_end_);
  return std::max(seconds * stretch - absl::ToDoubleSeconds(now - since), 0.0);
}

absl::Duration Lane::Backlog() const {
  const absl::Time now = clock_->Now();
  absl::MutexLock lock(&mutex_);
  return absl::Seconds(scheduler_.seconds() * correction_ + RunningSecondsLocked(now, correction_));
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
    for (const auto& flight : flights_) {
      for (const TaskPtr& task : flight->batch) {
        if (task->context->deadline > now) {
          next = std::min(next, task->context->deadline);
        } else {
          task->context->cancelled.store(true, std::memory_order_relaxed);
        }
      }
    }
  }
  Answer(std::move(ended));
  return next;
}

void Lane::WakeOverdue() {
  absl::MutexLock lock(&mutex_);
  if (!scheduler_.empty() && scheduler_.NextClose() <= clock_->Now()) work_.Signal();
}

void Lane::Flush() {
  absl::MutexLock lock(&mutex_);
  flush_ = true;
  work_.Signal();
}

bool Lane::HasRoomLocked() const {
  if (inline_ != nullptr) return false;
  if (flights_.empty() || flush_) return flights_.size() < kMostFlights;
  int64_t flying = 0;
  for (const auto& flight : flights_) flying += std::ssize(flight->batch);
  return flights_.size() < kMostFlights && scheduler_.size() >= flying;
}

void Lane::AwaitLocked(Wait* wait) {
  const absl::Time until = wait->since + wait->patience.left();
  if (clock_->Now() >= until) return wait->condition.Wait(&mutex_);
  const uint64_t seen = wait->signals.load(std::memory_order_relaxed);
  mutex_.Unlock();
  while (wait->signals.load(std::memory_order_acquire) == seen && clock_->Now() < until) Relax();
  mutex_.Lock();
}

void Lane::Loop() {
  bool idle = true;
  absl::MutexLock lock(&mutex_);
  while (!(stop_ && scheduler_.empty())) {
    const absl::Time now = clock_->Now();
    if (scheduler_.empty() || !HasRoomLocked()) {
      idle = true;
      AwaitLocked(&work_);
      continue;
    }
    if (std::exchange(idle, false)) work_.patience.Came(now - work_.since);
    if (const absl::Time close = scheduler_.NextClose(); close > now && !flush_) {
      clock_->WaitUntil(&mutex_, &work_.condition, close);
      continue;
    }
    std::vector<EndedWork> ended;
    Flight* const flight = TakeFlightLocked(now, &ended);
    mutex_.Unlock();
    Answer(std::move(ended));
    if (flight != nullptr) Run(flight);
    const absl::Time fed = clock_->Now();
    mutex_.Lock();
    work_.since = std::max(work_.since, fed);
  }
}

Lane::Flight* Lane::TakeFlightLocked(absl::Time now, std::vector<EndedWork>* ended) {
  std::vector<WorkPtr> works =
      scheduler_.Take(now, flush_, ended,
                      {.stretch = correction_,
                       .least_stretch = fastest_,
                       .busy_seconds = RunningSecondsLocked(now, fastest_)});
  if (works.empty()) return nullptr;
  auto flight = std::make_unique<Flight>();
  flight->batch.reserve(works.size());
  for (WorkPtr& work : works) {
    const Ticket& ticket = work->ticket();
    flight->seconds += flight->batch.empty() ? std::min(ticket.seconds, work->granted_seconds())
                                             : ticket.marginal_seconds;
    flight->batch.push_back(AsTask(std::move(work)));
  }
  flight->started = now;
  flights_.push_back(std::move(flight));
  return flights_.back().get();
}

void Lane::Run(Flight* flight) noexcept {
  // Who comes back keeps its place.
  for (TaskPtr& task : flight->batch) {
    if (!task->is_piece()) task->permit.slot.Reset();
  }
  Operation::Completion completion = flight->batch[0]->operation->Run(flight->batch);
  if (completion == nullptr) return End(flight);
  absl::MutexLock lock(&mutex_);
  flight->completion = std::move(completion);
  done_.Signal();
}

void Lane::CompleteLoop() {
  absl::MutexLock lock(&mutex_);
  for (;;) {
    Flight* const flight = flights_.empty() ? nullptr : flights_.front().get();
    if (flight != nullptr && flight->completion != nullptr) {
      done_.patience.Came(clock_->Now() - done_.since);
      mutex_.Unlock();
      flight->completion();
      End(flight);
      const absl::Time done = clock_->Now();
      mutex_.Lock();
      done_.since = done;
    } else if (fed_ && flight == nullptr) {
      return;
    } else {
      AwaitLocked(&done_);
    }
  }
}

void Lane::End(Flight* flight) {
  const absl::Time end = clock_->Now();
  std::unique_ptr<Flight> over;
  std::vector<EndedWork> ended;
  {
    absl::MutexLock lock(&mutex_);
    const auto found = std::find_if(
        flights_.begin(), flights_.end(),
        [flight](const std::unique_ptr<Flight>& each) { return each.get() == flight; });
    over = std::move(*found);
    flights_.erase(found);
    const double seconds = absl::ToDoubleSeconds(end - std::max(over->started, last_end_));
    // The thread that feeds had nothing to do with the other kind, and need not look for more.
    if (flight == inline_) {
      inline_ = nullptr;
    } else {
      last_end_ = end;
      work_.since = std::max(work_.since, end);
    }
    if (over->seconds > 0 && seconds > 0) {
      const double seen = std::clamp(seconds / over->seconds, kLeastCorrection, kMostCorrection);
      correction_ += kLearning * (seen - correction_);
      fastest_ = std::min(seen, fastest_ + kForgetting * (seen - fastest_));
    }
    // The one before it may have been in the way of its completion.
    if (!flights_.empty() || fed_) done_.Signal();
    // A thread that raises a flag afterwards finds the task in the queue, under this lock.
    for (TaskPtr& task : over->batch) {
      if (!std::exchange(task->unfinished, false)) continue;
      if (task->ended(end)) {
        absl::Status status = task->EndStatus(end);
        ended.push_back({std::move(task), std::move(status)});
      } else {
        scheduler_.Push(std::move(task), end);
      }
    }
    if ((stop_ || !scheduler_.empty()) && HasRoomLocked()) work_.Signal();
  }
  Answer(std::move(ended));
}

}  // namespace blockd::server
