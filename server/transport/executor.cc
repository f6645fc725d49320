#include "server/transport/executor.h"

#include "absl/time/clock.h"
#include "server/core/relax.h"

namespace blockd::server {
namespace {

thread_local bool transport_thread = false;

}  // namespace

bool IsTransportThread() { return transport_thread; }
void MarkTransportThread() { transport_thread = true; }

Executor::Executor(int threads, absl::Duration poll) : poll_(poll) {
  threads_.reserve(static_cast<size_t>(threads));
  for (int i = 0; i < threads; ++i) threads_.emplace_back([this] { Work(); });
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
  const bool is_only = first_ == nullptr;
  (last_ == nullptr ? first_ : last_->next_) = added;
  last_ = added;
  ++changes_;
  if (!looking_ || !is_only) wake_.Signal();
}

// Something may be there then, or not.
void Executor::AwaitWorkLocked() {
  if (looking_ || poll_ <= absl::ZeroDuration()) return wake_.Wait(&mutex_);
  looking_ = true;
  const uint64_t seen = changes_.load(std::memory_order_relaxed);
  mutex_.Unlock();
  const absl::Time until = absl::Now() + poll_;
  bool changed = false;
  while (!changed && absl::Now() < until) {
    Relax();
    changed = changes_.load(std::memory_order_acquire) != seen;
  }
  mutex_.Lock();
  looking_ = false;
  if (first_ == nullptr && !stopping_ && !changed) wake_.Wait(&mutex_);
}

void Executor::Work() {
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
      task = std::move(next->self_);
    }
    task->Run();
  }
}

}  // namespace blockd::server
