// Which idle factorizations to evict where the pool has room for something, but in pieces.
#ifndef BLOCKD_SERVER_CORE_CACHE_EVICTION_PLAN_H_
#define BLOCKD_SERVER_CORE_CACHE_EVICTION_PLAN_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "blockd/engine/memory_pool.h"
#include "server/core/common/handle.h"

namespace blockd::server {

// A snapshot of an object that may be evicted.
struct IdleObject {
  Handle handle;
  std::array<FreePiece, 3> pieces;  // that would be free; of 0 bytes: none
  int64_t age = 1;                  // uses, of whatever is held, since its own last one; >= 1
  bool within_part = true;          // its tenant has no more than its part
};

// The objects of `idle` to evict so that pieces of `needed` bytes, taken in this order, fit: none
// if they fit already, nullopt if evicting all would not suffice. Each needed piece in turn takes
// the stretch of free and idle memory that is cheapest to evict.
//
// An object costs its bytes over its age: the longer nobody used it, the less likely is the next
// use, and what is lost with it grows with its bytes. What tenants within their part lose counts
// first, so that those with more lose what they can instead.
//
// Takes the time to sort free and idle pieces, and to pass over them once a needed piece.
std::optional<std::vector<IdleObject>> PlanEviction(std::span<const FreePiece> free,
                                                    std::span<const IdleObject> idle,
                                                    std::span<const int64_t> needed);

}  // namespace blockd::server

#endif  // BLOCKD_SERVER_CORE_CACHE_EVICTION_PLAN_H_
