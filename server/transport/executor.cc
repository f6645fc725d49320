#include "server/transport/executor.h"

namespace blockd::server {
namespace {

thread_local bool transport_thread = false;

}  // namespace

bool IsTransportThread() { return transport_thread; }
void MarkTransportThread() { transport_thread = true; }

Executor::Executor(int threads) {
  threads_.reserve(static_cast<size_t>(threads));
  for (int i = 0; i < threads; ++i) threads_.emplace_back([this] { Work(); });
}

Executor::~Executor() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
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
  wake_.Signal();
}

void Executor::Work() {
  MarkTransportThread();
  while (true) {
    std::shared_ptr<Task> task;
    {
      absl::MutexLock lock(&mutex_);
      while (first_ == nullptr && !stopping_) wake_.Wait(&mutex_);
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
