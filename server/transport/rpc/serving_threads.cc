#include "server/transport/rpc/serving_threads.h"

#include <algorithm>
#include <ctime>
#include <utility>

#include "server/base/patience.h"
#include "server/base/short_slices.h"
#include "server/base/steady_time.h"
#include "server/base/thread_name.h"
#include "server/transport/rpc/executor.h"

namespace blockd::server {
namespace {

using Queue = grpc::CompletionQueue;

// A look that finds nothing takes less, on slow machines too. One that takes longer has read what
// is no event yet.
constexpr absl::Duration kNothing = absl::Microseconds(150);
// How often at most the system is asked for the processor's time: that takes a part of what serving
// an event takes.
constexpr absl::Duration kAsk = absl::Microseconds(50);
// One caller who waits for each answer brings fewer events at a time.
constexpr int kMany = 16;

// The processor time that the calling thread has used.
absl::Duration Used() {
  timespec used{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used);
  return absl::DurationFromTimespec(used);
}

gpr_timespec After(absl::Duration wait) {
  return gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC),
                      gpr_time_from_micros(absl::ToInt64Microseconds(wait), GPR_TIMESPAN));
}

}  // namespace

ServingThreads::ServingThreads(int threads, absl::Duration poll, Queue* queue,
                               std::function<void(void* tag, bool ok)> take)
    : poll_(poll), queue_(queue), take_(std::move(take)) {
  for (int i = 0; i < std::max(threads, 2); ++i) threads_.emplace_back([this] { Serve(); });
}

ServingThreads::~ServingThreads() {
  for (std::thread& thread : threads_) thread.join();
}

void ServingThreads::Serve() {
  NameThread("serving");
  AskForShortSlices();
  MarkTransportThread();
  absl::MutexLock lock(&mutex_);
  while (!over_) {
    const int64_t term = term_.load(std::memory_order_relaxed);
    if (!IsTogether(term) && std::exchange(has_one_, true)) {
      AwaitNextTerm(term);
      continue;
    }
    const absl::Time end = began_ + length_;
    mutex_.Unlock();
    MarkServingAlone(!IsTogether(term));
    IsTogether(term) ? ServeTogether(term, end) : ServeAlone(term);
    mutex_.Lock();
  }
}

void ServingThreads::ServeAlone(int64_t term) {
  void* tag = nullptr;
  bool ok = false;
  bool sleeps = false;
  Patience patience(poll_);
  absl::Time last = SteadyNow();  // it had something to do
  absl::Time idle = last;         // it had nothing to do, and had used so much of a processor
  absl::Duration used = Used();
  int found = 0;  // events, one after another
  while (term_.load(std::memory_order_relaxed) == term) {
    const absl::Time start = SteadyNow();
    looks_.fetch_add(1, std::memory_order_relaxed);
    const auto next =
        queue_->AsyncNext(&tag, &ok, sleeps ? After(kHeld / 2) : gpr_time_0(GPR_CLOCK_MONOTONIC));
    if (next == Queue::SHUTDOWN) return EndAll();
    absl::Time now = SteadyNow();
    const bool nothing = next == Queue::TIMEOUT && now - start < kNothing;
    if (next == Queue::GOT_EVENT) {
      patience.Came(now - last);
      take_(tag, ok);
      last = now = SteadyNow();
      ++found;
    }
    if (nothing) found = 0;
    sleeps = nothing && now - last >= patience.left();
    if (now - idle < (nothing ? kAsk : kCrowd)) continue;
    idle = now;
    const absl::Duration before = std::exchange(used, Used());
    if (found >= kMany || (!nothing && used - before >= kCrowd - kAsk)) return EndTerm(term);
  }
}

void ServingThreads::ServeTogether(int64_t term, absl::Time end) {
  void* tag = nullptr;
  bool ok = false;
  while (term_.load(std::memory_order_relaxed) == term) {
    const absl::Duration left = end - SteadyNow();
    if (left <= absl::ZeroDuration()) return EndTerm(term);
    const auto next = queue_->AsyncNext(&tag, &ok, After(left));
    if (next == Queue::SHUTDOWN) return EndAll();
    if (next == Queue::GOT_EVENT) take_(tag, ok);
  }
}

void ServingThreads::AwaitNextTerm(int64_t term) {
  const auto comes = [this, term]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return term_.load(std::memory_order_relaxed) != term || over_;
  };
  if (std::exchange(watched_, true)) return mutex_.Await(absl::Condition(&comes));
  int64_t looks = looks_.load(std::memory_order_relaxed);
  while (!mutex_.AwaitWithTimeout(absl::Condition(&comes), kHeld)) {
    const int64_t before = std::exchange(looks, looks_.load(std::memory_order_relaxed));
    if (looks == before) EndTermLocked();
  }
}

void ServingThreads::EndTerm(int64_t term) {
  absl::MutexLock lock(&mutex_);
  if (term_.load(std::memory_order_relaxed) == term) EndTermLocked();
}

void ServingThreads::EndTermLocked() {
  const absl::Time now = SteadyNow();
  if (!together())
    length_ = now - began_ < kEnough ? std::min(2 * length_, kLongestTerm) : kShortestTerm;
  began_ = now;
  ++term_;
  has_one_ = watched_ = false;
}

void ServingThreads::EndAll() {
  absl::MutexLock lock(&mutex_);
  over_ = true;
}

}  // namespace blockd::server
