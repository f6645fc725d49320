// Idempotency keys of what is held.
#include <algorithm>
#include <numeric>
#include <utility>

#include "server/core/cache/cache.h"

namespace blockd::server {

absl::StatusOr<std::shared_ptr<KeyRecord>> Cache::FindRecord(const std::string& caller,
                                                             const std::string& key,
                                                             const KeyRequest& request) {
  FairLock lock(&mutex_);
  CacheCaller* const owner = table_.FindCaller(caller);
  if (owner == nullptr) return nullptr;
  const auto found = owner->keys.find(key);
  if (found == owner->keys.end()) return nullptr;
  absl::Status status = request.check_answer(found->second->answer);
  if (!status.ok()) return status;
  return found->second;
}

absl::StatusOr<bool> Cache::PinAll(const KeyRecord& record, const KeyRequest& request,
                                   std::vector<Pin>* pins, std::vector<int64_t>* wanted) {
  const size_t count = record.handles.size();
  pins->resize(count);
  wanted->resize(count);
  for (size_t at = 0; at < count; at += kAtATime) {
    mutex_.LetOthersIn();
    FairLock lock(&mutex_);
    if (record.forgotten) return false;
    for (size_t i = at; i < std::min(at + kAtATime, count); ++i) {
      CacheEntry* const entry = table_.Find(record.handles[i]);
      absl::Status status = request.check_object(*entry->object);
      if (!status.ok()) return status;
      (*pins)[i] = MakePin(entry);
      if (NeedsPinGrant(*entry, request)) (*wanted)[i] = entry->charge();
    }
  }
  return true;
}

void Cache::UseAll(std::span<Pin> pins, std::span<const int64_t> wanted, const KeyRequest& request,
                   Reservation pinned) {
  const absl::Time now = clock_->Now();
  for (size_t at = 0; at < pins.size(); at += kAtATime) {
    mutex_.LetOthersIn();
    FairLock lock(&mutex_);
    for (size_t i = at; i < std::min(at + kAtATime, pins.size()); ++i) {
      // A thread that ended the entry or took its pin since the look counts as later than this
      // call.
      CacheEntry* const entry = pins[i].entry_;
      if (entry == nullptr || !entry->held) continue;
      order_.NoteUse(*entry, now);
      if (NeedsPinGrant(*entry, request)) {
        if (wanted[i] == 0) continue;
        // It may hold more by now, for which there is no room.
        if (!GrantPinned(*entry, entry->charge(), request.tenant, &pinned).ok()) continue;
      }
      entry->lease = std::max(entry->lease, request.lease);
      if (request.pin) PinForGood(*entry);
    }
  }
}

absl::StatusOr<std::optional<Cache::Found>> Cache::FindKey(const std::string& caller,
                                                           const std::string& key,
                                                           const KeyRequest& request) {
  const auto record = FindRecord(caller, key, request);
  if (!record.ok()) return record.status();
  if (*record == nullptr) return std::nullopt;
  Found found{(*record)->answer, (*record)->handles, {}};
  std::vector<int64_t> wanted;
  const absl::StatusOr<bool> held = PinAll(**record, request, &found.pins, &wanted);
  if (!held.ok()) return held.status();
  if (!*held) return std::nullopt;
  Reservation pinned;
  if (const int64_t bytes = std::reduce(wanted.begin(), wanted.end()); bytes > 0) {
    absl::StatusOr<Reservation> reserved = options_.pinned->Reserve(request.tenant, bytes);
    if (!reserved.ok()) return reserved.status();
    pinned = *std::move(reserved);
  }
  UseAll(found.pins, wanted, request, std::move(pinned));
  return found;
}

}  // namespace blockd::server
