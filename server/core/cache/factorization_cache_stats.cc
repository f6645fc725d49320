// The held factorizations, as their owner and the operator see them.
#include <algorithm>

#include "server/core/cache/factorization_cache.h"

namespace blockd::server {

FactorizationStats FactorizationCache::StatsOf(const Entry& entry, absl::Time now) const {
  FactorizationStats stats;
  stats.handle = entry.handle;
  stats.shape = entry.shape;
  if (entry.holding != nullptr) {
    const Factorization& factorization = *entry.holding->factorization;
    stats.held_bytes = factorization.bytes();
    stats.matrix_kept = static_cast<bool>(factorization.matrix());
    stats.conditioning = factorization.conditioning();
    stats.backward_error_bound = factorization.backward_error_bound();
  }
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

absl::StatusOr<FactorizationStats> FactorizationCache::Get(const std::string& caller,
                                                           const Handle& handle) const {
  const absl::Time now = clock_->Now();
  FairLock lock(&mutex_);
  absl::StatusOr<Entry*> entry = Find(caller, handle);
  if (!entry.ok()) return entry.status();
  return StatsOf(**entry, now);
}

std::vector<FactorizationStats> FactorizationCache::List(const std::string& caller,
                                                         std::optional<Handle> after,
                                                         int64_t limit) const {
  const absl::Time now = clock_->Now();
  std::vector<FactorizationStats> list;
  FairLock lock(&mutex_);
  const auto owner = callers_.find(caller);
  if (owner == callers_.end()) return list;
  const auto& entries = owner->second.entries;
  auto it = after ? entries.upper_bound(*after) : entries.begin();
  for (; it != entries.end() && static_cast<int64_t>(list.size()) < limit; ++it) {
    list.push_back(StatsOf(**it, now));
  }
  return list;
}

std::vector<FactorizationCache::OwnedStats> FactorizationCache::ListAll(std::optional<Handle> after,
                                                                        int64_t limit) const {
  const absl::Time now = clock_->Now();
  std::vector<OwnedStats> list;
  FairLock lock(&mutex_);
  auto it = after ? entries_.upper_bound(*after) : entries_.begin();
  for (; it != entries_.end() && static_cast<int64_t>(list.size()) < limit; ++it) {
    list.push_back({(*it)->caller->name, StatsOf(**it, now)});
  }
  return list;
}

FactorizationCache::Totals FactorizationCache::totals() const {
  FairLock lock(&mutex_);
  return {static_cast<int64_t>(entries_.size()), held_bytes_, pinned_,
          static_cast<int64_t>(callers_.size())};
}

}  // namespace blockd::server
