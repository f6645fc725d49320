#include "server/core/shard/shards.h"

#include <algorithm>
#include <utility>

#include "server/core/common/errors.h"

namespace blockd::server {
namespace {

using Changed = Cache::Changed;

const Handle& HandleOf(const KeptStats& stats) { return stats.handle; }
const Handle& HandleOf(const Cache::OwnedStats& owned) { return owned.stats.handle; }

// The first `limit` of several lists, each in the order of its handles.
template <typename T>
std::vector<T> Merge(std::vector<std::vector<T>> lists, int64_t limit) {
  if (lists.size() == 1) return std::move(lists[0]);
  std::vector<T> merged;
  for (std::vector<T>& list : lists) {
    const auto middle = static_cast<std::ptrdiff_t>(merged.size());
    std::move(list.begin(), list.end(), std::back_inserter(merged));
    std::inplace_merge(merged.begin(), merged.begin() + middle, merged.end(),
                       [](const T& a, const T& b) { return HandleOf(a) < HandleOf(b); });
  }
  if (std::ssize(merged) > limit) merged.resize(static_cast<size_t>(limit));
  return merged;
}

}  // namespace

Shards::Shards(std::vector<std::unique_ptr<Solver>> solvers, const CoreLimits& limits,
               const ServerIdentity& server, Metrics* metrics, Clock* clock) {
  for (size_t i = 0; i < solvers.size(); ++i) {
    shards_.push_back(std::make_unique<Shard>(
        static_cast<uint8_t>(i), std::move(solvers[i]), limits, server, &budgets_, metrics, clock,
        [this, i](const absl::Status& status) { OnFailureOf(i, status); }));
  }
}

Shard& Shards::front() const {
  for (const auto& shard : shards_) {
    if (shard->in_service()) return *shard;
  }
  return *shards_[0];
}

std::shared_ptr<MemoryPool> Shards::HostMemory() const {
  for (const auto& shard : shards_) {
    auto pool = shard->solver().backend().host_memory();
    if (pool != nullptr) return pool;
  }
  return nullptr;
}

absl::StatusOr<std::vector<Shard*>> Shards::Order(Ask ask) {
  std::vector<Offer> offers(shards_.size());
  absl::Status refusal;
  for (size_t i = 0; i < shards_.size(); ++i) {
    Shard& shard = *shards_[i];
    Offer& offer = offers[i];
    offer.in_service = shard.in_service();
    if (!offer.in_service) continue;
    if (const absl::Status status = ask(shard, offer); !status.ok()) {
      refusal.Update(status);
      offer.in_service = false;
      continue;
    }
    if (shards_.size() == 1) return std::vector<Shard*>{&shard};
    offer.free_bytes = shard.device().free();
    offer.evictable_bytes = shard.cache().EvictableBytes();
    offer.backlog_seconds = absl::ToDoubleSeconds(shard.Backlog());
  }
  std::vector<Shard*> order;
  for (const size_t i : PlacementOrder(offers, turn_.fetch_add(1, std::memory_order_relaxed))) {
    order.push_back(shards_[i].get());
  }
  if (order.empty()) return refusal;
  return order;
}

absl::Status FirstWithRoom(std::span<Shard* const> order,
                           absl::FunctionRef<absl::Status(Shard& shard)> take) {
  absl::Status first;
  for (Shard* const shard : order) {
    absl::Status status = take(*shard);
    if (!InsufficientMemoryOf(status)) return status;
    first.Update(status);
  }
  return first;
}

// ------------------------------------------------------------------------------------ what is held

std::vector<std::vector<Handle>> Shards::ByShard(std::span<const Handle> handles) const {
  std::vector<std::vector<Handle>> by_shard(shards_.size());
  for (const Handle& handle : handles) by_shard[IndexOf(handle)].push_back(handle);
  return by_shard;
}

absl::StatusOr<int64_t> Shards::Release(const std::string& caller,
                                        std::span<const Handle> handles) {
  absl::Status missing;
  int64_t bytes = 0;
  const std::vector<std::vector<Handle>> by_shard = ByShard(handles);
  for (size_t i = 0; i < shards_.size(); ++i) {
    if (by_shard[i].empty()) continue;
    const absl::StatusOr<int64_t> released = shards_[i]->cache().Release(caller, by_shard[i]);
    missing.Update(released.status());
    if (released.ok()) bytes += *released;
  }
  if (!missing.ok()) return missing;
  return bytes;
}

// At most one device has a key: the owner looks for it on all devices before it makes another.
absl::StatusOr<std::optional<Cache::Found>> Shards::FindKey(const std::string& caller,
                                                            const std::string& key,
                                                            const Cache::KeyRequest& request) {
  for (const auto& shard : shards_) {
    auto found = shard->cache().FindKey(caller, key, request);
    if (!found.ok() || found->has_value()) return found;
  }
  return std::nullopt;
}

std::vector<KeptStats> Shards::List(const std::string& caller, std::optional<Handle> after,
                                    int64_t limit) const {
  std::vector<std::vector<KeptStats>> lists;
  for (const auto& shard : shards_) lists.push_back(shard->cache().List(caller, after, limit));
  return Merge(std::move(lists), limit);
}

std::vector<Cache::OwnedStats> Shards::ListAll(std::optional<Handle> after, int64_t limit) const {
  std::vector<std::vector<Cache::OwnedStats>> lists;
  for (const auto& shard : shards_) lists.push_back(shard->cache().ListAll(after, limit));
  return Merge(std::move(lists), limit);
}

template <auto change>
Changed Shards::Change(std::span<const Handle> handles, std::vector<Handle>* missing) {
  Changed all;
  const std::vector<std::vector<Handle>> by_shard = ByShard(handles);
  for (size_t i = 0; i < shards_.size(); ++i) {
    if (by_shard[i].empty()) continue;
    const Changed changed = (shards_[i]->cache().*change)(by_shard[i], missing);
    all.handles += changed.handles;
    all.bytes += changed.bytes;
    all.callers.insert(changed.callers.begin(), changed.callers.end());
  }
  return all;
}

Changed Shards::EvictHandles(std::span<const Handle> handles, std::vector<Handle>* missing) {
  return Change<&Cache::EvictHandles>(handles, missing);
}

Changed Shards::UnpinHandles(std::span<const Handle> handles, std::vector<Handle>* missing) {
  return Change<&Cache::UnpinHandles>(handles, missing);
}

// ------------------------------------------------------------------------------------ all of them

void Shards::Cancel(const RequestContext* context) {
  for (const auto& shard : shards_) shard->Cancel(context);
}

void Shards::WakeOverdue() {
  for (const auto& shard : shards_) shard->WakeOverdue();
}

void Shards::Flush() {
  for (const auto& shard : shards_) shard->Flush();
}

absl::Duration Shards::ShortestBacklog() const {
  absl::Duration shortest = absl::InfiniteDuration();
  for (const auto& shard : shards_) {
    if (shard->in_service()) shortest = std::min(shortest, shard->LongestBacklog());
  }
  return shortest;
}

void Shards::Sample(GaugeSample& sample) const {
  for (const auto& shard : shards_) shard->Sample(sample);
  sample.healthy = healthy();
}

bool Shards::healthy() const {
  return std::any_of(shards_.begin(), shards_.end(),
                     [](const auto& shard) { return shard->failure().ok(); });
}

void Shards::OnFailureOf(size_t index, const absl::Status& status) {
  absl::MutexLock lock(&health_mutex_);
  if (healthy()) shards_[index]->TakeOutOfService();
  absl::MutexLock callback_lock(&callback_mutex_);
  failures_.push_back({index, status});
  if (on_failure_) on_failure_(failures_.back());
}

void Shards::OnFailure(std::function<void(const DeviceFailure&)> callback) {
  absl::MutexLock lock(&callback_mutex_);
  on_failure_ = std::move(callback);
  for (const DeviceFailure& failure : failures_) on_failure_(failure);
}

}  // namespace blockd::server
