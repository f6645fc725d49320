#include "engine/cpu/threads/pending_solves.h"

#include <algorithm>
#include <limits>

namespace blockd::cpu {
namespace {

// A thread that has less left of its pauses goes on: to sleep and to wake takes some of that.
constexpr int kShortestPart = 50;  // of the longest pause

}  // namespace

PendingSolves::PendingSolves(int32_t factor_threads, const std::atomic<int32_t>& working,
                             const Limits& limits)
    : working_(working),
      longest_pause_(limits.longest_pause),
      linger_(factor_threads > 1 ? limits.linger : Clock::duration::zero()),
      answered_((Clock::now() - linger_).time_since_epoch().count()),
      threads_(factor_threads, Thread{.left = longest_pause_, .since = Clock::now()}) {}

void PendingSolves::Count(int32_t change) {
  // Before the callers are fewer: a thread that sees that lingers.
  if (change < 0) answered_ = Clock::now().time_since_epoch().count();
  if (callers_.fetch_add(change) + change == 0) Wake();
}

PendingSolves::Running::Running(PendingSolves* solves, int64_t threads)
    : solves_(solves),
      threads_(static_cast<int32_t>(
          std::clamp<int64_t>(threads, 1, std::numeric_limits<int16_t>::max()))) {
  if (solves_ != nullptr) solves_->running_.fetch_add(threads_);
}

PendingSolves::Running::~Running() {
  if (solves_ == nullptr) return;
  solves_->running_.fetch_sub(threads_);
  solves_->Wake();
}

void PendingSolves::Wake() {
  const std::lock_guard lock(mutex_);
  if (pausing_ > Wanted(Clock::now())) fewer_.notify_all();
}

// How many threads shall pause.
int32_t PendingSolves::Wanted(Clock::time_point now) const {
  const int32_t one = callers_ > 0 || now < LingersUntil() ? 1 : 0;
  const int32_t idle = static_cast<int32_t>(threads_.size()) - working_;
  return std::max(one, running_.load()) - idle;
}

// When a thread that pauses looks again, if nobody wakes it: for whether others have tasks still,
// and for the end of lingering.
PendingSolves::Clock::time_point PendingSolves::NextLook(Clock::time_point now,
                                                         Clock::time_point end) const {
  if (linger_ == Clock::duration::zero()) return end;
  return std::min(end, callers_ > 0 || running_ > 0 ? now + linger_ : LingersUntil());
}

// A pause spends the time that a thread may pause, and the time between two pauses earns it.
void PendingSolves::MakeWay(int32_t thread) {
  const Clock::time_point start = Clock::now();
  if (pausing_ >= Wanted(start)) return;
  Thread& own = threads_[thread];
  own.left = std::min(longest_pause_, own.left + (start - own.since));
  own.since = start;
  if (own.left < longest_pause_ / kShortestPart) return;
  const Clock::time_point end = start + own.left;
  std::unique_lock lock(mutex_);
  Clock::time_point now = start;
  if (pausing_ >= Wanted(now)) return;
  ++pausing_;
  while (now < end && pausing_ <= Wanted(now)) {
    fewer_.wait_until(lock, NextLook(now, end));
    now = Clock::now();
  }
  --pausing_;
  own.since = now;
  own.left -= now - start;
}

}  // namespace blockd::cpu
