// Device memory that launches count in. There are two pieces, which take turns: a launch finds its
// own at zero, and clears what the launch before it used. So nothing is cleared between launches.
#ifndef BLOCKD_ENGINE_GPU_RUNTIME_COUNTERS_H_
#define BLOCKD_ENGINE_GPU_RUNTIME_COUNTERS_H_

#include <cstddef>
#include <cstdint>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "engine/gpu/arch/launch_result.h"
#include "engine/gpu/runtime/device.h"
#include "engine/gpu/runtime/workspace.h"

namespace blockd::gpu {

// From one thread at a time.
class Counters {
 public:
  // Most bytes of counters that one launch may use.
  static constexpr int64_t kMostBytes = workspace::kCountersBytes - workspace::kTicketBytes;

  explicit Counters(Device& device) : device_(device) {}
  Counters(const Counters&) = delete;

  // A ticket and counters that are zero, and what the launch before had.
  struct Piece {
    unsigned long long* ticket;
    unsigned* counters;
    unsigned* stale;
    unsigned stale_words;
  };
  // `launch` uses `bytes` of counters, at most kMostBytes.
  absl::Status Launch(int64_t bytes, absl::FunctionRef<LaunchResult(const Piece& piece)> launch);

 private:
  std::byte* Memory(int64_t turn) const;

  Device& device_;
  int64_t turn_ = 0;         // which piece is zero
  int64_t stale_bytes_ = 0;  // of the other one, that are not
};

}  // namespace blockd::gpu

#endif  // BLOCKD_ENGINE_GPU_RUNTIME_COUNTERS_H_
