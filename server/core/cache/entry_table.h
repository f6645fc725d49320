// The entries that are held, by handle and by caller. Private to the cache, under its lock.
#ifndef BLOCKD_SERVER_CORE_CACHE_ENTRY_TABLE_H_
#define BLOCKD_SERVER_CORE_CACHE_ENTRY_TABLE_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/container/node_hash_map.h"
#include "server/core/cache/entry.h"
#include "server/core/common/handle.h"

namespace blockd::server {

class EntryTable {
 public:
  using Callers = absl::node_hash_map<std::string, CacheCaller>;

  EntryTable() = default;
  ~EntryTable();  // and its entries
  EntryTable(const EntryTable&) = delete;
  EntryTable& operator=(const EntryTable&) = delete;

  // Takes entries over: `entry` is the caller's from now on.
  void Insert(const std::string& caller, CacheEntry* entry);
  // Lets go of it, and of its caller with the last one. Whoever erases it deletes it.
  void Erase(CacheEntry* entry);

  CacheEntry* Find(const Handle& handle) const;  // null: not held
  // Null also for another caller's, which is not told from one that never existed: its existence is
  // not the caller's to know.
  CacheEntry* Find(const std::string& caller, const Handle& handle) const;
  // The first after that one, of all.
  CacheEntries::const_iterator After(const std::optional<Handle>& after) const;
  CacheCaller* FindCaller(const std::string& caller);  // null: it has none

  const CacheEntries& entries() const { return entries_; }
  const Callers& callers() const { return callers_; }

 private:
  CacheEntries entries_;
  Callers callers_;
};

}  // namespace blockd::server

#endif  // BLOCKD_SERVER_CORE_CACHE_ENTRY_TABLE_H_
