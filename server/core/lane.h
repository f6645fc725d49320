// One thread that feeds the device with one kind of work, and the queue before it. A device has a
// lane for Solves and one for all that factors, so that neither waits for the other.
//
// Thread-safe. No lock is held while a task runs, is answered or is destroyed.
#ifndef BLOCKD_SERVER_CORE_LANE_H_
#define BLOCKD_SERVER_CORE_LANE_H_

#include <cstdint>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "server/core/clock.h"
#include "server/core/scheduler.h"
#include "server/core/task.h"

namespace blockd::server {

class Lane {
 public:
  // `on_deadline` is told of deadlines that come, and calls EndExpired in time.
  Lane(const SchedulerLimits& limits, Clock* clock,
       absl::AnyInvocable<void(absl::Time) const> on_deadline);
  ~Lane();  // after a Drain; runs what is left

  // Queues a task. It is the caller's still if it is refused: CANCELLED if it was cancelled, and
  // DEADLINE_EXCEEDED with DeadlineUnreachable if it cannot be done in time, by what was predicted
  // of it and of all that goes before, and by how right such predictions were.
  absl::Status Push(TaskPtr& task);

  // What of this owner waits is answered; its flag is raised, at which what runs looks.
  void Cancel(const void* owner);
  // Answers those that wait and whose deadline has passed, and flags those that run. Returns the
  // next deadline.
  absl::Time EndExpired(absl::Time now);
  // Batches that wait for company close now, and from now on.
  void Flush();

  int64_t size(WorkKind kind) const;
  // Until what waits and runs now is done, as predicted.
  absl::Duration Backlog() const;

 private:
  void Loop();
  void RunBatch(std::vector<WorkPtr> works, absl::Time now);
  static void Answer(std::vector<EndedWork> ended);
  double RunningSecondsLocked(absl::Time now) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  Clock* const clock_;
  const absl::AnyInvocable<void(absl::Time) const> on_deadline_;
  mutable absl::Mutex mutex_;
  absl::CondVar work_;  // for the lane's thread
  Scheduler scheduler_ ABSL_GUARDED_BY(mutex_);
  std::vector<Task*> running_ ABSL_GUARDED_BY(mutex_);
  absl::Time running_since_ ABSL_GUARDED_BY(mutex_);
  double running_seconds_ ABSL_GUARDED_BY(mutex_) = 0;  // of the batch that runs, as predicted
  double correction_ ABSL_GUARDED_BY(mutex_) = 1;       // seconds over predicted seconds, of late
  bool flush_ ABSL_GUARDED_BY(mutex_) = false;
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace blockd::server

#endif  // BLOCKD_SERVER_CORE_LANE_H_
