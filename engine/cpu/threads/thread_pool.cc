#include "engine/cpu/threads/thread_pool.h"

#include <chrono>

namespace blockd {
namespace {

constexpr auto kSpin = std::chrono::microseconds(30);
constexpr auto kYield = std::chrono::milliseconds(1);

// Returns true as soon as `ready` does, false if that takes longer than kSpin.
template <typename Ready>
bool SpinUntil(const Ready& ready) {
  const auto end = std::chrono::steady_clock::now() + kSpin;
  while (!ready()) {
    if (std::chrono::steady_clock::now() > end) return false;
    for (int i = 0; i < 32 && !ready(); ++i) {
#if defined(__x86_64__)
      __builtin_ia32_pause();
#endif
    }
  }
  return true;
}

}  // namespace

ThreadPool::ThreadPool(int32_t threads) {
  for (int32_t i = 1; i < threads; ++i) workers_.emplace_back([this, i] { Work(i); });
}

ThreadPool::~ThreadPool() {
  {
    absl::MutexLock lock(&mutex_);
    stop_ = true;
    generation_.fetch_add(1);
    wake_.SignalAll();
  }
  for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::TakeTasks(int32_t thread) {
  working_.fetch_add(1);
  for (int64_t i = next_.fetch_add(1); i < tasks_; i = next_.fetch_add(1)) (*task_)(i, thread);
  working_.fetch_sub(1);
}

void ThreadPool::Run(int64_t tasks, Task task) {
  if (workers_.empty() || tasks <= 1) {
    working_.fetch_add(1);
    for (int64_t i = 0; i < tasks; ++i) task(i, 0);
    working_.fetch_sub(1);
    return;
  }
  task_ = &task;
  tasks_ = tasks;
  next_.store(0);
  busy_.store(static_cast<int32_t>(workers_.size()));
  {
    absl::MutexLock lock(&mutex_);
    generation_.fetch_add(1);
    if (sleeping_ > 0) wake_.SignalAll();
  }
  TakeTasks(0);
  // Workers hold no task of their own for long: each is a piece of this loop that somebody waits
  // for. A task that is long all the same is waited for asleep: others want the processor.
  const auto done = [this] { return busy_.load() == 0; };
  const auto end = std::chrono::steady_clock::now() + kYield;
  while (!SpinUntil(done)) {
    if (std::chrono::steady_clock::now() < end) {
      std::this_thread::yield();
      continue;
    }
    absl::MutexLock lock(&mutex_);
    while (!done()) left_.Wait(&mutex_);
  }
}

void ThreadPool::Work(int32_t thread) {
  int64_t seen = 0;
  for (;;) {
    const auto changed = [this, &seen] { return generation_.load() != seen; };
    if (!SpinUntil(changed)) {
      absl::MutexLock lock(&mutex_);
      ++sleeping_;
      while (!changed()) wake_.Wait(&mutex_);
      --sleeping_;
    }
    if (stop_.load()) return;
    ++seen;
    TakeTasks(thread);
    if (busy_.fetch_sub(1) != 1) continue;
    absl::MutexLock lock(&mutex_);
    left_.Signal();
  }
}

}  // namespace blockd
