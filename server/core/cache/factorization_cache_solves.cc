// Where Solves begin and end: many at a time.
#include <algorithm>
#include <utility>

#include "server/core/cache/factorization_cache.h"

namespace blockd::server {
namespace {

// The delay before a client should retry while a refactor overwrites the handle that it asks for.
constexpr absl::Duration kOverwriteRetry = absl::Milliseconds(20);

}  // namespace

absl::StatusOr<FactorizationCache::Pin> FactorizationCache::Peek(const std::string& caller,
                                                                 const Handle& handle) {
  FairLock lock(&mutex_);
  absl::StatusOr<Entry*> entry = Find(caller, handle);
  if (!entry.ok()) return entry.status();
  if ((*entry)->holding == nullptr) {
    return RetryAfterError("the factorization is being overwritten", kOverwriteRetry);
  }
  return MakePin(*entry);
}

absl::StatusOr<FactorizationCache::Pin> FactorizationCache::LookupLocked(const std::string& caller,
                                                                         const Handle& handle,
                                                                         absl::Time now) {
  absl::StatusOr<Entry*> entry = Find(caller, handle);
  if (!entry.ok()) {
    metrics_->RecordMiss(static_cast<int>(WhyNot(caller, handle)));
    return entry.status();
  }
  if ((*entry)->holding == nullptr) {
    return RetryAfterError("the factorization is being overwritten", kOverwriteRetry);
  }
  Touch(**entry, now);
  return MakePin(*entry);
}

absl::StatusOr<FactorizationCache::Pin> FactorizationCache::Lookup(const std::string& caller,
                                                                   const Handle& handle) {
  return std::move(LookupAll(caller, {&handle, 1})[0]);
}

std::vector<absl::StatusOr<FactorizationCache::Pin>> FactorizationCache::LookupAll(
    const std::string& caller, std::span<const Handle> handles) {
  const absl::Time now = clock_->Now();
  std::vector<absl::StatusOr<Pin>> pins;
  pins.reserve(handles.size());
  for (size_t at = 0; at < handles.size(); at += kAtATime) {
    if (at > 0) mutex_.LetOthersIn();
    FairLock lock(&mutex_);
    for (const Handle& handle : Portion(handles, at)) {
      pins.push_back(LookupLocked(caller, handle, now));
    }
  }
  const auto hits =
      std::count_if(pins.begin(), pins.end(), [](const auto& pin) { return pin.ok(); });
  if (hits > 0) metrics_->RecordHit(hits);
  return pins;
}

void FactorizationCache::EndSolves(std::span<EndedSolve> solves) {
  const absl::Time now = clock_->Now();
  for (size_t at = 0; at < solves.size(); at += kAtATime) {
    const std::span<EndedSolve> portion =
        solves.subspan(at, std::min(kAtATime, solves.size() - at));
    // First the memory: whoever finds it idle finds nobody else at it.
    for (EndedSolve& solve : portion) solve.pin.holding_.reset();
    if (at > 0) mutex_.LetOthersIn();
    FairLock lock(&mutex_);
    for (EndedSolve& solve : portion) {
      Entry* const entry = std::exchange(solve.pin.entry_, nullptr);
      if (entry == nullptr) continue;
      if (solve.num_rhs > 0) {
        ++entry->times_solved;
        entry->rhs_solved += solve.num_rhs;
        if (entry->held) Touch(*entry, now);
      }
      EndUseLocked(entry);
    }
  }
}

}  // namespace blockd::server
