// Idempotency keys of what is held.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/core/factorization_cache.h"

namespace blockd::server {

void FactorizationCache::RememberKey(Caller& owner, const EntryOptions& options,
                                     std::span<Entry* const> entries) {
  const std::string& key = options.idempotency_key;
  if (const auto old = owner.keys.find(key); old != owner.keys.end()) {
    ForgetKey(owner, &old->second);
  }
  KeyRecord& record = owner.keys[key];
  record.key = key;
  record.shape = entries[0]->holding->factorization->shape();
  record.systems = options.keyed;
  for (const Entry* entry : entries) {
    record.held_bytes = std::max(record.held_bytes, entry->holding->factorization->bytes());
  }
  size_t next = 0;
  for (KeyedSystem& system : record.systems) {
    if (system.status.ok()) system.handle = entries[next++]->handle;
  }
  for (Entry* entry : entries) entry->key = &record;
}

void FactorizationCache::ForgetKey(Caller& owner, const KeyRecord* record) {
  if (record == nullptr) return;
  for (const KeyedSystem& system : record->systems) {
    if (system.status.ok()) EntryOf(system.handle)->key = nullptr;
  }
  owner.keys.erase(owner.keys.find(record->key));
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

bool FactorizationCache::NeedsPinGrant(const Entry& entry, const KeyRequest& request) {
  return request.pinned != nullptr && (request.pin || request.lease > absl::ZeroDuration()) &&
         entry.pinned_grant.amount() == 0;
}

absl::StatusOr<Reservation> FactorizationCache::ReservePins(const KeyRecord& record,
                                                            const KeyRequest& request) {
  int64_t bytes = 0;
  for (const KeyedSystem& system : record.systems) {
    if (!system.status.ok()) continue;
    const Entry& entry = *EntryOf(system.handle);
    if (NeedsPinGrant(entry, request)) bytes += ChargeOf(entry);
  }
  if (bytes == 0) return Reservation();
  return request.pinned->Reserve(request.tenant, bytes);
}

absl::StatusOr<std::optional<FactorizationCache::KeyedFactors>> FactorizationCache::FindKey(
    const std::string& caller, const std::string& key, const KeyRequest& request) {
  const absl::Time now = clock_->Now();
  FairLock lock(&mutex_);
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
    absl::Status status = CheckKept(*EntryOf(system.handle)->holding->factorization, request);
    if (!status.ok()) return status;
  }
  absl::StatusOr<Reservation> pinned = ReservePins(record, request);
  if (!pinned.ok()) return pinned.status();
  KeyedFactors factors{record.systems, {}, record.held_bytes};
  factors.pins.resize(record.systems.size());
  for (size_t i = 0; i < record.systems.size(); ++i) {
    if (!record.systems[i].status.ok()) continue;
    Entry* const entry = EntryOf(record.systems[i].handle);
    Unfile(*entry);
    NoteUse(*entry, now);
    entry->lease = std::max(entry->lease, request.lease);
    if (NeedsPinGrant(*entry, request)) entry->pinned_grant = pinned->Split(ChargeOf(*entry));
    if (request.pin) PinForGood(*entry);
    File(*entry);
    factors.pins[i] = MakePin(entry);
  }
  return factors;
}

}  // namespace blockd::server
