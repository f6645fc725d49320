// Why handles that are not held any more ended: of so many, the latest.
#ifndef BLOCKD_SERVER_CORE_CACHE_TOMBSTONES_H_
#define BLOCKD_SERVER_CORE_CACHE_TOMBSTONES_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "absl/hash/hash.h"
#include "server/core/common/errors.h"
#include "server/core/common/handle.h"

namespace blockd::server {

// Not thread-safe.
class Tombstones {
 public:
  explicit Tombstones(int64_t most) : most_(most) {}

  void Add(const Handle& handle, const std::string& caller, NotFoundReason why) {
    stones_[handle] = {HashOf(caller), why};
    order_.push_back(handle);
    while (static_cast<int64_t>(order_.size()) > most_) {
      stones_.erase(order_.front());
      order_.pop_front();
    }
  }
  // nullopt: not known, or not this caller's.
  std::optional<NotFoundReason> Find(const Handle& handle, const std::string& caller) const {
    const auto it = stones_.find(handle);
    if (it == stones_.end() || it->second.caller_hash != HashOf(caller)) return std::nullopt;
    return it->second.reason;
  }

 private:
  struct Stone {
    size_t caller_hash;  // a name may be long
    NotFoundReason reason;
  };
  static size_t HashOf(const std::string& caller) { return absl::Hash<std::string>()(caller); }

  const int64_t most_;
  absl::flat_hash_map<Handle, Stone> stones_;
  std::deque<Handle> order_;
};

}  // namespace blockd::server

#endif  // BLOCKD_SERVER_CORE_CACHE_TOMBSTONES_H_
