// The held objects, as their owner and the operator see them.
#include <algorithm>

#include "server/core/cache/cache.h"

namespace blockd::server {

KeptStats Cache::StatsOf(const CacheEntry& entry, absl::Time now) {
  KeptStats stats;
  stats.handle = entry.handle;
  stats.held_bytes = entry.bytes();
  stats.details = entry.object != nullptr ? entry.object->Describe() : entry.details;
  stats.pinned = entry.pinned;
  stats.age = now - entry.made;
  stats.idle = now - entry.used;
  stats.lease_left = std::max(entry.used + entry.lease - now, absl::ZeroDuration());
  stats.times_solved = entry.times_solved;
  stats.rhs_solved = entry.rhs_solved;
  stats.times_refactored = entry.times_refactored;
  if (entry.key != nullptr && !entry.key->forgotten) stats.idempotency_key = entry.key->key;
  return stats;
}

absl::StatusOr<KeptStats> Cache::Get(const std::string& caller, const Handle& handle) const {
  const absl::Time now = clock_->Now();
  FairLock lock(&mutex_);
  absl::StatusOr<CacheEntry*> entry = Find(caller, handle);
  if (!entry.ok()) return entry.status();
  return StatsOf(**entry, now);
}

std::vector<KeptStats> Cache::List(const std::string& caller, std::optional<Handle> after,
                                   int64_t limit) const {
  const absl::Time now = clock_->Now();
  std::vector<KeptStats> list;
  FairLock lock(&mutex_);
  const auto owner = table_.callers().find(caller);
  if (owner == table_.callers().end()) return list;
  const CacheEntries& entries = owner->second.entries;
  auto it = after ? entries.upper_bound(*after) : entries.begin();
  for (; it != entries.end() && static_cast<int64_t>(list.size()) < limit; ++it) {
    list.push_back(StatsOf(**it, now));
  }
  return list;
}

std::vector<Cache::OwnedStats> Cache::ListAll(std::optional<Handle> after, int64_t limit) const {
  const absl::Time now = clock_->Now();
  std::vector<OwnedStats> list;
  FairLock lock(&mutex_);
  auto it = table_.After(after);
  for (; it != table_.entries().end() && static_cast<int64_t>(list.size()) < limit; ++it) {
    list.push_back({(*it)->caller->name, StatsOf(**it, now)});
  }
  return list;
}

Cache::Totals Cache::totals() const {
  FairLock lock(&mutex_);
  return {static_cast<int64_t>(table_.entries().size()), held_bytes_, pinned_,
          static_cast<int64_t>(table_.callers().size())};
}

}  // namespace blockd::server
