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
  KeyRecord record;
  record.shape = entries[0]->holding->factorization->shape();
  record.systems = options.keyed;
  for (const EntryPtr& entry : entries) {
    record.held_bytes = std::max(record.held_bytes, entry->holding->factorization->bytes());
  }
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

// Whether what is held can be what a later call with its key asks for.
absl::Status FactorizationCache::CheckKept(const Factorization& held, const KeyRequest& request) {
  constexpr char kOwnKey[] = "or a key of its own";
  if (request.keep_matrix && !held.matrix()) {
    return InvalidFieldError("options.keep_matrix",
                             "true, with the key of factorizations held without their matrices",
                             absl::StrCat("false, ", kOwnKey));
  }
  if (request.accuracy == Accuracy::kGuaranteed && held.at_risk() && !held.matrix()) {
    return InvalidFieldError("options.accuracy",
                             "ACCURACY_GUARANTEED, with the key of factorizations that need their "
                             "matrices for it and are held without",
                             absl::StrCat("ACCURACY_STANDARD, ", kOwnKey));
  }
  if (request.condition_estimate && !held.conditioning().condition_estimate) {
    return InvalidFieldError("options.condition_estimate",
                             "true, with the key of factorizations that were made without",
                             absl::StrCat("false, ", kOwnKey));
  }
  return absl::OkStatus();
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
  for (const KeyedSystem& system : record.systems) {
    if (!system.status.ok()) continue;
    absl::Status status = CheckKept(*entries_.at(system.handle)->holding->factorization, request);
    if (!status.ok()) return status;
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
