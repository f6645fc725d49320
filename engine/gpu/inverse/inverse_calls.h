// Selected inverses: which launches they are cut into, and what they need.
#ifndef BLOCKD_ENGINE_GPU_INVERSE_INVERSE_CALLS_H_
#define BLOCKD_ENGINE_GPU_INVERSE_INVERSE_CALLS_H_

#include <cstdint>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "blockd/engine/backend.h"
#include "engine/gpu/device_limits.h"
#include "engine/gpu/runtime/device.h"

namespace blockd::gpu::inverse {

// As Backend::InverseScratchBytes.
int64_t ScratchBytes(const EliminationPlan& plan, int64_t first_block, int64_t num_blocks,
                     const DeviceLimits& limits);

// From one thread at a time.
class InverseCalls {
 public:
  // Both outlive it.
  InverseCalls(Device& device, const DeviceLimits& limits) : device_(device), limits_(limits) {}

  // As Backend::SelectedInverse. tile: rows of a factorization's tile, 64 or 128.
  absl::Status Run(const InverseRequest& request, int tile, absl::FunctionRef<bool()> wanted);

 private:
  template <typename T>
  absl::Status RunLevels(const InverseRequest& request, int tile, absl::FunctionRef<bool()> wanted);
  template <typename T>
  absl::Status RunSegments(const InverseRequest& request, absl::FunctionRef<bool()> wanted);

  Device& device_;
  const DeviceLimits& limits_;
};

}  // namespace blockd::gpu::inverse

#endif  // BLOCKD_ENGINE_GPU_INVERSE_INVERSE_CALLS_H_
