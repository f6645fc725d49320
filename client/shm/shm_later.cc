// The requests of a session that no thread waits for.
#include <algorithm>
#include <utility>

#include "absl/time/clock.h"
#include "client/base/detached_thread.h"
#include "client/shm/shm_session.h"

namespace blockd::client {
namespace {

// How often those are looked for that are late: not sent in their time, or not answered long after
// it.
constexpr absl::Duration kLook = absl::Seconds(1);

}  // namespace

absl::StatusOr<ShmSession::LaterPtr> ShmSession::CallLater(const v1::ShmRequest& request,
                                                           absl::Time deadline, Done done) {
  auto later = std::make_shared<Later>();
  later->request = request;
  later->deadline = deadline;
  later->done = std::move(done);
  {
    absl::MutexLock lock(&mutex_);
    if (ended()) return absl::UnavailableError(why_);
    if (absl::Status awake = WakeThread(); !awake.ok()) return awake;
    ++laters_;
    if (free_.empty()) {
      unsent_.push_back(later);
    } else {
      PutLater(later);
    }
  }
  WakeServerIfAsleep();
  return later;
}

void ShmSession::PutLater(const LaterPtr& later) {
  Pending& pending = Put(later->request, later->deadline);
  pending.later = later;
  later->sent_id = pending.id;
}

void ShmSession::Cancel(const LaterPtr& later) {
  v1::ShmRequest cancel{};
  // Not in the past, because the server's silence is measured from this deadline too.
  const absl::Time deadline = std::max(later->deadline, absl::Now());
  {
    absl::MutexLock lock(&mutex_);
    if (later->is_over || ended()) return;
    if (std::erase(unsent_, later) > 0) {
      return Finish(later, absl::CancelledError("cancelled before it was sent"));
    }
    cancel.operation = v1::ShmOperation::kCancel;
    cancel.other_id = later->sent_id;
  }
  (void)CallLater(cancel, deadline, [](const absl::StatusOr<v1::ShmReply>&) {});
}

void ShmSession::LetGo() {
  absl::MutexLock lock(&mutex_);
  let_go_ = true;
  has_work_.Signal();
}

absl::Status ShmSession::WakeThread() {
  if (runs_) {
    has_work_.Signal();
    return absl::OkStatus();
  }
  // Detached: this thread may itself let go of the session last, and cannot wait for itself.
  const absl::Status started = StartDetached([self = shared_from_this()] { self->Run(); });
  runs_ = started.ok();
  return started;
}

void ShmSession::Finish(LaterPtr later, absl::StatusOr<v1::ShmReply> reply) {
  later->is_over = true;
  later->reply = std::move(reply);
  finished_.push_back(std::move(later));
  --laters_;
  thread_.done.store(true, std::memory_order_release);
  if (thread_.asleep) thread_.wake.Signal();
  has_work_.Signal();
}

void ShmSession::FinishHopeless() {
  const absl::Time now = absl::Now();
  bool silent = false;
  {
    absl::MutexLock lock(&mutex_);
    for (const Pending& pending : pending_) {
      silent |= pending.later != nullptr && pending.later->deadline + kPatience <= now;
    }
    std::erase_if(unsent_, [&](const LaterPtr& later) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      if (ended() || now < later->deadline) return false;
      Finish(later, absl::DeadlineExceededError("too many calls are under way"));
      return true;
    });
  }
  // Its memory may still be written to: nobody gets it any more.
  if (silent) End("the server does not answer");
  absl::MutexLock lock(&mutex_);
  if (!ended()) return;
  for (Pending& pending : pending_) {
    if (pending.later == nullptr) continue;
    Finish(std::exchange(pending.later, nullptr), absl::UnavailableError(why_));
  }
  for (LaterPtr& later : std::exchange(unsent_, {})) {
    Finish(std::move(later), absl::UnavailableError(why_));
  }
}

void ShmSession::Run() {
  absl::Time look = absl::Now() + kLook;
  while (true) {
    if (ended() || absl::Now() >= look) {
      FinishHopeless();
      look = absl::Now() + kLook;
    }
    std::vector<LaterPtr> finished;
    {
      absl::MutexLock lock(&mutex_);
      while (finished_.empty() && laters_ == 0 && !let_go_ && !ended()) has_work_.Wait(&mutex_);
      if (finished_.empty() && laters_ == 0) {
        runs_ = false;
        return;
      }
      finished.swap(finished_);
      thread_.done.store(false, std::memory_order_relaxed);
    }
    for (const LaterPtr& later : finished) {
      later->done(std::move(later->reply));
      later->done = nullptr;  // with what it holds
    }
    if (finished.empty()) Await(thread_, look);
  }
}

}  // namespace blockd::client
