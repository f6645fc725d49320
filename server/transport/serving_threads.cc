#include "server/transport/serving_threads.h"

#include <algorithm>
#include <ctime>
#include <utility>

#include "absl/time/clock.h"
#include "server/core/lane.h"
#include "server/core/patience.h"
#include "server/core/steady_time.h"
#include "server/core/thread_name.h"
#include "server/transport/executor.h"

namespace blockd::server {
namespace {

// What a look that finds nothing takes at most; one that takes longer has read something that is
// no event yet.
constexpr absl::Duration kNothing = absl::Microseconds(10);
// How often the system is asked how much of a processor the thread has used: to ask for each event
// takes a seventh of what serving takes.
constexpr absl::Duration kAsk = absl::Microseconds(50);
// So many looks in a row at least have found something in a crowd: one may only have taken long.
constexpr int kCrowdFinds = 4;
// What finds take of the time, over so long, in a crowd.
constexpr double kShare = 0.75;
constexpr absl::Duration kShareWindow = absl::Milliseconds(2);
// How long they serve together at least, and how much of a processor they take together at most
// where one of them could do alone.
constexpr absl::Duration kWindow = absl::Milliseconds(10);
constexpr double kCalm = 0.7;
// How long they serve together in one go, at first; and twice as long again, where one alone was
// not enough for so long.
constexpr absl::Duration kFirst = absl::Milliseconds(40), kMost = absl::Milliseconds(640);
// How much of a processor one takes at least that is held. Where others leave it less, it is held
// if it took some so often in a row.
constexpr double kBusy = 0.5, kSome = 0.05;
constexpr int kMostAway = 4;
// How long one of them waits before it looks whether it has become calm.
constexpr absl::Duration kLook = absl::Milliseconds(20);

absl::Duration UsedBy(pthread_t thread) {
  clockid_t clock;
  timespec used{};
  if (pthread_getcpuclockid(thread, &clock) != 0 || clock_gettime(clock, &used) != 0) return {};
  return absl::DurationFromTimespec(used);
}

thread_local ServingThreads* served = nullptr;  // what the calling thread is one of

// Whether what comes is too much for one thread.
class Crowd {
 public:
  // A look found something, and what that was took until `end`.
  void Find(absl::Time start, absl::Time end) {
    if (end - asked_ >= kAsk) Ask(end);
    Count(start, end);
  }
  // A look that took long; false if no processor was free meanwhile, which is not known of the
  // first.
  bool FindIfBusy(absl::Time start, absl::Time end) {
    const absl::Duration before = UsedAtMost(start);
    Ask(end);
    if (finds_ > 0 && used_ - before < kNothing) return false;
    Count(start, end);
    return true;
  }
  void FindNothing() { finds_ = 0; }

  // Without an end so far.
  bool IsBusy() const { return finds_ > 0 && used_ - since_ >= ServingThreads::kCrowd; }
  // There was no end for too long, or finds took most of the time.
  bool IsThere(absl::Time now, const std::function<bool()>& company) {
    if (finds_ >= kCrowdFinds && IsBusy()) return true;
    if (now - window_ < kShareWindow) return false;
    Ask(now);
    // What others' work on this processor took does not count.
    const bool much = std::min(found_, used_ - used_then_) > kShare * (now - window_);
    window_ = now;
    used_then_ = used_;
    found_ = absl::ZeroDuration();
    return company() && much;  // asked each time, so that it says what was since the last
  }

 private:
  void Ask(absl::Time now) {
    asked_ = now;
    used_ = UsedBy(pthread_self());
  }
  absl::Duration UsedAtMost(absl::Time now) const {
    return used_ + std::max(now - asked_, absl::ZeroDuration());
  }
  void Count(absl::Time start, absl::Time end) {
    found_ += end - start;
    if (finds_++ == 0) since_ = UsedAtMost(end);
  }

  int finds_ = 0;         // in a row
  absl::Duration since_;  // of a processor, used at the first of them
  absl::Time asked_ = SteadyNow();
  absl::Duration used_ = UsedBy(pthread_self());  // then
  absl::Time window_ = asked_;
  absl::Duration found_, used_then_ = used_;  // since the window began; when it did
};

}  // namespace

ServingThreads::ServingThreads(int threads, absl::Duration poll, grpc::CompletionQueue* queue,
                               std::function<void(void* tag, bool ok)> take,
                               std::function<bool()> company)
    : spare_(threads == 1),
      poll_(poll),
      queue_(queue),
      take_(std::move(take)),
      company_(std::move(company)),
      term_(spare_ ? 1 : 0),
      window_(SteadyNow()),
      changed_(window_),
      most_(kFirst) {
  absl::MutexLock lock(&mutex_);
  for (int i = 0; i < threads + (spare_ ? 1 : 0); ++i) {
    threads_.emplace_back([this, i] { Serve(/*alone=*/spare_ && i == 0); });
    ids_.push_back(threads_.back().native_handle());
  }
}

ServingThreads::Linger::Linger() : threads_(served) {
  if (threads_ == nullptr) return;
  if (!threads_->spare_ || threads_->lingers_.exchange(true)) {
    threads_ = nullptr;
  } else {
    threads_->looks_.fetch_add(1, std::memory_order_relaxed);  // it has just come back
  }
}

ServingThreads::Linger::~Linger() {
  if (threads_ != nullptr) threads_->lingers_ = false;
}

ServingThreads::~ServingThreads() {
  for (std::thread& thread : threads_) thread.join();
}

void ServingThreads::Serve(bool alone) {
  NameThread("serving");
  MarkTransportThread();
  served = this;
  End end = alone ? End::kChange : ServeTogether();
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
  Crowd crowd;
  Patience patience(poll_);
  absl::Time last = SteadyNow();  // an event
  const int64_t term = term_.load(std::memory_order_relaxed);
  while (!IsTogether(term) && term_.load(std::memory_order_relaxed) == term) {
    absl::Time start = SteadyNow();
    looks_.fetch_add(1, std::memory_order_relaxed);
    switch (queue_->AsyncNext(&tag, &ok, gpr_time_0(GPR_CLOCK_MONOTONIC))) {
      case grpc::CompletionQueue::SHUTDOWN:
        return End::kOver;
      case grpc::CompletionQueue::GOT_EVENT:
        patience.Came(start - last);
        take_(tag, ok);
        last = SteadyNow();
        crowd.Find(start, last);
        break;
      case grpc::CompletionQueue::TIMEOUT:
        const absl::Time now = SteadyNow();
        if (now - start < kNothing || !crowd.FindIfBusy(start, now)) {
          crowd.FindNothing();
          SetMayWorkHere(true);
        }
        if (now - last < patience.left() || crowd.IsBusy()) break;
        if (!queue_->Next(&tag, &ok)) return End::kOver;
        start = SteadyNow();
        patience.Came(start - last);
        crowd.FindNothing();
        take_(tag, ok);
        last = SteadyNow();
        crowd.Find(start, last);
        break;
    }
    if (spare_ || !crowd.IsThere(last, company_)) continue;
    absl::MutexLock lock(&mutex_);
    if (term_ != term || over_) continue;
    const absl::Duration alone = last - changed_;
    most_ = alone < kFirst ? std::min(2 * most_, kMost) : kFirst;
    NextTerm();
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
    if (together() && LeaveOthers(SteadyNow())) return End::kChange;
  }
}

bool ServingThreads::AwaitCrowd() {
  const auto is_called = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return together() || over_ || !watched_;
  };
  absl::MutexLock lock(&mutex_);
  while (!together() && !over_) {
    if (!watched_) {
      Watch();
    } else {
      mutex_.Await(absl::Condition(&is_called));
    }
  }
  return !over_;
}

void ServingThreads::Watch() {
  const auto comes = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return together() || over_; };
  watched_ = true;
  while (!mutex_.AwaitWithTimeout(absl::Condition(&comes), kHeld)) {
    if (IsHeld()) NextTerm();
  }
  watched_ = false;
}

bool ServingThreads::IsHeld() {
  const absl::Time now = SteadyNow();
  const absl::Duration used = UsedSeconds();
  const int64_t looks = looks_.load(std::memory_order_relaxed);
  const double part = absl::FDivDuration(used - used_, now - window_);  // of a processor
  const bool lingers = lingers_;  // then it may take nothing while it waits
  away_ = looks == looks_then_ && (lingers || part > kSome) ? away_ + 1 : 0;
  looks_then_ = looks;
  window_ = now;
  used_ = used;
  return away_ >= kMostAway || (away_ > 0 && (lingers || part > kBusy));
}

void ServingThreads::NextTerm() {
  changed_ = window_ = SteadyNow();
  used_ = UsedSeconds();
  looks_then_ = -1;
  away_ = 0;
  ++term_;
}

bool ServingThreads::LeaveOthers(absl::Time now) {
  if (!mutex_.TryLock()) return false;
  bool calm = false;
  // Once it is over some of them are no more.
  if (!over_ && together() && now - window_ >= kWindow) {
    const absl::Duration used = UsedSeconds();
    calm = spare_ || used - used_ < kCalm * (now - window_) || now - changed_ >= most_;
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
