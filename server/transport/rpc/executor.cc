#include "server/transport/rpc/executor.h"

#include "server/base/relax.h"
#include "server/base/short_slices.h"
#include "server/base/steady_time.h"
#include "server/base/thread_name.h"

namespace blockd::server {
namespace {

// The short tasks that each awake thread is left before another thread is woken: to run one takes
// less time than to wake a thread.
constexpr int kShortTasks = 1;

thread_local bool transport_thread = false;
thread_local bool serves_alone = false;

}  // namespace

bool IsTransportThread() { return transport_thread; }
void MarkTransportThread() { transport_thread = true; }

bool ServesAlone() { return serves_alone; }
void MarkServingAlone(bool alone) { serves_alone = alone; }

Executor::Executor(const char* name, int threads, std::optional<absl::Duration> poll)
    : name_(name),
      is_short_(poll.has_value()),
      patience_(poll.value_or(absl::ZeroDuration())),
      awake_(threads) {
  threads_.reserve(static_cast<size_t>(threads));
  for (int i = 0; i < threads; ++i) threads_.emplace_back([this] { Work(); });
}

void Executor::RunOrPost(bool here, std::shared_ptr<Task> task) {
  if (here || IsTransportThread()) return task->Run();
  Post(std::move(task));
}

Executor::~Executor() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
    ++changes_;
    wake_.SignalAll();
  }
  for (std::thread& thread : threads_) thread.join();
}

void Executor::Post(std::shared_ptr<Task> task) {
  Task* const added = task.get();
  absl::MutexLock lock(&mutex_);
  added->self_ = std::move(task);
  added->next_ = nullptr;
  (last_ == nullptr ? first_ : last_->next_) = added;
  last_ = added;
  ++waiting_;
  ++changes_;
  WakeLocked();
}

void Executor::WakeLocked() {
  const int enough = patience_.left() > absl::ZeroDuration() ? kShortTasks * awake_ : waking_;
  if (waiting_ <= enough || awake_ == static_cast<int>(threads_.size())) return;
  ++awake_;
  ++waking_;
  wake_.Signal();
}

void Executor::SleepLocked() {
  --awake_;
  while (waking_ == 0 && !stopping_) wake_.Wait(&mutex_);
  if (waking_ > 0) {
    --waking_;
  } else {
    ++awake_;
  }
}

// Something may be there then, or not.
void Executor::AwaitWorkLocked() {
  const absl::Duration look = patience_.left();
  if (looking_ || look <= absl::ZeroDuration()) return SleepLocked();
  looking_ = true;
  const uint64_t seen = changes_.load(std::memory_order_relaxed);
  mutex_.Unlock();
  const absl::Time start = SteadyNow(), until = start + look;
  bool changed = false;
  while (!changed && SteadyNow() < until) {
    Relax();
    changed = changes_.load(std::memory_order_acquire) != seen;
  }
  mutex_.Lock();
  looking_ = false;
  if (first_ == nullptr && !stopping_ && !changed) SleepLocked();
  patience_.Came(SteadyNow() - start);
}

void Executor::Work() {
  NameThread(name_);
  if (is_short_) AskForShortSlices();
  MarkTransportThread();
  while (true) {
    std::shared_ptr<Task> task;
    {
      absl::MutexLock lock(&mutex_);
      while (first_ == nullptr && !stopping_) AwaitWorkLocked();
      if (first_ == nullptr) return;
      Task* const next = first_;
      first_ = next->next_;
      if (first_ == nullptr) last_ = nullptr;
      --waiting_;
      task = std::move(next->self_);
    }
    task->Run();
  }
}

}  // namespace blockd::server
