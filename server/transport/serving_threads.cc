#include "server/transport/serving_threads.h"

#include <chrono>
#include <ctime>
#include <utility>

#include "absl/time/clock.h"
#include "server/core/lane.h"
#include "server/core/thread_name.h"
#include "server/transport/executor.h"

namespace blockd::server {
namespace {

// What a look that finds nothing takes at most; one that takes longer has read something that is
// no event yet.
constexpr absl::Duration kNothing = absl::Microseconds(10);
// So many looks in a row at least have found something in a crowd: one may only have taken long.
constexpr int kCrowdFinds = 4;
// How long they serve together at least, and how much of a processor they take together at most
// where one of them could do alone.
constexpr absl::Duration kWindow = absl::Milliseconds(10);
constexpr double kCalm = 0.7;
// How much of a processor one takes at least that is held.
constexpr double kBusy = 0.5;
// How long one of them waits before it looks whether it has become calm.
constexpr absl::Duration kLook = absl::Milliseconds(20);

// Of a clock that is never set.
absl::Time Now() {
  return absl::UnixEpoch() + absl::FromChrono(std::chrono::steady_clock::now().time_since_epoch());
}

absl::Duration UsedBy(pthread_t thread) {
  clockid_t clock;
  timespec used{};
  if (pthread_getcpuclockid(thread, &clock) != 0 || clock_gettime(clock, &used) != 0) return {};
  return absl::DurationFromTimespec(used);
}

}  // namespace

ServingThreads::ServingThreads(int threads, absl::Duration poll, grpc::CompletionQueue* queue,
                               std::function<void(void* tag, bool ok)> take)
    : poll_(poll), queue_(queue), take_(std::move(take)), window_(Now()) {
  absl::MutexLock lock(&mutex_);
  for (int i = 0; i < threads; ++i) {
    threads_.emplace_back([this] { Serve(); });
    ids_.push_back(threads_.back().native_handle());
  }
}

ServingThreads::~ServingThreads() {
  for (std::thread& thread : threads_) thread.join();
}

void ServingThreads::Serve() {
  NameThread("serving");
  MarkTransportThread();
  End end = ServeTogether();
  while (end != End::kOver) {
    // Who ends the others' turn serves alone, until it or one that watches lets all serve.
    end = ServeAlone();
    SetMayWorkHere(false);
    if (end == End::kChange) end = ServeTogether();
  }
  absl::MutexLock lock(&mutex_);
  over_ = true;
}

ServingThreads::End ServingThreads::ServeAlone() {
  void* tag = nullptr;
  bool ok = false;
  absl::Time last = Now();  // an event
  int finds = 0;            // in a row
  absl::Duration since,
      until;  // what this thread has used of a processor, at the first and the last
  const auto find = [&](absl::Duration used) {
    until = used;
    if (finds++ == 0) since = until;
  };
  const int64_t term = term_.load(std::memory_order_relaxed);
  while (!IsTogether(term) && term_.load(std::memory_order_relaxed) == term) {
    const absl::Time start = Now();
    looks_.fetch_add(1, std::memory_order_relaxed);
    switch (queue_->AsyncNext(&tag, &ok, gpr_time_0(GPR_CLOCK_MONOTONIC))) {
      case grpc::CompletionQueue::SHUTDOWN:
        return End::kOver;
      case grpc::CompletionQueue::GOT_EVENT:
        take_(tag, ok);
        last = Now();
        find(UsedBy(pthread_self()));
        break;
      case grpc::CompletionQueue::TIMEOUT:
        const absl::Time now = Now();
        bool nothing = now - start < kNothing;
        if (!nothing) {  // or no processor was free
          const absl::Duration used = UsedBy(pthread_self());
          nothing = finds > 0 && used - until < kNothing;
          if (!nothing) find(used);
        }
        if (nothing) {
          finds = 0;
          SetMayWorkHere(true);
        }
        if (now - last < poll_ || (finds > 0 && until - since >= kCrowd)) break;
        if (!queue_->Next(&tag, &ok)) return End::kOver;
        finds = 0;
        take_(tag, ok);
        last = Now();
        break;
    }
    if (finds < kCrowdFinds || until - since < kCrowd) continue;
    absl::MutexLock lock(&mutex_);
    if (term_ == term) NextTerm();
  }
  return End::kChange;
}

ServingThreads::End ServingThreads::ServeTogether() {
  void* tag = nullptr;
  bool ok = false;
  for (;;) {
    if (!together() && !AwaitCrowd()) return End::kOver;
    const auto until = absl::ToChronoTime(absl::Now() + kLook);
    const auto next = queue_->AsyncNext(&tag, &ok, until);
    if (next == grpc::CompletionQueue::SHUTDOWN) return End::kOver;
    if (next == grpc::CompletionQueue::GOT_EVENT) take_(tag, ok);
    if (together() && LeaveOthers(Now())) return End::kChange;
  }
}

bool ServingThreads::AwaitCrowd() {
  const auto comes = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return together() || over_; };
  absl::MutexLock lock(&mutex_);
  if (watched_) {
    mutex_.Await(absl::Condition(&comes));
    return !over_;
  }
  watched_ = true;
  while (!mutex_.AwaitWithTimeout(absl::Condition(&comes), kHeld)) {
    if (IsHeld()) NextTerm();
  }
  watched_ = false;
  return !over_;
}

bool ServingThreads::IsHeld() {
  const absl::Time now = Now();
  const absl::Duration used = UsedSeconds();
  const int64_t looks = looks_.load(std::memory_order_relaxed);
  const bool held = looks == looks_then_ && used - used_ > kBusy * (now - window_);
  looks_then_ = looks;
  window_ = now;
  used_ = used;
  return held;
}

void ServingThreads::NextTerm() {
  window_ = Now();
  used_ = UsedSeconds();
  looks_then_ = -1;
  ++term_;
}

bool ServingThreads::LeaveOthers(absl::Time now) {
  if (!mutex_.TryLock()) return false;
  bool calm = false;
  if (together() && now - window_ >= kWindow) {
    const absl::Duration used = UsedSeconds();
    calm = used - used_ < kCalm * (now - window_);
    window_ = now;
    used_ = used;
    if (calm) NextTerm();
  }
  mutex_.Unlock();
  return calm;
}

absl::Duration ServingThreads::UsedSeconds() const {
  absl::Duration used;
  for (const pthread_t id : ids_) used += UsedBy(id);
  return used;
}

}  // namespace blockd::server
