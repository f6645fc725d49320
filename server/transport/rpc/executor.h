// A few threads that do what would take a serving thread too long, in the order in which it came.
//
// A posted task is a part of the object that it works for, so that posting allocates nothing and
// cannot fail. The queue is at most as long as there are calls and requests under way, which have
// limits of their own. Thread-safe.
#ifndef BLOCKD_SERVER_TRANSPORT_RPC_EXECUTOR_H_
#define BLOCKD_SERVER_TRANSPORT_RPC_EXECUTOR_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "server/base/patience.h"

namespace blockd::server {

class Executor {
 public:
  // May be posted again as soon as it runs, not before.
  class Task {
   public:
    virtual ~Task() = default;
    virtual void Run() noexcept = 0;

   private:
    friend class Executor;
    Task* next_ = nullptr;
    std::shared_ptr<Task> self_;  // while it waits
  };

  // `name`: of its threads, as of NameThread. `poll`, for work that is short: how long one of them
  // goes on looking for work (Patience), before it sleeps as the others do. A thread that is awake
  // is left one piece of it before another one is woken, and all of them have short time slices.
  explicit Executor(const char* name, int threads,
                    std::optional<absl::Duration> poll = std::nullopt);
  ~Executor();  // once everything that was posted has run
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  void Post(std::shared_ptr<Task> task) ABSL_LOCKS_EXCLUDED(mutex_);
  // Runs the task on the calling thread if `here`, or if that is a transport thread; else posts it.
  void RunOrPost(bool here, std::shared_ptr<Task> task) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  void Work() ABSL_LOCKS_EXCLUDED(mutex_);
  void AwaitWorkLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void SleepLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Wakes one that sleeps, if those that are awake have enough to do.
  void WakeLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const char* const name_;
  const bool is_short_;
  absl::Mutex mutex_;
  absl::CondVar wake_;  // something is posted, or it stops
  Task* first_ ABSL_GUARDED_BY(mutex_) = nullptr;
  Task* last_ ABSL_GUARDED_BY(mutex_) = nullptr;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  Patience patience_ ABSL_GUARDED_BY(mutex_);     // of the one that looks
  bool looking_ ABSL_GUARDED_BY(mutex_) = false;  // one of them, without the lock
  int waiting_ ABSL_GUARDED_BY(mutex_) = 0;       // tasks
  int awake_ ABSL_GUARDED_BY(mutex_);             // threads, or about to be
  int waking_ ABSL_GUARDED_BY(mutex_) = 0;        // of these, in Wait still
  std::atomic<uint64_t> changes_ = 0;             // posts, and the stop
  std::vector<std::thread> threads_;
};

// A member of `Owner` that is a task: runs `Owner::method` and keeps the owner alive meanwhile.
//
//   MemberTask<Call, &Call::HandleMessage> task_{this};
//   executor.Post(Shared(shared_from_this(), &task_));
template <typename Owner, void (Owner::*method)() noexcept>
class MemberTask final : public Executor::Task {
 public:
  explicit MemberTask(Owner* owner) : owner_(owner) {}
  void Run() noexcept override { (owner_->*method)(); }

 private:
  Owner* const owner_;
};
template <typename Owner>
std::shared_ptr<Executor::Task> Shared(std::shared_ptr<Owner> owner, Executor::Task* member) {
  return std::shared_ptr<Executor::Task>(std::move(owner), member);
}

// True if this thread belongs to an executor or was marked as a serving thread: such threads may
// make calls of gRPC. The threads that feed the device may not.
bool IsTransportThread();
void MarkTransportThread();

// True if this thread serves alone. It runs short work itself, because handing that to another
// thread would take longer.
bool ServesAlone();
void MarkServingAlone(bool alone);

}  // namespace blockd::server

#endif  // BLOCKD_SERVER_TRANSPORT_RPC_EXECUTOR_H_
