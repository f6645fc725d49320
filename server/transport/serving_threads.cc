#include "server/transport/serving_threads.h"

#include <chrono>
#include <ctime>
#include <utility>

#include "absl/time/clock.h"
#include "server/core/lane.h"
#include "server/transport/executor.h"

namespace blockd::server {
namespace {

// What a look that finds nothing takes at most; one that takes longer has read something that is
// no event yet.
constexpr absl::Duration kNothing = absl::Microseconds(10);
// So many looks in a row at least have found something in a crowd: one may only have been slow.
constexpr int kCrowdLooks = 4;
// How long they serve together at least, and how much of a processor they take together at most
// where one of them could do alone.
constexpr absl::Duration kWindow = absl::Milliseconds(10);
constexpr double kCalm = 0.7;
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
  MarkTransportThread();
  End end = ServeTogether();
  while (end != End::kOver) {
    // Who ends the others' turn serves alone; who ends its own lets all serve.
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
  absl::Time free = Now(), last = free;  // when nothing was found, and an event
  int looks = 0;                         // since nothing was
  for (;;) {
    const absl::Time start = Now();
    switch (queue_->AsyncNext(&tag, &ok, gpr_time_0(GPR_CLOCK_MONOTONIC))) {
      case grpc::CompletionQueue::SHUTDOWN:
        return End::kOver;
      case grpc::CompletionQueue::GOT_EVENT:
        take_(tag, ok);
        last = Now();
        ++looks;
        break;
      case grpc::CompletionQueue::TIMEOUT:
        const absl::Time now = Now();
        if (now - start < kNothing) {
          free = now;
          looks = 0;
          SetMayWorkHere(true);
        } else {
          ++looks;
        }
        if (now - last < poll_ || (looks >= kCrowdLooks && now - free >= kCrowd)) break;
        if (!queue_->Next(&tag, &ok)) return End::kOver;
        free = Now();
        looks = 0;
        take_(tag, ok);
        last = Now();
        break;
    }
    if (looks < kCrowdLooks || Now() - free < kCrowd) continue;
    absl::MutexLock lock(&mutex_);
    window_ = Now();
    used_ = UsedSeconds();
    together_ = true;
    return End::kChange;
  }
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
  mutex_.Await(absl::Condition(&comes));
  return !over_;
}

bool ServingThreads::LeaveOthers(absl::Time now) {
  if (!mutex_.TryLock()) return false;
  bool calm = false;
  if (together() && now - window_ >= kWindow) {
    const absl::Duration used = UsedSeconds();
    calm = used - used_ < kCalm * (now - window_);
    window_ = now;
    used_ = used;
    if (calm) together_ = false;
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
