// Evictions against fragmentation: what could go, where it lies, and all of a choice or nothing.
#include <algorithm>

#include "server/core/cache/cache.h"

namespace blockd::server {
std::vector<IdleObject> Cache::IdleObjects(double fair_bytes) {
  const absl::Time now = clock_->Now();
  std::vector<IdleObject> found;
  std::optional<Handle> after;
  // A few at a time, so that others come in between.
  for (bool more = true; more;) {
    mutex_.LetOthersIn();
    FairLock lock(&mutex_);
    order_.EndLeases(now);
    auto next = table_.After(after);
    for (size_t i = 0; i < kAtATime && next != table_.entries().end(); ++i, ++next) {
      const CacheEntry& entry = **next;
      after = entry.handle;
      if (!entry.idle) continue;
      found.push_back({.handle = entry.handle,
                       .pieces = entry.object->pieces(),
                       .age = order_.AgeOf(entry),
                       .within_part = !entry.caller->HasMoreThan(fair_bytes)});
    }
    more = next != table_.entries().end();
  }
  return found;
}

CacheEntry* Cache::StillIdle(const IdleObject& chosen) const {
  CacheEntry* const entry = table_.Find(chosen.handle);
  if (entry == nullptr || !entry->idle) return nullptr;
  return entry->object->pieces()[0].data == chosen.pieces[0].data ? entry : nullptr;
}

std::vector<Evicted> Cache::EvictChosen(std::span<const IdleObject> chosen) {
  std::vector<Evicted> evicted;
  // All are looked at before the first of them goes.
  for (const bool evict : {false, true}) {
    for (size_t at = 0; at < chosen.size(); at += kAtATime) {
      std::vector<CacheEntry*> entries;
      mutex_.LetOthersIn();
      FairLock lock(&mutex_);
      for (const IdleObject& one : Portion(chosen, at)) {
        entries.push_back(StillIdle(one));
        if (entries.back() == nullptr) return evicted;
      }
      if (!evict) continue;
      for (CacheEntry* const entry : entries) {
        evicted.push_back(EndIdle(entry, EvictionReason::kFragmentation));
      }
    }
  }
  return evicted;
}

}  // namespace blockd::server
