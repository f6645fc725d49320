#include "server/core/cache/factorization_cache.h"

#include <algorithm>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/hash/hash.h"

namespace blockd::server {
namespace {

int64_t BytesOf(const std::shared_ptr<Holding>& holding) {
  return holding ? holding->factorization->bytes() : 0;
}

// A tombstone knows its caller by this: a name may be long.
uint64_t HashOf(const std::string& caller) { return absl::Hash<std::string>()(caller); }

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

FactorizationCache::FactorizationCache(const Options& options, const ServerIdentity& server,
                                       Clock* clock, Metrics* metrics)
    : options_(options), server_(server), clock_(clock), metrics_(metrics) {}

// Nobody who outlives the cache has a pin; the budget's destructor would tell.
FactorizationCache::~FactorizationCache() {
  for (Entry* entry : entries_) delete entry;
}

FactorizationCache::Pin& FactorizationCache::Pin::operator=(Pin&& other) noexcept {
  if (this == &other) return *this;
  Reset();
  cache_ = std::exchange(other.cache_, nullptr);
  entry_ = std::exchange(other.entry_, nullptr);
  holding_ = std::move(other.holding_);
  return *this;
}

void FactorizationCache::Pin::Reset() {
  if (entry_ == nullptr) return;
  holding_.reset();  // first the memory: whoever finds it idle finds nobody else at it
  cache_->EndUse(std::exchange(entry_, nullptr));
}

FactorizationCache::Pin FactorizationCache::MakePin(Entry* entry) {
  if (entry->uses++ == 0) Unfile(*entry);
  Pin pin;
  pin.cache_ = this;
  pin.entry_ = entry;
  pin.holding_ = entry->holding;
  return pin;
}

void FactorizationCache::EndUse(Entry* entry) {
  FairLock lock(&mutex_);
  EndUseLocked(entry);
}

void FactorizationCache::EndUseLocked(Entry* entry) {
  if (--entry->uses > 0) return;
  if (entry->held) {
    File(*entry);
  } else {
    delete entry;  // its holding went when it ended
  }
}

void FactorizationCache::Unfile(Entry& entry) {
  if (entry.idle) {
    entry.caller->idle.erase(&entry);
    idle_bytes_ -= ChargeOf(entry);
  }
  if (entry.leased) leased_.erase(&entry);
  entry.idle = entry.leased = false;
}

void FactorizationCache::File(Entry& entry) {
  if (entry.pinned || entry.uses > 0 || entry.holding == nullptr) return;
  if (entry.lease > absl::ZeroDuration()) {  // over or not: EndLeases knows
    leased_.insert(&entry);
    entry.leased = true;
    return;
  }
  entry.caller->idle.insert(&entry);
  idle_bytes_ += ChargeOf(entry);
  entry.idle = true;
}

void FactorizationCache::EndLeases(absl::Time now) {
  while (!leased_.empty() && (*leased_.begin())->lease_end() <= now) {
    Entry* const entry = *leased_.begin();
    leased_.erase(leased_.begin());
    entry->leased = false;
    entry->caller->idle.insert(entry);
    idle_bytes_ += ChargeOf(*entry);
    entry->idle = true;
  }
}

std::vector<Handle> FactorizationCache::Insert(const std::string& caller,
                                               std::vector<Holding> holdings,
                                               const EntryOptions& options, EntryGrants grants) {
  const absl::Time now = clock_->Now();
  std::vector<Handle> handles;
  std::vector<Entry*> entries;  // nobody else's yet
  for (Holding& holding : holdings) {
    auto* const entry = new Entry;
    entry->handle = Handle::Random(server_.epoch, options_.shard);
    entry->shape = holding.factorization->bordered_shape();
    entry->pinned = options.pin;
    entry->lease = options.lease;
    entry->made = entry->used = now;
    entry->handle_grant = grants.handles.Split(1);
    entry->pinned_grant = grants.pinned.Split(holding.reservation.bytes());
    entry->holding = std::make_shared<Holding>(std::move(holding));
    handles.push_back(entry->handle);
    entries.push_back(entry);
  }
  const std::shared_ptr<KeyRecord> record = RecordOf(options, entries);
  // A few at a time, so that others come in between. One that is filed may be gone by then.
  for (size_t at = 0; at < entries.size(); at += kAtATime) {
    std::vector<std::shared_ptr<Holding>> dead;  // destroyed after the lock is gone
    mutex_.LetOthersIn();
    FairLock lock(&mutex_);
    Caller& owner = InsertAll(caller, Portion<Entry*>(entries, at));
    if (closed_) {
      dead = EndAll(kAtATime);
      continue;
    }
    if (record != nullptr && at + kAtATime >= entries.size()) RememberKey(owner, record);
  }
  return handles;
}

FactorizationCache::Caller& FactorizationCache::InsertAll(const std::string& caller,
                                                          std::span<Entry* const> entries) {
  Caller& owner = callers_[caller];
  owner.name = caller;
  for (Entry* const entry : entries) {
    entry->caller = &owner;
    entry->use_order = next_use_++;
    if (owner.tenant == nullptr) owner.tenant = entry->holding->reservation.tenant();
    owner.charged_bytes += ChargeOf(*entry);
    held_bytes_ += BytesOf(entry->holding);
    pinned_ += entry->pinned;
    owner.entries.insert(entry);
    entries_.insert(entry);
    File(*entry);
  }
  return owner;
}

NotFoundReason FactorizationCache::WhyNot(const std::string& caller, const Handle& handle) const {
  if (const Epoch made = handle.epoch(); made != server_.epoch) {
    return made.SameServer(server_.epoch) ? NotFoundReason::kRestarted
                                          : NotFoundReason::kOtherServer;
  }
  const auto it = tombstones_.find(handle);
  if (it != tombstones_.end() && it->second.caller_hash == HashOf(caller)) {
    return it->second.reason;
  }
  return closed_ && handle.shard() == options_.shard ? NotFoundReason::kDeviceFailed
                                                     : NotFoundReason::kNeverExisted;
}

FactorizationCache::Entry* FactorizationCache::EntryOf(const Handle& handle) const {
  const auto it = entries_.find(handle);
  return it == entries_.end() ? nullptr : *it;
}

FactorizationCache::Entry* FactorizationCache::EntryOf(const std::string& caller,
                                                       const Handle& handle) const {
  Entry* const entry = EntryOf(handle);
  // A foreign handle is not told from one that never existed: its existence is not the caller's to
  // know.
  return entry == nullptr || entry->caller->name != caller ? nullptr : entry;
}

absl::StatusOr<FactorizationCache::Entry*> FactorizationCache::Find(const std::string& caller,
                                                                    const Handle& handle) const {
  Entry* const entry = EntryOf(caller, handle);
  if (entry == nullptr) return HandleNotFoundError({handle, WhyNot(caller, handle), server_});
  return entry;
}

void FactorizationCache::Touch(Entry& entry, absl::Time now) {
  const bool filed = entry.idle || entry.leased;
  if (filed) Unfile(entry);
  NoteUse(entry, now);
  if (filed) File(entry);
}

std::shared_ptr<Holding> FactorizationCache::End(Entry* entry, NotFoundReason why,
                                                 EvictionReason reason) {
  Unfile(*entry);
  Caller& owner = *entry->caller;
  ForgetKey(*entry);
  owner.entries.erase(entry);
  owner.charged_bytes -= ChargeOf(*entry);
  entries_.erase(entry);
  held_bytes_ -= BytesOf(entry->holding);
  pinned_ -= entry->pinned;
  metrics_->RecordEviction(reason);

  if (why != NotFoundReason::kDeviceFailed) {  // else the shard says it
    tombstones_[entry->handle] = {HashOf(owner.name), why};
    tombstone_order_.push_back(entry->handle);
  }
  while (static_cast<int64_t>(tombstone_order_.size()) > options_.tombstones) {
    tombstones_.erase(tombstone_order_.front());
    tombstone_order_.pop_front();
  }
  if (owner.entries.empty()) callers_.erase(owner.name);
  entry->caller = nullptr;
  entry->held = false;
  entry->handle_grant.Reset();
  entry->pinned_grant.Reset();
  std::shared_ptr<Holding> holding = std::exchange(entry->holding, nullptr);
  if (entry->uses == 0) delete entry;
  return holding;
}

absl::StatusOr<int64_t> FactorizationCache::Release(const std::string& caller,
                                                    std::span<const Handle> handles) {
  const std::vector<Handle> named = Distinct(handles);
  absl::Status missing;
  int64_t bytes = 0;
  // A few at a time, so that others come in between.
  for (size_t at = 0; at < named.size(); at += kAtATime) {
    std::vector<std::shared_ptr<Holding>> dead;  // destroyed after the lock is gone
    mutex_.LetOthersIn();
    FairLock lock(&mutex_);
    for (const Handle& handle : Portion<Handle>(named, at)) {
      Entry* const entry = EntryOf(caller, handle);
      if (entry == nullptr) {  // of many it is enough to name one
        if (missing.ok()) missing = Find(caller, handle).status();
        continue;
      }
      bytes += BytesOf(entry->holding);
      dead.push_back(End(entry, NotFoundReason::kReleased, EvictionReason::kReleased));
    }
  }
  if (!missing.ok()) return missing;
  return bytes;
}

std::vector<FactorizationCache::Entry*> FactorizationCache::EntriesOf(
    std::span<const Handle> handles, Changed* changed, std::vector<Handle>* missing) const {
  std::vector<Entry*> entries;
  for (const Handle& handle : handles) {
    if (Entry* const entry = EntryOf(handle); entry != nullptr) {
      entries.push_back(entry);
      changed->callers.insert(entry->caller->name);
    } else {
      missing->push_back(handle);
    }
  }
  return entries;
}

FactorizationCache::Changed FactorizationCache::EvictHandles(std::span<const Handle> handles,
                                                             std::vector<Handle>* missing) {
  const std::vector<Handle> named = Distinct(handles);
  Changed evicted;
  for (size_t at = 0; at < named.size(); at += kAtATime) {
    std::vector<std::shared_ptr<Holding>> dead;  // destroyed after the lock is gone
    mutex_.LetOthersIn();
    FairLock lock(&mutex_);
    for (Entry* const entry : EntriesOf(Portion<Handle>(named, at), &evicted, missing)) {
      ++evicted.handles;
      evicted.bytes += BytesOf(entry->holding);
      dead.push_back(End(entry, NotFoundReason::kEvicted, EvictionReason::kAdmin));
    }
  }
  return evicted;
}

FactorizationCache::Changed FactorizationCache::UnpinHandles(std::span<const Handle> handles,
                                                             std::vector<Handle>* missing) {
  const absl::Time now = clock_->Now();
  const std::vector<Handle> named = Distinct(handles);
  Changed unpinned;
  for (size_t at = 0; at < named.size(); at += kAtATime) {
    mutex_.LetOthersIn();
    FairLock lock(&mutex_);
    for (Entry* const entry : EntriesOf(Portion<Handle>(named, at), &unpinned, missing)) {
      unpinned.handles += entry->pinned || entry->lease_end() > now;
      Unfile(*entry);
      pinned_ -= entry->pinned;
      entry->pinned = false;
      entry->lease = absl::ZeroDuration();
      entry->pinned_grant.Reset();
      File(*entry);
    }
  }
  return unpinned;
}

absl::Status FactorizationCache::Replace(const std::string& caller, const Handle& handle,
                                         Holding holding, const EntryOptions& options,
                                         const TenantPtr& tenant, Reservation* reserved) {
  const absl::Time now = clock_->Now();
  auto fresh = std::make_shared<Holding>(std::move(holding));
  std::shared_ptr<Holding> dead;  // destroyed after the lock is gone
  FairLock lock(&mutex_);
  absl::StatusOr<Entry*> found = Find(caller, handle);
  if (!found.ok()) {
    dead = std::move(fresh);
    return found.status();
  }
  Entry& entry = **found;
  const bool pins =
      options.pin || options.lease > absl::ZeroDuration() || entry.is_pinned_or_leased();
  absl::Status granted =
      GrantPinned(entry, pins ? fresh->reservation.bytes() : 0, tenant, reserved);
  if (!granted.ok()) {
    dead = std::move(fresh);
    if (entry.holding == nullptr) {
      End(&entry, NotFoundReason::kFailedRefactor, EvictionReason::kFailedRefactor);
    }
    return granted;
  }
  Unfile(entry);
  held_bytes_ += BytesOf(fresh) - BytesOf(entry.holding);
  entry.caller->charged_bytes += fresh->reservation.bytes() - ChargeOf(entry);
  dead = std::exchange(entry.holding, std::move(fresh));
  ForgetKey(entry);
  if (options.lease > absl::ZeroDuration()) entry.lease = options.lease;
  if (options.pin) PinForGood(entry);
  entry.made = now;
  ++entry.times_refactored;
  NoteUse(entry, now);
  File(entry);
  return absl::OkStatus();
}

std::optional<Holding> FactorizationCache::BeginOverwrite(Pin& pin) {
  FairLock lock(&mutex_);
  Entry& entry = *pin.entry_;
  // Two references: the entry's and this pin's. Others come only through this lock.
  if (!entry.held || entry.holding != pin.holding_ || entry.uses != 1 ||
      pin.holding_.use_count() != 2) {
    return std::nullopt;
  }
  ForgetKey(entry);
  held_bytes_ -= BytesOf(entry.holding);
  entry.caller->charged_bytes -= ChargeOf(entry);
  Holding taken{std::move(pin.holding_->reservation), pin.holding_->factorization};
  entry.holding.reset();
  pin.holding_.reset();  // the last one: what other threads did with it happened before
  return taken;
}

void FactorizationCache::FailOverwrite(const Handle& handle) {
  FairLock lock(&mutex_);
  Entry* const entry = EntryOf(handle);
  if (entry == nullptr || entry->holding != nullptr) return;
  End(entry, NotFoundReason::kFailedRefactor, EvictionReason::kFailedRefactor);
}

Evicted FactorizationCache::EndIdle(Entry* entry, EvictionReason reason) {
  const NotFoundReason why =
      reason == EvictionReason::kIdle ? NotFoundReason::kExpired : NotFoundReason::kEvicted;
  std::shared_ptr<Holding> holding = End(entry, why, reason);
  Reservation reservation = std::move(holding->reservation);
  return {std::move(reservation), std::move(holding)};
}

bool FactorizationCache::HasMoreThan(double fair_bytes, const Caller& caller) {
  const double weight = caller.tenant != nullptr ? caller.tenant->weight() : 1;
  return static_cast<double>(caller.charged_bytes) > fair_bytes * weight;
}

FactorizationCache::Entry* FactorizationCache::OldestIdle(double fair_bytes) {
  Entry* oldest = nullptr;
  for (const auto& [name, caller] : callers_) {
    if (caller.idle.empty() || !HasMoreThan(fair_bytes, caller)) continue;
    Entry* const first = *caller.idle.begin();
    if (oldest == nullptr || LessRecentlyUsed()(first, oldest)) oldest = first;
  }
  return oldest;
}

double FactorizationCache::HoldersWeight() const {
  FairLock lock(&mutex_);
  double weight = 0;
  for (const auto& [name, caller] : callers_) {
    weight += caller.tenant != nullptr ? caller.tenant->weight() : 1;
  }
  return weight;
}

std::vector<Evicted> FactorizationCache::Evict(int64_t bytes, double fair_bytes) {
  const absl::Time now = clock_->Now();
  std::vector<Evicted> evicted;
  int64_t sum = 0;
  // A few at a time, so that others come in between.
  while (sum < bytes) {
    mutex_.LetOthersIn();
    FairLock lock(&mutex_);
    EndLeases(now);
    if (idle_bytes_ < bytes - sum) break;
    for (size_t i = 0; i < kAtATime && sum < bytes; ++i) {
      Entry* entry = OldestIdle(fair_bytes);
      if (entry == nullptr) entry = OldestIdle(-1);
      sum += ChargeOf(*entry);
      evicted.push_back(EndIdle(entry, EvictionReason::kMemory));
    }
  }
  return evicted;
}

std::vector<std::shared_ptr<Holding>> FactorizationCache::EndAll(size_t most) {
  std::vector<std::shared_ptr<Holding>> dead;
  while (dead.size() < most && !entries_.empty()) {
    dead.push_back(
        End(*entries_.begin(), NotFoundReason::kDeviceFailed, EvictionReason::kDeviceFailed));
  }
  return dead;
}

void FactorizationCache::Close() {
  // A few at a time, so that others come in between.
  for (bool more = true; more;) {
    std::vector<std::shared_ptr<Holding>> dead;  // destroyed after the lock is gone
    mutex_.LetOthersIn();
    FairLock lock(&mutex_);
    closed_ = true;
    dead = EndAll(kAtATime);
    more = !entries_.empty();
  }
}

int64_t FactorizationCache::EvictableBytes() {
  const absl::Time now = clock_->Now();
  FairLock lock(&mutex_);
  EndLeases(now);
  return idle_bytes_;
}

void FactorizationCache::Expire() {
  if (options_.idle_expiry == absl::InfiniteDuration()) return;
  const absl::Time now = clock_->Now();
  // A few at a time, so that others come in between.
  for (bool more = true; more;) {
    std::vector<Evicted> dead;  // destroyed after the lock is gone
    mutex_.LetOthersIn();
    FairLock lock(&mutex_);
    EndLeases(now);
    for (more = false; dead.size() < kAtATime; more = dead.size() == kAtATime) {
      Entry* const entry = OldestIdle(-1);
      if (entry == nullptr || entry->used + options_.idle_expiry > now) break;
      dead.push_back(EndIdle(entry, EvictionReason::kIdle));
    }
  }
}

}  // namespace blockd::server
