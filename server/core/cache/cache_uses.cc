// Where Solves begin and end: many at a time.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/core/cache/cache.h"

namespace blockd::server {
namespace {

// The delay before a client should retry while a refactor overwrites the handle that it asks for.
constexpr absl::Duration kOverwriteRetry = absl::Milliseconds(20);

absl::Status BeingOverwritten() {
  return RetryAfterError("the factorization is being overwritten", kOverwriteRetry);
}

absl::string_view Abseil(std::string_view text) { return {text.data(), text.size()}; }

}  // namespace

absl::StatusOr<Cache::Pin> Cache::Peek(const std::string& caller, const Handle& handle) {
  FairLock lock(&mutex_);
  absl::StatusOr<CacheEntry*> entry = Find(caller, handle);
  if (!entry.ok()) return entry.status();
  if ((*entry)->object == nullptr) {
    return BeingOverwritten();
  }
  return MakePin(*entry);
}

absl::StatusOr<Cache::Pin> Cache::LookupLocked(const std::string& caller, const Handle& handle,
                                               std::string_view kind, absl::Time now) {
  absl::StatusOr<CacheEntry*> entry = Find(caller, handle);
  if (!entry.ok()) {
    metrics_->RecordMiss(static_cast<int>(WhyNot(caller, handle)));
    return entry.status();
  }
  if ((*entry)->object == nullptr) return BeingOverwritten();
  if ((*entry)->object->kind() != kind) {
    return InvalidFieldError("handle", absl::StrCat("that of a ", Abseil((*entry)->object->kind())),
                             absl::StrCat("that of a ", Abseil(kind)));
  }
  order_.Touch(**entry, now);
  return MakePin(*entry);
}

void Cache::LookupEach(const std::string& caller, std::span<const Handle> handles,
                       std::string_view kind, absl::FunctionRef<void(absl::StatusOr<Pin>&&)> take) {
  const absl::Time now = clock_->Now();
  int64_t hits = 0;
  for (size_t at = 0; at < handles.size(); at += kAtATime) {
    if (at > 0) mutex_.LetOthersIn();
    FairLock lock(&mutex_);
    for (const Handle& handle : Portion(handles, at)) {
      absl::StatusOr<Pin> pin = LookupLocked(caller, handle, kind, now);
      hits += pin.ok();
      take(std::move(pin));
    }
  }
  if (hits > 0) metrics_->RecordHit(hits);
}

void Cache::EndUses(std::span<EndedUse> uses) {
  const absl::Time now = clock_->Now();
  for (size_t at = 0; at < uses.size(); at += kAtATime) {
    const std::span<EndedUse> portion = Portion(uses, at);
    // First the memory: whoever finds it idle finds nobody else at it.
    for (EndedUse& use : portion) use.pin.object_.reset();
    if (at > 0) mutex_.LetOthersIn();
    FairLock lock(&mutex_);
    for (EndedUse& use : portion) {
      CacheEntry* const entry = std::exchange(use.pin.entry_, nullptr);
      if (entry == nullptr) continue;
      if (use.num_rhs > 0) {
        ++entry->times_solved;
        entry->rhs_solved += use.num_rhs;
        if (entry->held) order_.Touch(*entry, now);
      }
      EndUse(entry);
    }
  }
}

}  // namespace blockd::server
