// Sequences of launches that are recorded once, as graphs, and replayed with one call: what a
// launch costs the host is then paid once.
//
// The driver takes device memory of its own for a graph, outside the pool. Graphs are kept as far
// as they fit what Device leaves free for that: each counts by its launches or, if that is more, by
// what the driver has less after it was made.
#ifndef BLOCKD_ENGINE_GPU_RUNTIME_LAUNCH_GRAPHS_H_
#define BLOCKD_ENGINE_GPU_RUNTIME_LAUNCH_GRAPHS_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/gpu/runtime/device.h"
#include "engine/gpu/runtime/recently_used.h"

namespace blockd::gpu {

// From one thread at a time, with the device chosen.
class LaunchGraphs {
 public:
  // Keeps no more than either of these, those that were last used.
  static constexpr size_t kMostGraphs = 64;
  static constexpr int64_t kMostBytes = Card::kGraphBytes;

  explicit LaunchGraphs(Device& device) : device_(device) {}
  ~LaunchGraphs();  // nothing runs any more
  LaunchGraphs(const LaunchGraphs&) = delete;

  // Puts on the device's stream what `launch` puts there and on streams that it joins to it; `key`
  // has all that this depends on. `launch` is called only if the key is new.
  absl::Status Run(std::span<const std::byte> key, absl::FunctionRef<LaunchResult()> launch);

 private:
  struct Recorded {
    GraphExec graph = nullptr;
    int64_t bytes = 0;  // of device memory, about
  };

  absl::StatusOr<Recorded> Make(absl::FunctionRef<LaunchResult()> launch);
  // Forgets graphs until another one may take so much.
  absl::Status MakeRoom(int64_t bytes);

  Device& device_;
  RecentlyUsed<Recorded> graphs_;
  int64_t bytes_ = 0;  // of all
};

}  // namespace blockd::gpu

#endif  // BLOCKD_ENGINE_GPU_RUNTIME_LAUNCH_GRAPHS_H_
