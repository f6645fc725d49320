// Calls back once nothing has happened for a while, without a timer operation each time something
// happens. Thread-safe.
#ifndef BLOCKD_SERVER_IDLE_TIMER_H_
#define BLOCKD_SERVER_IDLE_TIMER_H_

#include <grpc/grpc.h>
#include <grpcpp/alarm.h>

#include <atomic>
#include <functional>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace blockd::server {

class IdleTimer : public std::enable_shared_from_this<IdleTimer> {
 public:
  // `idle` is called, from a thread of gRPC, each time that `timeout` passes without a Touch.
  IdleTimer(absl::Duration timeout, std::function<void()> idle)
      : timeout_(timeout), idle_(std::move(idle)) {}

  void Start() {
    Touch();
    Arm(absl::Now() + timeout_);
  }
  void Touch() { last_.store(absl::ToUnixNanos(absl::Now()), std::memory_order_relaxed); }
  // No call starts after it returns and what `idle` holds is let go; a call under way may still
  // run.
  void Stop() {
    std::unique_ptr<grpc::Alarm> alarm;
    std::function<void()> idle;
    absl::MutexLock lock(&mutex_);
    stopped_ = true;
    alarm = std::move(alarm_);
    idle = std::move(idle_);
  }

 private:
  // An alarm cannot be set again from its own callback, so each firing makes a new one.
  void Arm(absl::Time deadline) {
    auto alarm = std::make_unique<grpc::Alarm>();
    grpc::Alarm* const armed = alarm.get();
    absl::MutexLock lock(&mutex_);
    if (stopped_) return;
    alarm.swap(alarm_);
    armed->Set(absl::ToChronoTime(deadline), [self = shared_from_this()](bool ok) {
      if (ok) self->OnAlarm();
    });
  }

  void OnAlarm() {
    const absl::Time due = absl::FromUnixNanos(last_.load(std::memory_order_relaxed)) + timeout_;
    if (absl::Now() < due) return Arm(due);
    std::function<void()> idle;
    {
      absl::MutexLock lock(&mutex_);
      if (stopped_) return;
      idle = idle_;
    }
    idle();
    Touch();
    Arm(absl::Now() + timeout_);
  }

  // gRPC ends, and waits for its threads, with the last object that needs it. That must not be an
  // alarm: one of these threads may be about to make the next. Whoever calls back holds this timer.
  struct Library {
    Library() { grpc_init(); }
    ~Library() { grpc_shutdown(); }
    Library(const Library&) = delete;
  };

  const Library library_;
  const absl::Duration timeout_;
  std::atomic<int64_t> last_{0};
  absl::Mutex mutex_;
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
  std::unique_ptr<grpc::Alarm> alarm_ ABSL_GUARDED_BY(mutex_);
  std::function<void()> idle_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace blockd::server

#endif  // BLOCKD_SERVER_IDLE_TIMER_H_
