// Sequences of launches that are recorded once, as graphs, and replayed with one call: what a
// launch costs the host is then paid once.
#ifndef BLOCKD_ENGINE_GPU_RUNTIME_LAUNCH_GRAPHS_H_
#define BLOCKD_ENGINE_GPU_RUNTIME_LAUNCH_GRAPHS_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "engine/gpu/launch.h"

namespace blockd::gpu {

// From one thread at a time, with the device chosen.
class LaunchGraphs {
 public:
  // Keeps so many graphs, those that were last used.
  static constexpr size_t kMostGraphs = 64;

  LaunchGraphs() = default;
  ~LaunchGraphs();
  LaunchGraphs(const LaunchGraphs&) = delete;

  // Puts on `stream` what `launch` puts there and on streams that it joins to it; `key` has all
  // that this depends on. `launch` is called only if the key is new.
  absl::Status Run(std::span<const std::byte> key, Stream stream,
                   absl::FunctionRef<LaunchResult()> launch);

 private:
  struct Recorded {
    std::vector<std::byte> key;
    GraphExec graph = nullptr;
    uint64_t last_use = 0;
  };

  absl::Status MakeRoom(Stream stream);

  std::vector<Recorded> graphs_;
  uint64_t uses_ = 0;
};

}  // namespace blockd::gpu

#endif  // BLOCKD_ENGINE_GPU_RUNTIME_LAUNCH_GRAPHS_H_
