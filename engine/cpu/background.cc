#include "engine/cpu/background.h"

#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>

#include "absl/time/clock.h"

namespace blockd::cpu {

void LowerPriority() {
  constexpr int kNicer = 10;
  // Of this thread alone. Where it is refused the thread serves as it is.
  const auto thread = static_cast<id_t>(syscall(SYS_gettid));
  (void)setpriority(PRIO_PROCESS, thread, getpriority(PRIO_PROCESS, thread) + kNicer);
}

RunningSolve::Scope::Scope(RunningSolve* running, int64_t threads) : running_(running) {
  if (running_ == nullptr) return;
  running_->state_.fetch_add(
      static_cast<uint32_t>(std::clamp<int64_t>(threads, 1, kMostThreads - 1)),
      std::memory_order_relaxed);
}

RunningSolve::Scope::~Scope() {
  if (running_ == nullptr) return;
  absl::MutexLock lock(&running_->mutex_);
  const uint32_t state = running_->state_.load(std::memory_order_relaxed);
  running_->state_.store((state / kMostThreads + 1) * kMostThreads, std::memory_order_relaxed);
  running_->ended_.SignalAll();
}

void RunningSolve::MakeWay(int32_t thread) {
  const uint32_t state = state_.load(std::memory_order_relaxed);
  if (static_cast<int32_t>(state % kMostThreads) <= thread || state == shares_with_[thread]) return;
  const absl::Time end = absl::Now() + kLongestWait;
  absl::MutexLock lock(&mutex_);
  while (state_.load(std::memory_order_relaxed) == state) {
    if (!ended_.WaitWithDeadline(&mutex_, end)) continue;
    shares_with_[thread] = state;
    return;
  }
}

BackgroundThread::BackgroundThread() : thread_([this] { Work(); }) {}

BackgroundThread::~BackgroundThread() {
  {
    absl::MutexLock lock(&mutex_);
    stop_ = true;
  }
  thread_.join();
}

void BackgroundThread::Run(absl::FunctionRef<void()> call) {
  absl::MutexLock lock(&mutex_);
  call_ = &call;
  mutex_.Await(absl::Condition(this, &BackgroundThread::HasNone));
}

void BackgroundThread::Work() {
  LowerPriority();
  for (;;) {
    const absl::FunctionRef<void()>* call = nullptr;
    {
      absl::MutexLock lock(&mutex_);
      mutex_.Await(absl::Condition(this, &BackgroundThread::HasCall));
      if (stop_) return;
      call = call_;
    }
    (*call)();
    absl::MutexLock lock(&mutex_);
    call_ = nullptr;
  }
}

}  // namespace blockd::cpu
