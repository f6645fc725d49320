#include "engine/cpu/pending_solves.h"

#include <algorithm>
#include <limits>

#include "absl/time/clock.h"

namespace blockd::cpu {
namespace {

// A thread that has less left of its pauses goes on: to sleep and to wake takes some of that.
constexpr int kShortestPart = 50;  // of the longest pause

}  // namespace

void PendingSolves::Count(int32_t change) {
  if (callers_.fetch_add(change, std::memory_order_relaxed) + change == 0) Wake();
}

PendingSolves::Running::Running(PendingSolves* solves, int64_t threads)
    : solves_(solves),
      threads_(static_cast<int32_t>(
          std::clamp<int64_t>(threads, 1, std::numeric_limits<int16_t>::max()))) {
  if (solves_ != nullptr) solves_->running_.fetch_add(threads_, std::memory_order_relaxed);
}

PendingSolves::Running::~Running() {
  if (solves_ == nullptr) return;
  solves_->running_.fetch_sub(threads_, std::memory_order_relaxed);
  solves_->Wake();
}

void PendingSolves::Wake() {
  absl::MutexLock lock(&mutex_);
  fewer_.SignalAll();
}

// A pause spends the time that a thread may pause, and the time between two pauses earns it.
void PendingSolves::MakeWay(int32_t thread) {
  if (!Want(thread)) return;
  Thread& own = threads_[thread];
  const absl::Time start = absl::Now();
  own.left = std::min(longest_pause_, own.left + (start - own.since));
  own.since = start;
  if (own.left < longest_pause_ / kShortestPart) return;
  {
    absl::MutexLock lock(&mutex_);
    ++pausing_;
    while (Want(thread) && !fewer_.WaitWithDeadline(&mutex_, start + own.left)) {
    }
    --pausing_;
  }
  own.since = absl::Now();
  own.left -= own.since - start;
}

}  // namespace blockd::cpu
