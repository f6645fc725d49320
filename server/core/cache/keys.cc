#include "server/core/cache/keys.h"

#include <utility>

namespace blockd::server {

std::shared_ptr<KeyRecord> MakeKeyRecord(const std::string& key, std::any answer,
                                         std::span<CacheEntry* const> entries) {
  if (key.empty()) return nullptr;
  auto record = std::make_shared<KeyRecord>();
  record->key = key;
  record->answer = std::move(answer);
  for (CacheEntry* const entry : entries) {
    record->handles.push_back(entry->handle);
    entry->key = record;
  }
  return record;
}

void RememberKey(CacheCaller& owner, const std::shared_ptr<KeyRecord>& record) {
  if (record->forgotten) return;
  std::shared_ptr<KeyRecord>& found = owner.keys[record->key];
  if (found != nullptr) found->forgotten = true;
  found = record;
}

void ForgetKey(CacheEntry& entry) {
  const std::shared_ptr<KeyRecord> record = std::exchange(entry.key, nullptr);
  if (record == nullptr || record->forgotten) return;
  record->forgotten = true;
  auto& keys = entry.caller->keys;
  const auto found = keys.find(record->key);
  if (found != keys.end() && found->second == record) keys.erase(found);
}

}  // namespace blockd::server
