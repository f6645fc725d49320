// The queue before a device for one kind of work, a thread that feeds the device from it, and one
// that answers what the device has done. A device has a lane for Solves and one for all that
// factors, so that neither waits for the other.
//
// Batches that the device was given and has not done are in flight, at most kMostFlights of them.
// One more goes after them as soon as it has as many requests as they have together: the device
// then finds it ready. What little there is otherwise waits for more company, since a batch costs
// little more than a part of it.
//
// Thread-safe. No lock is held while a task runs, is answered or is destroyed.
#ifndef BLOCKD_SERVER_CORE_SHARD_LANE_H_
#define BLOCKD_SERVER_CORE_SHARD_LANE_H_

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "server/base/clock.h"
#include "server/base/patience.h"
#include "server/core/shard/scheduler.h"
#include "server/core/shard/task.h"

namespace blockd::server {

class Lane {
 public:
  struct Options {
    SchedulerLimits limits;
    // How long the threads go on looking for work once they had some (Patience); being woken takes
    // longer than a small solve waits otherwise.
    absl::Duration poll;
    // Push runs and answers a task itself if its context allows it, nothing else waits and the
    // predicted time is at most this. Only for work that is done once its operation has run.
    absl::Duration max_inline;
  };
  // `on_deadline` is told of deadlines that come, and calls EndExpired in time.
  Lane(const Options& options, Clock* clock,
       absl::AnyInvocable<void(absl::Time) const> on_deadline);
  ~Lane();  // after a Drain; runs what is left

  // Queues a task, or runs it. It is the caller's still if it is refused: CANCELLED if it was
  // cancelled, and DEADLINE_EXCEEDED with DeadlineUnreachable if it cannot be done in time, by what
  // was predicted of it and of all that goes before, and by how wrong such predictions were.
  absl::Status Push(TaskPtr& task);

  // Answers the waiting tasks of this owner. Running tasks see its flag, which is raised.
  void Cancel(const void* owner);
  // Answers those that wait and whose deadline has passed, and flags those that run. Returns the
  // next deadline.
  absl::Time EndExpired(absl::Time now);
  // Wakes whoever overslept (clock.h).
  void WakeOverdue();
  // Batches that wait for company close now, and from now on.
  void Flush();

  int64_t size(WorkKind kind) const;
  // Until what waits and runs now is done, as predicted.
  absl::Duration Backlog() const;

 private:
  static constexpr size_t kMostFlights = 3;
  struct Flight {
    std::vector<TaskPtr> batch;
    absl::Time started;
    double seconds = 0;  // as predicted
    Operation::Completion completion;
  };

  // The wait of one of the two threads. The mutex guards its fields.
  struct Wait {
    explicit Wait(absl::Duration poll) : patience(poll) {}
    void Signal() {
      signals.fetch_add(1, std::memory_order_release);
      condition.Signal();
    }
    absl::CondVar condition;
    std::atomic<uint64_t> signals = 0;
    Patience patience;
    absl::Time since = absl::InfinitePast();  // it had something to do last
  };

  void Loop();
  // Returns when there may be a signal. Looks for one without the lock before it sleeps.
  void AwaitLocked(Wait* wait) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void CompleteLoop();
  bool HasRoomLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // True if the calling thread, and not the feeder, runs the only task.
  bool RunsInlineLocked(absl::Time now) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Flight* TakeFlightLocked(absl::Time now, std::vector<EndedWork>* ended)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Without memory for it the process ends: what it was given could not be answered.
  void Run(Flight* flight) noexcept;
  // All of it is answered.
  void End(Flight* flight);
  static void Answer(std::vector<EndedWork> ended);
  double RunningSecondsLocked(absl::Time now, double stretch) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const absl::Duration max_inline_;
  Clock* const clock_;
  const absl::AnyInvocable<void(absl::Time) const> on_deadline_;
  mutable absl::Mutex mutex_;
  Wait work_ ABSL_GUARDED_BY(mutex_);  // of the thread that feeds the device
  Wait done_ ABSL_GUARDED_BY(mutex_);  // of the other one
  Scheduler scheduler_ ABSL_GUARDED_BY(mutex_);
  std::deque<std::unique_ptr<Flight>> flights_ ABSL_GUARDED_BY(mutex_);  // in this order
  const Flight* inline_ ABSL_GUARDED_BY(mutex_) = nullptr;               // run by Push, alone
  absl::Time last_end_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();   // of a flight
  double correction_ ABSL_GUARDED_BY(mutex_) = 1;  // seconds over predicted seconds, of late
  double fastest_ ABSL_GUARDED_BY(mutex_) = 1;     // the least of these, of late
  bool flush_ ABSL_GUARDED_BY(mutex_) = false;
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;
  bool fed_ ABSL_GUARDED_BY(mutex_) = false;  // nothing more is given to the device
  std::thread feeder_, completer_;
};

}  // namespace blockd::server

#endif  // BLOCKD_SERVER_CORE_SHARD_LANE_H_
