#include "server/core/cache/cache.h"

#include <algorithm>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "server/core/cache/keys.h"

namespace blockd::server {
namespace {

// Each once, in the order in which they come first.
std::vector<Handle> Distinct(std::span<const Handle> handles) {
  absl::flat_hash_set<Handle> seen;
  std::vector<Handle> distinct;
  seen.reserve(handles.size());
  distinct.reserve(handles.size());
  for (const Handle& handle : handles) {
    if (seen.insert(handle).second) distinct.push_back(handle);
  }
  return distinct;
}

}  // namespace

Cache::Cache(const Options& options, const ServerIdentity& server, Clock* clock, Metrics* metrics)
    : options_(options),
      server_(server),
      clock_(clock),
      metrics_(metrics),
      tombstones_(options.tombstones) {}

Cache::Pin& Cache::Pin::operator=(Pin&& other) noexcept {
  if (this == &other) return *this;
  Reset();
  cache_ = std::exchange(other.cache_, nullptr);
  entry_ = std::exchange(other.entry_, nullptr);
  object_ = std::move(other.object_);
  return *this;
}

void Cache::Pin::Reset() {
  if (entry_ == nullptr) return;
  object_.reset();  // first the memory: whoever finds it idle finds nobody else at it
  FairLock lock(&cache_->mutex_);
  cache_->EndUse(std::exchange(entry_, nullptr));
}

Cache::Pin Cache::MakePin(CacheEntry* entry) {
  if (entry->uses++ == 0) order_.Unfile(*entry);
  Pin pin;
  pin.cache_ = this;
  pin.entry_ = entry;
  pin.object_ = entry->object;
  return pin;
}

void Cache::EndUse(CacheEntry* entry) {
  if (--entry->uses > 0) return;
  if (entry->held) {
    order_.File(*entry);
  } else {
    delete entry;  // its object went when it ended
  }
}

std::vector<Handle> Cache::Insert(const std::string& caller, std::vector<KeptObjectPtr> objects,
                                  const EntryOptions& options, EntryGrants grants) {
  const absl::Time now = clock_->Now();
  std::vector<Handle> handles;
  std::vector<CacheEntry*> entries;  // nobody else's yet
  for (KeptObjectPtr& object : objects) {
    auto* const entry = new CacheEntry;
    entry->handle = Handle::Random(server_.epoch, options_.shard);
    entry->pinned = options.pin;
    entry->lease = options.lease;
    entry->made = now;
    entry->handle_grant = grants.handles.Split(1);
    entry->pinned_grant = grants.pinned.Split(object->charge());
    entry->object = std::move(object);
    handles.push_back(entry->handle);
    entries.push_back(entry);
  }
  const std::shared_ptr<KeyRecord> record =
      MakeKeyRecord(options.idempotency_key, options.answer, entries);
  // A few at a time, so that others come in between. One that is filed may be gone by then.
  for (size_t at = 0; at < entries.size(); at += kAtATime) {
    std::vector<KeptObjectPtr> dead;  // destroyed after the lock is gone
    mutex_.LetOthersIn();
    FairLock lock(&mutex_);
    for (CacheEntry* const entry : Portion(std::span<CacheEntry* const>(entries), at)) {
      table_.Insert(caller, entry);
      held_bytes_ += entry->bytes();
      pinned_ += entry->pinned;
      order_.NoteUse(*entry, now);
      order_.File(*entry);
    }
    if (closed_) {
      dead = EndAll(kAtATime);
    } else if (record != nullptr && at + kAtATime >= entries.size()) {
      RememberKey(*table_.FindCaller(caller), record);
    }
  }
  return handles;
}

NotFoundReason Cache::WhyNot(const std::string& caller, const Handle& handle) const {
  if (const Epoch made = handle.epoch(); made != server_.epoch) {
    return made.SameServer(server_.epoch) ? NotFoundReason::kRestarted
                                          : NotFoundReason::kOtherServer;
  }
  if (const auto why = tombstones_.Find(handle, caller)) return *why;
  return closed_ && handle.shard() == options_.shard ? NotFoundReason::kDeviceFailed
                                                     : NotFoundReason::kNeverExisted;
}

absl::StatusOr<CacheEntry*> Cache::Find(const std::string& caller, const Handle& handle) const {
  CacheEntry* const entry = table_.Find(caller, handle);
  if (entry == nullptr) return HandleNotFoundError({handle, WhyNot(caller, handle), server_});
  return entry;
}

KeptObjectPtr Cache::End(CacheEntry* entry, NotFoundReason why, EvictionReason reason) {
  order_.Unfile(*entry);
  ForgetKey(*entry);
  // Else the shard says it.
  if (why != NotFoundReason::kDeviceFailed) {
    tombstones_.Add(entry->handle, entry->caller->name, why);
  }
  table_.Erase(entry);
  held_bytes_ -= entry->bytes();
  pinned_ -= entry->pinned;
  metrics_->RecordEviction(reason);
  entry->held = false;
  entry->handle_grant.Reset();
  entry->pinned_grant.Reset();
  KeptObjectPtr object = std::exchange(entry->object, nullptr);
  if (entry->uses == 0) delete entry;
  return object;
}

absl::StatusOr<int64_t> Cache::Release(const std::string& caller, std::span<const Handle> handles) {
  const std::vector<Handle> named = Distinct(handles);
  absl::Status missing;
  int64_t bytes = 0;
  // A few at a time, so that others come in between.
  for (size_t at = 0; at < named.size(); at += kAtATime) {
    std::vector<KeptObjectPtr> dead;  // destroyed after the lock is gone
    mutex_.LetOthersIn();
    FairLock lock(&mutex_);
    for (const Handle& handle : Portion(std::span(named), at)) {
      CacheEntry* const entry = table_.Find(caller, handle);
      if (entry == nullptr) {  // of many it is enough to name one
        if (missing.ok()) missing = Find(caller, handle).status();
        continue;
      }
      bytes += entry->bytes();
      dead.push_back(End(entry, NotFoundReason::kReleased, EvictionReason::kReleased));
    }
  }
  if (!missing.ok()) return missing;
  return bytes;
}

std::vector<CacheEntry*> Cache::EntriesOf(std::span<const Handle> handles, Changed* changed,
                                          std::vector<Handle>* missing) const {
  std::vector<CacheEntry*> entries;
  for (const Handle& handle : handles) {
    if (CacheEntry* const entry = table_.Find(handle); entry != nullptr) {
      entries.push_back(entry);
      changed->callers.insert(entry->caller->name);
    } else {
      missing->push_back(handle);
    }
  }
  return entries;
}

Cache::Changed Cache::EvictHandles(std::span<const Handle> handles, std::vector<Handle>* missing) {
  const std::vector<Handle> named = Distinct(handles);
  Changed evicted;
  for (size_t at = 0; at < named.size(); at += kAtATime) {
    std::vector<KeptObjectPtr> dead;  // destroyed after the lock is gone
    mutex_.LetOthersIn();
    FairLock lock(&mutex_);
    for (CacheEntry* const entry : EntriesOf(Portion(std::span(named), at), &evicted, missing)) {
      ++evicted.handles;
      evicted.bytes += entry->bytes();
      dead.push_back(End(entry, NotFoundReason::kEvicted, EvictionReason::kAdmin));
    }
  }
  return evicted;
}

Cache::Changed Cache::UnpinHandles(std::span<const Handle> handles, std::vector<Handle>* missing) {
  const absl::Time now = clock_->Now();
  const std::vector<Handle> named = Distinct(handles);
  Changed unpinned;
  for (size_t at = 0; at < named.size(); at += kAtATime) {
    mutex_.LetOthersIn();
    FairLock lock(&mutex_);
    for (CacheEntry* const entry : EntriesOf(Portion(std::span(named), at), &unpinned, missing)) {
      unpinned.handles += entry->pinned || entry->lease_end() > now;
      order_.Unfile(*entry);
      pinned_ -= entry->pinned;
      entry->pinned = false;
      entry->lease = absl::ZeroDuration();
      entry->pinned_grant.Reset();
      order_.File(*entry);
    }
  }
  return unpinned;
}

absl::Status Cache::Replace(const std::string& caller, const Handle& handle, KeptObjectPtr object,
                            const EntryOptions& options, const TenantPtr& tenant,
                            Reservation* reserved) {
  const absl::Time now = clock_->Now();
  KeptObjectPtr dead;  // destroyed after the lock is gone
  FairLock lock(&mutex_);
  absl::StatusOr<CacheEntry*> found = Find(caller, handle);
  if (!found.ok()) {
    dead = std::move(object);
    return found.status();
  }
  CacheEntry& entry = **found;
  const bool pins =
      options.pin || options.lease > absl::ZeroDuration() || entry.is_pinned_or_leased();
  absl::Status granted = GrantPinned(entry, pins ? object->charge() : 0, tenant, reserved);
  if (!granted.ok()) {
    dead = std::move(object);
    if (entry.object == nullptr) {
      End(&entry, NotFoundReason::kFailedRefactor, EvictionReason::kFailedRefactor);
    }
    return granted;
  }
  order_.Unfile(entry);
  held_bytes_ += object->bytes() - entry.bytes();
  entry.caller->charged_bytes += object->charge() - entry.charge();
  dead = std::exchange(entry.object, std::move(object));
  entry.details.reset();
  ForgetKey(entry);
  if (options.lease > absl::ZeroDuration()) entry.lease = options.lease;
  if (options.pin) PinForGood(entry);
  entry.made = now;
  ++entry.times_refactored;
  order_.NoteUse(entry, now);
  order_.File(entry);
  return absl::OkStatus();
}

KeptObjectPtr Cache::BeginOverwrite(Pin& pin) {
  FairLock lock(&mutex_);
  CacheEntry& entry = *pin.entry_;
  // Two references: the entry's and this pin's. Others come only through this lock.
  if (!entry.held || entry.object != pin.object_ || entry.uses != 1 ||
      pin.object_.use_count() != 2) {
    return nullptr;
  }
  ForgetKey(entry);
  held_bytes_ -= entry.bytes();
  entry.caller->charged_bytes -= entry.charge();
  entry.details = entry.object->Describe();
  entry.object.reset();
  return std::move(pin.object_);  // the only one: what other threads did with it happened before
}

void Cache::FailOverwrite(const Handle& handle) {
  FairLock lock(&mutex_);
  CacheEntry* const entry = table_.Find(handle);
  if (entry == nullptr || entry->object != nullptr) return;
  End(entry, NotFoundReason::kFailedRefactor, EvictionReason::kFailedRefactor);
}

Evicted Cache::EndIdle(CacheEntry* entry, EvictionReason reason) {
  const NotFoundReason why =
      reason == EvictionReason::kIdle ? NotFoundReason::kExpired : NotFoundReason::kEvicted;
  KeptObjectPtr object = End(entry, why, reason);
  Reservation reservation = std::move(object->reservation());
  return {std::move(reservation), std::move(object)};
}

double Cache::HoldersWeight() const {
  FairLock lock(&mutex_);
  double weight = 0;
  for (const auto& [name, caller] : table_.callers()) weight += caller.weight();
  return weight;
}

std::vector<Evicted> Cache::Evict(int64_t bytes, double fair_bytes) {
  const absl::Time now = clock_->Now();
  std::vector<Evicted> evicted;
  int64_t sum = 0;
  // A few at a time, so that others come in between.
  while (sum < bytes) {
    mutex_.LetOthersIn();
    FairLock lock(&mutex_);
    order_.EndLeases(now);
    if (order_.idle_bytes() < bytes - sum) break;
    for (size_t i = 0; i < kAtATime && sum < bytes; ++i) {
      CacheEntry* entry = EvictionOrder::OldestIdle(table_, fair_bytes);
      if (entry == nullptr) entry = EvictionOrder::OldestIdle(table_, -1);
      sum += entry->charge();
      evicted.push_back(EndIdle(entry, EvictionReason::kMemory));
    }
  }
  return evicted;
}

std::vector<KeptObjectPtr> Cache::EndAll(size_t most) {
  std::vector<KeptObjectPtr> dead;
  while (dead.size() < most && !table_.entries().empty()) {
    dead.push_back(End(*table_.entries().begin(), NotFoundReason::kDeviceFailed,
                       EvictionReason::kDeviceFailed));
  }
  return dead;
}

void Cache::Close() {
  // A few at a time, so that others come in between.
  for (bool more = true; more;) {
    std::vector<KeptObjectPtr> dead;  // destroyed after the lock is gone
    mutex_.LetOthersIn();
    FairLock lock(&mutex_);
    closed_ = true;
    dead = EndAll(kAtATime);
    more = !table_.entries().empty();
  }
}

int64_t Cache::EvictableBytes() {
  const absl::Time now = clock_->Now();
  FairLock lock(&mutex_);
  order_.EndLeases(now);
  return order_.idle_bytes();
}

void Cache::Expire() {
  if (options_.idle_expiry == absl::InfiniteDuration()) return;
  const absl::Time now = clock_->Now();
  // A few at a time, so that others come in between.
  for (bool more = true; more;) {
    std::vector<Evicted> dead;  // destroyed after the lock is gone
    mutex_.LetOthersIn();
    FairLock lock(&mutex_);
    order_.EndLeases(now);
    for (more = false; dead.size() < kAtATime; more = dead.size() == kAtATime) {
      CacheEntry* const entry = EvictionOrder::OldestIdle(table_, -1);
      if (entry == nullptr || entry->used + options_.idle_expiry > now) break;
      dead.push_back(EndIdle(entry, EvictionReason::kIdle));
    }
  }
}

}  // namespace blockd::server
