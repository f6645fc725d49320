#include "server/core/cache/eviction_order.h"

namespace blockd::server {

void EvictionOrder::Unfile(CacheEntry& entry) {
  if (entry.idle) {
    entry.caller->idle.erase(&entry);
    idle_bytes_ -= entry.charge();
  }
  if (entry.leased) leased_.erase(&entry);
  entry.idle = entry.leased = false;
}

void EvictionOrder::FileIdle(CacheEntry& entry) {
  entry.caller->idle.insert(&entry);
  idle_bytes_ += entry.charge();
  entry.idle = true;
}

void EvictionOrder::File(CacheEntry& entry) {
  if (entry.pinned || entry.uses > 0 || entry.object == nullptr) return;
  if (entry.lease <= absl::ZeroDuration()) return FileIdle(entry);
  leased_.insert(&entry);  // over or not: EndLeases knows
  entry.leased = true;
}

void EvictionOrder::Touch(CacheEntry& entry, absl::Time now) {
  const bool filed = entry.idle || entry.leased;
  if (filed) Unfile(entry);
  NoteUse(entry, now);
  if (filed) File(entry);
}

void EvictionOrder::EndLeases(absl::Time now) {
  while (!leased_.empty() && (*leased_.begin())->lease_end() <= now) {
    CacheEntry& entry = **leased_.begin();
    leased_.erase(leased_.begin());
    entry.leased = false;
    FileIdle(entry);
  }
}

CacheEntry* EvictionOrder::OldestIdle(const EntryTable& table, double fair_bytes) {
  CacheEntry* oldest = nullptr;
  for (const auto& [name, caller] : table.callers()) {
    if (caller.idle.empty() || !caller.HasMoreThan(fair_bytes)) continue;
    CacheEntry* const first = *caller.idle.begin();
    if (oldest == nullptr || LessRecentlyUsed()(first, oldest)) oldest = first;
  }
  return oldest;
}

}  // namespace blockd::server
