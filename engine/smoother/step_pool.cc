#include "blockd/engine/step_pool.h"

#include <cblas.h>
#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <exception>

namespace blockd {

struct StepPool::Loop {
  Loop(int64_t turns, Turn turn) : turns(turns), turn(turn) {}

  const int64_t turns;
  const Turn turn;
  std::atomic<int64_t> next{0};
  int helpers = 0, came = 0;  // this and the next: under the pool's mutex
  std::exception_ptr thrown;  // the first
};

StepPool::StepPool(int threads) {
  openblas_set_num_threads(1);
  for (int i = 1; i < threads; ++i) workers_.emplace_back([this] { Work(); });
}

StepPool::~StepPool() {
  {
    absl::MutexLock lock(&mutex_);
    stop_ = true;
    begun_.SignalAll();
  }
  for (std::thread& worker : workers_) worker.join();
}

void StepPool::Run(int64_t turns, Turn turn) {
  if (workers_.empty() || turns <= 1) {
    for (int64_t i = 0; i < turns; ++i) turn(i, 0);
    return;
  }
  Loop loop(turns, turn);
  {
    absl::MutexLock lock(&mutex_);
    loops_.push_back(&loop);
    const int64_t helpers = std::min(turns - 1, static_cast<int64_t>(workers_.size()));
    for (int64_t i = 0; i < helpers; ++i) begun_.Signal();
  }
  TakeTurns(loop, 0);
  std::exception_ptr thrown;
  {
    absl::MutexLock lock(&mutex_);
    while (loop.helpers > 0) left_.Wait(&mutex_);
    thrown = loop.thrown;
  }
  if (thrown != nullptr) std::rethrow_exception(thrown);
}

void StepPool::TakeTurns(Loop& loop, int worker) {
  std::exception_ptr thrown;
  try {
    for (int64_t i = loop.next.fetch_add(1); i < loop.turns; i = loop.next.fetch_add(1)) {
      loop.turn(i, worker);
    }
  } catch (...) {
    thrown = std::current_exception();
    loop.next.store(loop.turns);
  }
  absl::MutexLock lock(&mutex_);
  std::erase(loops_, &loop);
  if (thrown != nullptr && loop.thrown == nullptr) loop.thrown = thrown;
}

void StepPool::Work() {
  (void)pthread_setname_np(pthread_self(), "steps");
  mutex_.Lock();
  while (!stop_) {
    if (loops_.empty()) {
      begun_.Wait(&mutex_);
      continue;
    }
    Loop& loop = *loops_.front();
    ++loop.helpers;
    const int worker = ++loop.came;  // nobody comes twice: who leaves has left no turn
    mutex_.Unlock();
    TakeTurns(loop, worker);
    mutex_.Lock();
    if (--loop.helpers == 0) left_.SignalAll();
  }
  mutex_.Unlock();
}

}  // namespace blockd
