// Idempotency keys of what is held. Private to the cache, under its lock.
//
// A key stands for the whole answer of the request that brought it. It lives as long as all objects
// that the request made do, and goes with the first of them that ends or changes.
#ifndef BLOCKD_SERVER_CORE_CACHE_KEYS_H_
#define BLOCKD_SERVER_CORE_CACHE_KEYS_H_

#include <any>
#include <memory>
#include <span>
#include <string>

#include "server/core/cache/entry.h"

namespace blockd::server {

// For entries that nobody else knows yet. Null without a key.
std::shared_ptr<KeyRecord> MakeKeyRecord(const std::string& key, std::any answer,
                                         std::span<CacheEntry* const> entries);
// From now on the key finds the record, and not the one before, unless one of its entries is not
// held any more.
void RememberKey(CacheCaller& owner, const std::shared_ptr<KeyRecord>& record);
void ForgetKey(CacheEntry& entry);

}  // namespace blockd::server

#endif  // BLOCKD_SERVER_CORE_CACHE_KEYS_H_
