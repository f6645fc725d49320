// Idempotency keys of what is held.
#include <algorithm>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/core/cache/factorization_cache.h"

namespace blockd::server {

std::shared_ptr<FactorizationCache::KeyRecord> FactorizationCache::RecordOf(
    const EntryOptions& options, std::span<Entry* const> entries) {
  if (options.idempotency_key.empty()) return nullptr;
  auto record = std::make_shared<KeyRecord>();
  record->key = options.idempotency_key;
  record->shape = entries[0]->shape;
  record->systems = options.keyed;
  size_t next = 0;
  for (KeyedSystem& system : record->systems) {
    if (system.status.ok()) system.handle = entries[next++]->handle;
  }
  for (Entry* const entry : entries) {
    record->held_bytes = std::max(record->held_bytes, entry->holding->factorization->bytes());
    entry->key = record;
  }
  return record;
}

void FactorizationCache::RememberKey(Caller& owner, std::shared_ptr<KeyRecord> record) {
  if (record->forgotten) return;
  std::shared_ptr<KeyRecord>& found = owner.keys[record->key];
  if (found != nullptr) found->forgotten = true;
  found = std::move(record);
}

void FactorizationCache::ForgetKey(Entry& entry) {
  const std::shared_ptr<KeyRecord> record = std::exchange(entry.key, nullptr);
  if (record == nullptr || record->forgotten) return;
  record->forgotten = true;
  auto& keys = entry.caller->keys;
  const auto found = keys.find(record->key);
  if (found != keys.end() && found->second == record) keys.erase(found);
}

// OK if the held factorization satisfies a later call with its key.
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

absl::StatusOr<std::shared_ptr<FactorizationCache::KeyRecord>> FactorizationCache::FindRecord(
    const std::string& caller, const std::string& key, const KeyRequest& request) {
  FairLock lock(&mutex_);
  const auto owner = callers_.find(caller);
  if (owner == callers_.end()) return nullptr;
  const auto found = owner->second.keys.find(key);
  if (found == owner->second.keys.end()) return nullptr;
  const KeyRecord& record = *found->second;
  const int64_t systems = static_cast<int64_t>(record.systems.size());
  if (!(record.shape == request.shape) || systems != request.systems) {
    return InvalidFieldError(
        "options.idempotency_key",
        absl::StrCat("a key of ", systems, " systems of ", ToString(record.shape), " for ",
                     request.systems, " of ", ToString(request.shape)),
        "a key of its own for each content");
  }
  return found->second;
}

absl::StatusOr<bool> FactorizationCache::PinAll(const KeyRecord& record, const KeyRequest& request,
                                                std::vector<Pin>* pins,
                                                std::vector<int64_t>* wanted) {
  const size_t systems = record.systems.size();
  pins->resize(systems);
  wanted->resize(systems);
  for (size_t at = 0; at < systems; at += kAtATime) {
    mutex_.LetOthersIn();
    FairLock lock(&mutex_);
    if (record.forgotten) return false;
    for (size_t i = at; i < std::min(at + kAtATime, systems); ++i) {
      if (!record.systems[i].status.ok()) continue;
      Entry* const entry = EntryOf(record.systems[i].handle);
      absl::Status status = CheckKept(*entry->holding->factorization, request);
      if (!status.ok()) return status;
      (*pins)[i] = MakePin(entry);
      if (NeedsPinGrant(*entry, request)) (*wanted)[i] = ChargeOf(*entry);
    }
  }
  return true;
}

void FactorizationCache::UseAll(std::span<Pin> pins, std::span<const int64_t> wanted,
                                const KeyRequest& request, Reservation pinned) {
  const absl::Time now = clock_->Now();
  for (size_t at = 0; at < pins.size(); at += kAtATime) {
    mutex_.LetOthersIn();
    FairLock lock(&mutex_);
    for (size_t i = at; i < std::min(at + kAtATime, pins.size()); ++i) {
      // A thread that ended the entry or took its pin since the look counts as later than this
      // call.
      Entry* const entry = pins[i].entry_;
      if (entry == nullptr || !entry->held) continue;
      NoteUse(*entry, now);
      if (NeedsPinGrant(*entry, request)) {
        if (wanted[i] == 0) continue;
        // It may hold more by now, for which there is no room.
        if (!GrantPinned(*entry, ChargeOf(*entry), request.tenant, &pinned).ok()) continue;
      }
      entry->lease = std::max(entry->lease, request.lease);
      if (request.pin) PinForGood(*entry);
    }
  }
}

absl::StatusOr<std::optional<FactorizationCache::KeyedFactors>> FactorizationCache::FindKey(
    const std::string& caller, const std::string& key, const KeyRequest& request) {
  const auto record = FindRecord(caller, key, request);
  if (!record.ok()) return record.status();
  if (*record == nullptr) return std::nullopt;
  KeyedFactors factors{(*record)->systems, {}, (*record)->held_bytes};
  std::vector<int64_t> wanted;
  const absl::StatusOr<bool> held = PinAll(**record, request, &factors.pins, &wanted);
  if (!held.ok()) return held.status();
  if (!*held) return std::nullopt;
  Reservation pinned;
  if (const int64_t bytes = std::reduce(wanted.begin(), wanted.end()); bytes > 0) {
    absl::StatusOr<Reservation> reserved = options_.pinned->Reserve(request.tenant, bytes);
    if (!reserved.ok()) return reserved.status();
    pinned = *std::move(reserved);
  }
  UseAll(factors.pins, wanted, request, std::move(pinned));
  return factors;
}

}  // namespace blockd::server
