// Idempotency keys of what is held.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/core/factorization_cache.h"

namespace blockd::server {

void FactorizationCache::RememberKey(Caller& owner, const EntryOptions& options,
                                     std::span<const EntryPtr> entries) {
  const std::string& key = options.idempotency_key;
  ForgetKey(owner, key);
  const Factorization& first = *entries[0]->holding->factorization;
  KeyRecord record;
  record.shape = first.shape();
  record.systems = options.keyed;
  record.held_bytes = first.bytes();
  record.matrix_kept = static_cast<bool>(first.matrix());
  size_t next = 0;
  for (KeyedSystem& system : record.systems) {
    if (system.status.ok()) system.handle = entries[next++]->handle;
  }
  for (const EntryPtr& entry : entries) entry->key = key;
  owner.keys[key] = std::move(record);
}

void FactorizationCache::ForgetKey(Caller& owner, const std::string& key) {
  const auto record = owner.keys.find(key);
  if (record == owner.keys.end()) return;
  for (const KeyedSystem& system : record->second.systems) {
    if (system.status.ok()) entries_.at(system.handle)->key.clear();
  }
  owner.keys.erase(record);
}

absl::StatusOr<std::optional<FactorizationCache::KeyedFactors>> FactorizationCache::FindKey(
    const std::string& caller, const std::string& key, const KeyRequest& request) {
  const absl::Time now = clock_->Now();
  absl::MutexLock lock(&mutex_);
  const auto owner = callers_.find(caller);
  if (owner == callers_.end()) return std::nullopt;
  const auto found = owner->second.keys.find(key);
  if (found == owner->second.keys.end()) return std::nullopt;
  const KeyRecord& record = found->second;
  const int64_t systems = static_cast<int64_t>(record.systems.size());
  if (!(record.shape == request.shape) || systems != request.systems) {
    return InvalidFieldError(
        "options.idempotency_key",
        absl::StrCat("a key of ", systems, " systems of ", ToString(record.shape), " for ",
                     request.systems, " of ", ToString(request.shape)),
        "a key of its own for each content");
  }
  if (request.keep_matrix && !record.matrix_kept) {
    return InvalidFieldError("options.keep_matrix",
                             "true, with the key of factorizations held without their matrices",
                             "false, or a key of its own");
  }
  KeyedFactors factors{record.systems, {}, record.held_bytes};
  factors.pins.resize(record.systems.size());
  for (size_t i = 0; i < record.systems.size(); ++i) {
    if (!record.systems[i].status.ok()) continue;
    const EntryPtr& entry = entries_.at(record.systems[i].handle);
    Touch(*entry, now);
    entry->lease = std::max(entry->lease, request.lease);
    if (request.pin) PinForGood(*entry);
    factors.pins[i].entry_ = entry;
    factors.pins[i].holding_ = entry->holding;
  }
  return factors;
}

}  // namespace blockd::server
