// Everything that was granted to a request. However it ends, the permit's destructor gives it back.
//
// Movable; one thread at a time.
#ifndef BLOCKD_SERVER_CORE_TENANTS_PERMIT_H_
#define BLOCKD_SERVER_CORE_TENANTS_PERMIT_H_

#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "server/core/common/tenant.h"
#include "server/core/tenants/budget.h"

namespace blockd::server {

// How many requests are accepted and not over. Thread-safe; outlives its tokens.
class OngoingWork {
 public:
  class Token {
   public:
    Token() = default;
    Token(Token&& other) noexcept : work_(std::exchange(other.work_, nullptr)) {}
    Token& operator=(Token&& other) noexcept {
      std::swap(work_, other.work_);
      return *this;
    }
    ~Token() {
      if (work_ != nullptr) work_->End();
    }

   private:
    friend class OngoingWork;
    explicit Token(OngoingWork* work) : work_(work) {}
    OngoingWork* work_ = nullptr;
  };

  // False once it is closed.
  bool Begin(Token* token) {
    absl::MutexLock lock(&mutex_);
    if (closed_) return false;
    ++count_;
    *token = Token(this);
    return true;
  }
  // A part of what has begun and is not over.
  void BeginPart(Token* token) {
    absl::MutexLock lock(&mutex_);
    ++count_;
    *token = Token(this);
  }
  void Close() {
    absl::MutexLock lock(&mutex_);
    closed_ = true;
  }
  void WaitUntilNone() {
    absl::MutexLock lock(&mutex_);
    const auto none = [this]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return count_ == 0; };
    mutex_.Await(absl::Condition(&none));
  }

 private:
  void End() {
    absl::MutexLock lock(&mutex_);
    --count_;
  }

  absl::Mutex mutex_;
  int64_t count_ ABSL_GUARDED_BY(mutex_) = 0;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
};

// Members are given back in reverse order: the request is over when all else is back.
struct Permit {
  OngoingWork::Token ongoing;
  TenantPtr tenant;
  bool is_part = false;  // of a request that has been counted
  Reservation slot;      // of the queue, until it runs
  Reservation pinned;    // of these three what is kept moves on with what is kept
  Reservation handles;
  Reservation device;

  // All but that it is under way: whoever is told of its end finds them back.
  void GiveBack() {
    slot.Reset();
    pinned.Reset();
    handles.Reset();
    device.Reset();
  }
};

}  // namespace blockd::server

#endif  // BLOCKD_SERVER_CORE_TENANTS_PERMIT_H_
