#include "server/core/factorization_cache.h"

#include <algorithm>
#include <utility>

#include "absl/container/flat_hash_set.h"

namespace blockd::server {
namespace {

int64_t BytesOf(const std::shared_ptr<Holding>& holding) {
  return holding ? holding->factorization->bytes() : 0;
}

// What a client should wait for a refactor that overwrites the handle it asks for.
constexpr absl::Duration kOverwriteRetry = absl::Milliseconds(20);

}  // namespace

FactorizationCache::FactorizationCache(const Options& options, const ServerIdentity& server,
                                       Clock* clock, Metrics* metrics)
    : options_(options), server_(server), clock_(clock), metrics_(metrics) {}

FactorizationCache::~FactorizationCache() = default;

std::vector<Handle> FactorizationCache::Insert(const std::string& caller,
                                               std::vector<Holding> holdings,
                                               const EntryOptions& options) {
  const absl::Time now = clock_->Now();
  std::vector<Handle> handles;
  std::vector<EntryPtr> entries;
  absl::MutexLock lock(&mutex_);
  Caller& owner = callers_[caller];
  for (Holding& holding : holdings) {
    auto entry = std::make_shared<Entry>();
    entry->handle = Handle::Random(server_.epoch);
    entry->caller = caller;
    entry->shape = holding.factorization->shape();
    entry->pinned = options.pin;
    entry->lease = options.lease;
    entry->made = entry->used = now;
    entry->holding = std::make_shared<Holding>(std::move(holding));
    held_bytes_ += BytesOf(entry->holding);
    pinned_ += options.pin;
    entry->lru = lru_.insert(lru_.end(), entry);
    handles.push_back(entry->handle);
    owner.entries.emplace(entry->handle, entry);
    entries_.emplace(entry->handle, entry);
    entries.push_back(std::move(entry));
  }
  if (!options.idempotency_key.empty()) RememberKey(owner, options, entries);
  return handles;
}

NotFoundReason FactorizationCache::WhyNot(const std::string& caller, const Handle& handle) const {
  if (const Epoch made = handle.epoch(); made != server_.epoch) {
    return made.SameServer(server_.epoch) ? NotFoundReason::kRestarted
                                          : NotFoundReason::kOtherServer;
  }
  const auto it = tombstones_.find(handle);
  if (it == tombstones_.end() || it->second.caller != caller) return NotFoundReason::kNeverExisted;
  return it->second.reason;
}

absl::StatusOr<FactorizationCache::EntryPtr> FactorizationCache::Find(const std::string& caller,
                                                                      const Handle& handle) const {
  const auto it = entries_.find(handle);
  // A foreign handle is not told from one that never existed: its existence is not the caller's to
  // know.
  if (it == entries_.end() || it->second->caller != caller) {
    return HandleNotFoundError({handle, WhyNot(caller, handle), server_});
  }
  return it->second;
}

absl::StatusOr<FactorizationCache::Pin> FactorizationCache::Peek(const std::string& caller,
                                                                 const Handle& handle) {
  absl::MutexLock lock(&mutex_);
  absl::StatusOr<EntryPtr> entry = Find(caller, handle);
  if (!entry.ok()) return entry.status();
  if ((*entry)->holding == nullptr) {
    return RetryAfterError("the factorization is being overwritten", kOverwriteRetry);
  }
  Pin pin;
  pin.entry_ = *std::move(entry);
  pin.holding_ = pin.entry_->holding;
  return pin;
}

absl::StatusOr<FactorizationCache::Pin> FactorizationCache::Lookup(const std::string& caller,
                                                                   const Handle& handle) {
  const absl::Time now = clock_->Now();
  absl::MutexLock lock(&mutex_);
  absl::StatusOr<EntryPtr> entry = Find(caller, handle);
  if (!entry.ok()) {
    metrics_->RecordMiss(static_cast<int>(WhyNot(caller, handle)));
    return entry.status();
  }
  if ((*entry)->holding == nullptr) {
    return RetryAfterError("the factorization is being overwritten", kOverwriteRetry);
  }
  metrics_->RecordHit();
  Touch(**entry, now);
  Pin pin;
  pin.entry_ = *std::move(entry);
  pin.holding_ = pin.entry_->holding;
  return pin;
}

void FactorizationCache::Touch(Entry& entry, absl::Time now) {
  entry.used = std::max(entry.used, now);
  lru_.splice(lru_.end(), lru_, entry.lru);
}

void FactorizationCache::RecordSolved(const Pin& pin, int64_t num_rhs) {
  const absl::Time now = clock_->Now();
  absl::MutexLock lock(&mutex_);
  ++pin.entry_->times_solved;
  pin.entry_->rhs_solved += num_rhs;
  if (pin.entry_->held) Touch(*pin.entry_, now);
}

void FactorizationCache::PinForGood(Entry& entry) {
  if (!entry.pinned) ++pinned_;
  entry.pinned = true;
}

std::shared_ptr<Holding> FactorizationCache::End(EntryPtr entry, NotFoundReason why,
                                                 EvictionReason reason) {
  const auto owner = callers_.find(entry->caller);
  ForgetKey(owner->second, std::string(entry->key));
  owner->second.entries.erase(entry->handle);
  if (owner->second.entries.empty()) callers_.erase(owner);
  entries_.erase(entry->handle);
  lru_.erase(entry->lru);
  entry->held = false;
  held_bytes_ -= BytesOf(entry->holding);
  pinned_ -= entry->pinned;
  metrics_->RecordEviction(reason);

  tombstones_[entry->handle] = {entry->caller, why};
  tombstone_order_.push_back(entry->handle);
  while (static_cast<int64_t>(tombstone_order_.size()) > options_.tombstones) {
    tombstones_.erase(tombstone_order_.front());
    tombstone_order_.pop_front();
  }
  return std::exchange(entry->holding, nullptr);
}

absl::StatusOr<int64_t> FactorizationCache::Release(const std::string& caller,
                                                    std::span<const Handle> handles) {
  std::vector<std::shared_ptr<Holding>> dead;  // destroyed after the lock is gone
  absl::Status missing;
  int64_t bytes = 0;
  absl::flat_hash_set<Handle> named;
  absl::MutexLock lock(&mutex_);
  for (const Handle& handle : handles) {
    if (!named.insert(handle).second) continue;
    absl::StatusOr<EntryPtr> entry = Find(caller, handle);
    if (!entry.ok()) {
      missing.Update(entry.status());
      continue;
    }
    bytes += BytesOf((*entry)->holding);
    dead.push_back(End(*std::move(entry), NotFoundReason::kReleased, EvictionReason::kReleased));
  }
  if (!missing.ok()) return missing;
  return bytes;
}

absl::Status FactorizationCache::Replace(const std::string& caller, const Handle& handle,
                                         Holding holding, const EntryOptions& options) {
  const absl::Time now = clock_->Now();
  auto fresh = std::make_shared<Holding>(std::move(holding));
  std::shared_ptr<Holding> dead;  // destroyed after the lock is gone
  absl::MutexLock lock(&mutex_);
  absl::StatusOr<EntryPtr> found = Find(caller, handle);
  if (!found.ok()) {
    dead = std::move(fresh);
    return found.status();
  }
  Entry& entry = **found;
  held_bytes_ += BytesOf(fresh) - BytesOf(entry.holding);
  dead = std::exchange(entry.holding, std::move(fresh));
  ForgetKey(callers_.at(caller), std::string(entry.key));
  if (options.lease > absl::ZeroDuration()) entry.lease = options.lease;
  if (options.pin) PinForGood(entry);
  entry.made = now;
  ++entry.times_refactored;
  Touch(entry, now);
  return absl::OkStatus();
}

std::optional<Holding> FactorizationCache::BeginOverwrite(Pin& pin) {
  absl::MutexLock lock(&mutex_);
  Entry& entry = *pin.entry_;
  // Two references: the entry's and this pin's. Others come only through this lock.
  if (!entry.held || entry.holding != pin.holding_ || pin.holding_.use_count() != 2) {
    return std::nullopt;
  }
  ForgetKey(callers_.at(entry.caller), std::string(entry.key));
  held_bytes_ -= BytesOf(entry.holding);
  Holding taken{std::move(pin.holding_->reservation), pin.holding_->factorization};
  entry.holding.reset();
  pin.holding_.reset();  // the last one: what other threads did with it happened before
  return taken;
}

void FactorizationCache::FailOverwrite(const Handle& handle) {
  absl::MutexLock lock(&mutex_);
  const auto it = entries_.find(handle);
  if (it == entries_.end() || it->second->holding != nullptr) return;
  End(it->second, NotFoundReason::kFailedRefactor, EvictionReason::kFailedRefactor);
}

bool FactorizationCache::Idle(const Entry& entry, absl::Time now) const {
  return !entry.pinned && entry.holding != nullptr && entry.holding.use_count() == 1 &&
         entry.used + entry.lease <= now;
}

Evicted FactorizationCache::EndIdle(EntryPtr entry, EvictionReason reason) {
  const NotFoundReason why =
      reason == EvictionReason::kIdle ? NotFoundReason::kExpired : NotFoundReason::kEvicted;
  std::shared_ptr<Holding> holding = End(std::move(entry), why, reason);
  Reservation reservation = std::move(holding->reservation);
  return {std::move(reservation), std::move(holding)};
}

std::vector<Evicted> FactorizationCache::Evict(int64_t bytes) {
  const absl::Time now = clock_->Now();
  std::vector<Evicted> evicted;
  absl::MutexLock lock(&mutex_);
  std::vector<EntryPtr> chosen;
  int64_t sum = 0;
  for (const EntryPtr& entry : lru_) {
    if (sum >= bytes) break;
    if (!Idle(*entry, now)) continue;
    sum += entry->holding->reservation.bytes();
    chosen.push_back(entry);
  }
  if (sum < bytes) return {};
  for (EntryPtr& entry : chosen) {
    evicted.push_back(EndIdle(std::move(entry), EvictionReason::kMemory));
  }
  return evicted;
}

std::vector<Evicted> FactorizationCache::EvictOldest() {
  const absl::Time now = clock_->Now();
  std::vector<Evicted> evicted;
  absl::MutexLock lock(&mutex_);
  for (const EntryPtr& entry : lru_) {
    if (!Idle(*entry, now)) continue;
    evicted.push_back(EndIdle(entry, EvictionReason::kFragmentation));
    break;
  }
  return evicted;
}

int64_t FactorizationCache::EvictableBytes() const {
  const absl::Time now = clock_->Now();
  absl::MutexLock lock(&mutex_);
  int64_t sum = 0;
  for (const EntryPtr& entry : lru_) {
    if (Idle(*entry, now)) sum += entry->holding->reservation.bytes();
  }
  return sum;
}

void FactorizationCache::Expire() {
  if (options_.idle_expiry == absl::InfiniteDuration()) return;
  const absl::Time now = clock_->Now();
  std::vector<Evicted> dead;  // destroyed after the lock is gone
  absl::MutexLock lock(&mutex_);
  for (auto it = lru_.begin(); it != lru_.end();) {
    const EntryPtr entry = *it++;
    if (entry->used + options_.idle_expiry > now) break;  // the rest was used later
    if (Idle(*entry, now)) dead.push_back(EndIdle(entry, EvictionReason::kIdle));
  }
}

FactorizationStats FactorizationCache::StatsOf(const Entry& entry, absl::Time now) const {
  FactorizationStats stats;
  stats.handle = entry.handle;
  stats.shape = entry.shape;
  stats.held_bytes = BytesOf(entry.holding);
  stats.matrix_kept =
      entry.holding != nullptr && static_cast<bool>(entry.holding->factorization->matrix());
  if (entry.holding != nullptr) {
    const Factorization& factorization = *entry.holding->factorization;
    stats.conditioning = factorization.conditioning();
    stats.backward_error_bound =
        BackwardErrorBound(entry.shape, factorization.conditioning().growth);
  }
  stats.pinned = entry.pinned;
  stats.age = now - entry.made;
  stats.idle = now - entry.used;
  stats.lease_left = std::max(entry.used + entry.lease - now, absl::ZeroDuration());
  stats.times_solved = entry.times_solved;
  stats.rhs_solved = entry.rhs_solved;
  stats.times_refactored = entry.times_refactored;
  stats.idempotency_key = entry.key;
  return stats;
}

absl::StatusOr<FactorizationStats> FactorizationCache::Get(const std::string& caller,
                                                           const Handle& handle) const {
  const absl::Time now = clock_->Now();
  absl::MutexLock lock(&mutex_);
  absl::StatusOr<EntryPtr> entry = Find(caller, handle);
  if (!entry.ok()) return entry.status();
  return StatsOf(**entry, now);
}

std::vector<FactorizationStats> FactorizationCache::List(const std::string& caller,
                                                         std::optional<Handle> after,
                                                         int64_t limit) const {
  const absl::Time now = clock_->Now();
  std::vector<FactorizationStats> list;
  absl::MutexLock lock(&mutex_);
  const auto owner = callers_.find(caller);
  if (owner == callers_.end()) return list;
  const auto& entries = owner->second.entries;
  auto it = after ? entries.upper_bound(*after) : entries.begin();
  for (; it != entries.end() && static_cast<int64_t>(list.size()) < limit; ++it) {
    list.push_back(StatsOf(*it->second, now));
  }
  return list;
}

FactorizationCache::Totals FactorizationCache::totals() const {
  absl::MutexLock lock(&mutex_);
  return {static_cast<int64_t>(entries_.size()), held_bytes_, pinned_,
          static_cast<int64_t>(callers_.size())};
}

}  // namespace blockd::server
