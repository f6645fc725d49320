// Tells ThreadSanitizer about Abseil's locks and statuses. The distribution's Abseil is not
// instrumented, so without this every use of an absl::Mutex would look like a race.
//
// Linked into a program, these definitions come before those of the shared library, for gRPC's
// calls too; each does what the library's does and says which order that makes.
#include <dlfcn.h>

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "absl/base/options.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"

extern "C" {
void __tsan_acquire(void* address);
void __tsan_release(void* address);
}

#define BLOCKD_TEXT_OF(x) #x
#define BLOCKD_TEXT(x) BLOCKD_TEXT_OF(x)

namespace absl {
ABSL_NAMESPACE_BEGIN
namespace {

// The library's own definition of a member function of absl's inline namespace. `prefix` is _ZN, or
// _ZNK for a const one; `name` is the rest of the mangled name.
template <typename Function>
Function* Real(const char* name, const char* prefix = "_ZN") {
  const std::string space = BLOCKD_TEXT(ABSL_OPTION_INLINE_NAMESPACE_NAME);
  const std::string mangled =
      std::string(prefix) + "4absl" + std::to_string(space.size()) + space + name;
  void* const found = dlsym(RTLD_NEXT, mangled.c_str());
  if (found == nullptr) std::abort();  // another Abseil than this file knows
  return reinterpret_cast<Function*>(found);
}

// The library's detector of deadlocks keeps its graph under a spin lock, which nothing here can
// see. The other builds leave it on.
[[maybe_unused]] const bool detector_is_off = [] {
  SetMutexDeadlockDetectionMode(OnDeadlockCycle::kIgnore);
  return true;
}();

// A thread that gives a lock back looks at the conditions of those that wait for it, after Unlock
// has said that it gives the lock back, and before others have it: so each look is ordered as a
// turn of its own.
struct OrderedCondition {
  OrderedCondition(Mutex* mutex, const Condition& given)
      : mutex(mutex), given(given), ordered(&Look, this) {}
  static bool Look(OrderedCondition* self) {
    __tsan_acquire(self->mutex);
    const bool met = self->given.Eval();
    __tsan_release(self->mutex);
    return met;
  }
  Mutex* const mutex;
  const Condition& given;
  const Condition ordered;
};

}  // namespace

void Mutex::Lock() {
  static auto* const real = Real<void(Mutex*)>("5Mutex4LockEv");
  real(this);
  __tsan_acquire(this);
}

void Mutex::Unlock() {
  static auto* const real = Real<void(Mutex*)>("5Mutex6UnlockEv");
  __tsan_release(this);
  real(this);
}

bool Mutex::TryLock() {
  static auto* const real = Real<bool(Mutex*)>("5Mutex7TryLockEv");
  const bool locked = real(this);
  if (locked) __tsan_acquire(this);
  return locked;
}

void Mutex::ReaderLock() {
  static auto* const real = Real<void(Mutex*)>("5Mutex10ReaderLockEv");
  real(this);
  __tsan_acquire(this);
}

void Mutex::ReaderUnlock() {
  static auto* const real = Real<void(Mutex*)>("5Mutex12ReaderUnlockEv");
  __tsan_release(this);
  real(this);
}

void Mutex::Await(const Condition& condition) {
  static auto* const real = Real<void(Mutex*, const Condition&)>("5Mutex5AwaitERKNS0_9ConditionE");
  const OrderedCondition order(this, condition);
  __tsan_release(this);
  real(this, order.ordered);
  __tsan_acquire(this);
}

bool Mutex::AwaitWithTimeout(const Condition& condition, Duration timeout) {
  static auto* const real = Real<bool(Mutex*, const Condition&, Duration)>(
      "5Mutex16AwaitWithTimeoutERKNS0_9ConditionENS0_8DurationE");
  const OrderedCondition order(this, condition);
  __tsan_release(this);
  const bool met = real(this, order.ordered, timeout);
  __tsan_acquire(this);
  return met;
}

bool Mutex::AwaitWithDeadline(const Condition& condition, Time deadline) {
  static auto* const real = Real<bool(Mutex*, const Condition&, Time)>(
      "5Mutex17AwaitWithDeadlineERKNS0_9ConditionENS0_4TimeE");
  const OrderedCondition order(this, condition);
  __tsan_release(this);
  const bool met = real(this, order.ordered, deadline);
  __tsan_acquire(this);
  return met;
}

void Mutex::LockWhen(const Condition& condition) {
  static auto* const real =
      Real<void(Mutex*, const Condition&)>("5Mutex8LockWhenERKNS0_9ConditionE");
  const OrderedCondition order(this, condition);
  real(this, order.ordered);
  __tsan_acquire(this);
}

void CondVar::Wait(Mutex* mutex) {
  static auto* const real = Real<void(CondVar*, Mutex*)>("7CondVar4WaitEPNS0_5MutexE");
  __tsan_release(mutex);
  real(this, mutex);
  __tsan_acquire(mutex);
}

bool CondVar::WaitWithTimeout(Mutex* mutex, Duration timeout) {
  static auto* const real = Real<bool(CondVar*, Mutex*, Duration)>(
      "7CondVar15WaitWithTimeoutEPNS0_5MutexENS0_8DurationE");
  __tsan_release(mutex);
  const bool timed_out = real(this, mutex, timeout);
  __tsan_acquire(mutex);
  return timed_out;
}

bool CondVar::WaitWithDeadline(Mutex* mutex, Time deadline) {
  static auto* const real =
      Real<bool(CondVar*, Mutex*, Time)>("7CondVar16WaitWithDeadlineEPNS0_5MutexENS0_4TimeE");
  __tsan_release(mutex);
  const bool timed_out = real(this, mutex, deadline);
  __tsan_acquire(mutex);
  return timed_out;
}

void Notification::Notify() {
  static auto* const real = Real<void(Notification*)>("12Notification6NotifyEv");
  __tsan_release(this);
  real(this);
}

void Notification::WaitForNotification() const {
  static auto* const real =
      Real<void(const Notification*)>("12Notification19WaitForNotificationEv", "_ZNK");
  real(this);
  __tsan_acquire(const_cast<Notification*>(this));
}

bool Notification::WaitForNotificationWithTimeout(Duration timeout) const {
  static auto* const real = Real<bool(const Notification*, Duration)>(
      "12Notification30WaitForNotificationWithTimeoutENS0_8DurationE", "_ZNK");
  const bool notified = real(this, timeout);
  __tsan_acquire(const_cast<Notification*>(this));
  return notified;
}

// The thread that gives up the last reference to a status destroys what the others have read: the
// counter orders that, which only code that is instrumented shows.
void Status::UnrefNonInlined(uintptr_t rep) {
  status_internal::StatusRep* const status = RepToPointer(rep);
  if (status->ref.load(std::memory_order_acquire) == 1 ||
      status->ref.fetch_sub(1, std::memory_order_acq_rel) == 1) {
    delete status;
  }
}

ABSL_NAMESPACE_END
}  // namespace absl
