// On which device new work goes: by the memory that it finds there, and by what waits before it.
//
// Pure functions.
#ifndef BLOCKD_SERVER_CORE_SHARD_PLACEMENT_H_
#define BLOCKD_SERVER_CORE_SHARD_PLACEMENT_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace blockd::server {

// The resources that a device has for some work, and those that the work needs there: devices may
// differ in their plans.
struct Offer {
  bool in_service = true;
  int64_t asked_bytes = 0;
  int64_t free_bytes = 0, evictable_bytes = 0;
  double backlog_seconds = 0;  // until what waits and runs there is done, as predicted
  double work_seconds = 0;     // of the work itself

  bool HasRoom() const { return asked_bytes <= free_bytes + evictable_bytes; }
  bool Evicts() const { return asked_bytes > free_bytes; }
  double end_seconds() const { return backlog_seconds + work_seconds; }
};

// The offers in service, the best one first. What has room comes before what has none. Then comes
// what ends the work earliest; of those that end it at nearly the same time, which is half of what
// the work itself takes, first what evicts nothing, then what has most memory free or evictable,
// then most that is free. Equal offers take turns: `turn` counts the calls.
std::vector<size_t> PlacementOrder(std::span<const Offer> offers, uint64_t turn);

}  // namespace blockd::server

#endif  // BLOCKD_SERVER_CORE_SHARD_PLACEMENT_H_
