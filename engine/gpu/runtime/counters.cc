#include "engine/gpu/runtime/counters.h"

namespace blockd::gpu {

std::byte* Counters::Memory(int64_t turn) const {
  return device_.workspace() + workspace::kCounters + turn * workspace::kCountersBytes;
}

absl::Status Counters::Launch(int64_t bytes,
                              absl::FunctionRef<LaunchResult(const Piece& piece)> launch) {
  std::byte* const mine = Memory(turn_);
  absl::Status status =
      device_.Launched(launch({reinterpret_cast<unsigned long long*>(mine),
                               reinterpret_cast<unsigned*>(mine + workspace::kTicketBytes),
                               reinterpret_cast<unsigned*>(Memory(1 - turn_)),
                               static_cast<unsigned>(stale_bytes_ / int64_t{sizeof(unsigned)})}));
  if (!status.ok()) return status;
  stale_bytes_ = workspace::kTicketBytes + bytes;
  turn_ = 1 - turn_;
  return status;
}

}  // namespace blockd::gpu
