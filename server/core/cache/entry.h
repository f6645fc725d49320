// The cache's records of objects, callers and keys. Private to the cache, under its lock.
#ifndef BLOCKD_SERVER_CORE_CACHE_ENTRY_H_
#define BLOCKD_SERVER_CORE_CACHE_ENTRY_H_

#include <any>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/btree_set.h"
#include "absl/container/flat_hash_map.h"
#include "absl/time/time.h"
#include "server/core/cache/kept_object.h"
#include "server/core/common/handle.h"
#include "server/core/common/tenant.h"
#include "server/core/tenants/budget.h"

namespace blockd::server {

struct CacheCaller;

// Shared by all entries that a request with an idempotency key made. Constant but for `forgotten`.
struct KeyRecord {
  std::string key;
  std::any answer;              // of the request, as its operation knows it
  std::vector<Handle> handles;  // of the entries, in the order of their insertion
  bool forgotten = false;       // for good; else all of its entries are held
};

// It lives until it is neither held nor in use.
struct CacheEntry {
  Handle handle;
  bool pinned = false;
  bool held = true;
  bool idle = false;               // in its caller's `idle`
  bool leased = false;             // among the leased (eviction_order.h)
  int32_t uses = 0;                // pins
  CacheCaller* caller = nullptr;   // while it is held
  std::shared_ptr<KeyRecord> key;  // null or forgotten: none
  KeptObjectPtr object;            // null while it is overwritten
  std::any details;                // of the object that is overwritten
  absl::Duration lease;
  absl::Time made, used;
  int64_t use_order = 0;  // of all entries' uses
  int64_t times_solved = 0, rhs_solved = 0, times_refactored = 0;
  Reservation handle_grant, pinned_grant;

  absl::Time lease_end() const { return used + lease; }
  // A lease that is over begins again with the next use.
  bool is_pinned_or_leased() const { return pinned || lease > absl::ZeroDuration(); }
  int64_t bytes() const { return object ? object->bytes() : 0; }
  int64_t charge() const { return object ? object->charge() : 0; }
};

struct LessRecentlyUsed {
  bool operator()(const CacheEntry* a, const CacheEntry* b) const {
    return a->use_order < b->use_order;
  }
};
struct ByHandle {
  using is_transparent = void;
  static const Handle& Of(const CacheEntry* entry) { return entry->handle; }
  static const Handle& Of(const Handle& handle) { return handle; }
  template <typename A, typename B>
  bool operator()(const A& a, const B& b) const {
    return Of(a) < Of(b);
  }
};
using CacheEntries = absl::btree_set<CacheEntry*, ByHandle>;

struct CacheCaller {
  std::string name;
  const Tenant* tenant = nullptr;  // null: it has no quotas
  CacheEntries entries;
  absl::btree_set<CacheEntry*, LessRecentlyUsed> idle;
  absl::flat_hash_map<std::string, std::shared_ptr<KeyRecord>> keys;
  int64_t charged_bytes = 0;  // of the objects' reservations

  double weight() const { return tenant != nullptr ? tenant->weight() : 1; }
  bool HasMoreThan(double fair_bytes) const {  // times its weight
    return static_cast<double>(charged_bytes) > fair_bytes * weight();
  }
};

}  // namespace blockd::server

#endif  // BLOCKD_SERVER_CORE_CACHE_ENTRY_H_
