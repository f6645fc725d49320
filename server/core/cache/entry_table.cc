#include "server/core/cache/entry_table.h"

#include <utility>

namespace blockd::server {

EntryTable::~EntryTable() {
  for (Entry* const entry : entries_) delete entry;
}

void EntryTable::Insert(const std::string& caller, Entry* entry) {
  Caller& owner = callers_[caller];
  owner.name = caller;
  if (owner.tenant == nullptr) owner.tenant = entry->object->reservation().tenant();
  owner.charged_bytes += entry->charge();
  owner.entries.insert(entry);
  entry->caller = &owner;
  entries_.insert(entry);
}

void EntryTable::Erase(Entry* entry) {
  Caller& owner = *entry->caller;
  owner.entries.erase(entry);
  owner.charged_bytes -= entry->charge();
  entries_.erase(entry);
  if (owner.entries.empty()) callers_.erase(owner.name);
  entry->caller = nullptr;
}

Entry* EntryTable::Find(const Handle& handle) const {
  const auto it = entries_.find(handle);
  return it == entries_.end() ? nullptr : *it;
}

Entry* EntryTable::Find(const std::string& caller, const Handle& handle) const {
  Entry* const entry = Find(handle);
  return entry == nullptr || entry->caller->name != caller ? nullptr : entry;
}

Entries::const_iterator EntryTable::After(const std::optional<Handle>& after) const {
  return after ? entries_.upper_bound(*after) : entries_.begin();
}

const Caller* EntryTable::FindCaller(const std::string& caller) const {
  const auto it = callers_.find(caller);
  return it == callers_.end() ? nullptr : &it->second;
}

Caller* EntryTable::FindCaller(const std::string& caller) {
  return const_cast<Caller*>(std::as_const(*this).FindCaller(caller));
}

}  // namespace blockd::server
