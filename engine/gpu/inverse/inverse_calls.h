// Selected inverses: which launches they are cut into, and what they need.
#ifndef BLOCKD_ENGINE_GPU_INVERSE_INVERSE_CALLS_H_
#define BLOCKD_ENGINE_GPU_INVERSE_INVERSE_CALLS_H_

#include <cstdint>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "blockd/engine/backend.h"
#include "engine/gpu/runtime/device.h"

namespace blockd::gpu::inverse {

// As Backend::InverseScratchBytes.
int64_t ScratchBytes(const EliminationPlan& plan, int64_t first_block, int64_t num_blocks);

// From one thread at a time.
class InverseCalls {
 public:
  // The device outlives it.
  explicit InverseCalls(Device& device) : device_(device) {}

  // As Backend::SelectedInverse. tile: rows of a factorization's tile, 64 or 128.
  absl::Status Run(const InverseRequest& request, int tile, absl::FunctionRef<bool()> wanted);

 private:
  template <typename T>
  absl::Status RunLevels(const InverseRequest& request, int tile, absl::FunctionRef<bool()> wanted);

  Device& device_;
};

}  // namespace blockd::gpu::inverse

#endif  // BLOCKD_ENGINE_GPU_INVERSE_INVERSE_CALLS_H_
