// Evictions against fragmentation: what could go, where it lies, and all of a choice or nothing.
#include <algorithm>

#include "server/core/cache/factorization_cache.h"

namespace blockd::server {
namespace {

// As the pool will have it free.
FreePiece PieceOf(const void* data, int64_t bytes) {
  return {static_cast<const std::byte*>(data), MemoryPool::Rounded(bytes)};
}

}  // namespace

std::vector<IdleHolding> FactorizationCache::IdleHoldings(double fair_bytes) {
  const absl::Time now = clock_->Now();
  std::vector<IdleHolding> found;
  std::optional<Handle> after;
  // A few at a time, so that others come in between.
  for (bool more = true; more;) {
    mutex_.LetOthersIn();
    FairLock lock(&mutex_);
    EndLeases(now);
    auto next = after ? entries_.upper_bound(*after) : entries_.begin();
    for (size_t i = 0; i < kAtATime && next != entries_.end(); ++i, ++next) {
      const Entry& entry = **next;
      after = entry.handle;
      if (!entry.idle) continue;
      const Factorization& held = *entry.holding->factorization;
      const int64_t matrix = held.matrix().bytes(), border = held.border().bytes();
      found.push_back({.handle = entry.handle,
                       .pieces = {PieceOf(held.data(), held.bytes() - matrix - border),
                                  PieceOf(held.matrix().data(), matrix),
                                  PieceOf(held.border().columns(), border)},
                       .age = next_use_ - entry.use_order,
                       .within_part = !HasMoreThan(fair_bytes, *entry.caller)});
    }
    more = next != entries_.end();
  }
  return found;
}

FactorizationCache::Entry* FactorizationCache::StillIdle(const IdleHolding& chosen) const {
  Entry* const entry = EntryOf(chosen.handle);
  if (entry == nullptr || !entry->idle) return nullptr;
  return entry->holding->factorization->data() == chosen.pieces[0].data ? entry : nullptr;
}

std::vector<Evicted> FactorizationCache::EvictChosen(std::span<const IdleHolding> chosen) {
  std::vector<Evicted> evicted;
  // All are looked at before the first of them goes.
  for (const bool evict : {false, true}) {
    for (size_t at = 0; at < chosen.size(); at += kAtATime) {
      std::vector<Entry*> entries;
      mutex_.LetOthersIn();
      FairLock lock(&mutex_);
      for (const IdleHolding& one : Portion(chosen, at)) {
        entries.push_back(StillIdle(one));
        if (entries.back() == nullptr) return evicted;
      }
      if (!evict) continue;
      for (Entry* const entry : entries) {
        evicted.push_back(EndIdle(entry, EvictionReason::kFragmentation));
      }
    }
  }
  return evicted;
}

}  // namespace blockd::server
