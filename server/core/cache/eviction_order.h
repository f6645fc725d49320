// The order in which entries that nobody uses, pins or leases would be evicted. Private to the
// cache, under its lock.
//
// Each caller's idle entries are ordered by their last use, leased entries by the end of their
// lease: nothing looks at all entries.
#ifndef BLOCKD_SERVER_CORE_CACHE_EVICTION_ORDER_H_
#define BLOCKD_SERVER_CORE_CACHE_EVICTION_ORDER_H_

#include <algorithm>
#include <cstdint>

#include "absl/container/btree_set.h"
#include "absl/time/time.h"
#include "server/core/cache/entry.h"
#include "server/core/cache/entry_table.h"

namespace blockd::server {

class EvictionOrder {
 public:
  // Takes an entry out, before what the order goes by changes, and puts it back where it then
  // belongs.
  void Unfile(CacheEntry& entry);
  void File(CacheEntry& entry);
  // A use of an entry that is not filed.
  void NoteUse(CacheEntry& entry, absl::Time now) {
    entry.used = std::max(entry.used, now);
    entry.use_order = next_use_++;
  }
  // A use of any entry.
  void Touch(CacheEntry& entry, absl::Time now);

  // Entries whose lease is over become idle.
  void EndLeases(absl::Time now);
  // The least recently used idle entry of callers that have more than `fair_bytes` times their
  // weight; null if there is none.
  static CacheEntry* OldestIdle(const EntryTable& table, double fair_bytes);
  int64_t idle_bytes() const { return idle_bytes_; }
  // Uses, of whatever is held, since its own last one; at least 1.
  int64_t AgeOf(const CacheEntry& entry) const { return next_use_ - entry.use_order; }

 private:
  struct LeaseEndsEarlier {
    bool operator()(const CacheEntry* a, const CacheEntry* b) const {
      return a->lease_end() != b->lease_end() ? a->lease_end() < b->lease_end() : a < b;
    }
  };

  void FileIdle(CacheEntry& entry);

  absl::btree_set<CacheEntry*, LeaseEndsEarlier> leased_;
  int64_t idle_bytes_ = 0;  // of all callers' `idle`
  int64_t next_use_ = 0;
};

}  // namespace blockd::server

#endif  // BLOCKD_SERVER_CORE_CACHE_EVICTION_ORDER_H_
