#include "server/core/cache/entry_table.h"

namespace blockd::server {

EntryTable::~EntryTable() {
  for (CacheEntry* const entry : entries_) delete entry;
}

void EntryTable::Insert(const std::string& caller, CacheEntry* entry) {
  CacheCaller& owner = callers_[caller];
  owner.name = caller;
  if (owner.tenant == nullptr) owner.tenant = entry->object->reservation().tenant();
  owner.charged_bytes += entry->charge();
  owner.entries.insert(entry);
  entry->caller = &owner;
  entries_.insert(entry);
}

void EntryTable::Erase(CacheEntry* entry) {
  CacheCaller& owner = *entry->caller;
  owner.entries.erase(entry);
  owner.charged_bytes -= entry->charge();
  entries_.erase(entry);
  if (owner.entries.empty()) callers_.erase(owner.name);
  entry->caller = nullptr;
}

CacheEntry* EntryTable::Find(const Handle& handle) const {
  const auto it = entries_.find(handle);
  return it == entries_.end() ? nullptr : *it;
}

CacheEntry* EntryTable::Find(const std::string& caller, const Handle& handle) const {
  CacheEntry* const entry = Find(handle);
  return entry == nullptr || entry->caller->name != caller ? nullptr : entry;
}

CacheEntries::const_iterator EntryTable::After(const std::optional<Handle>& after) const {
  return after ? entries_.upper_bound(*after) : entries_.begin();
}

CacheCaller* EntryTable::FindCaller(const std::string& caller) {
  const auto it = callers_.find(caller);
  return it == callers_.end() ? nullptr : &it->second;
}

}  // namespace blockd::server
