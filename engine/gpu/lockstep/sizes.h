// The shared memory that a tile of large blocks takes, and the device memory of their segments.
#ifndef BLOCKD_ENGINE_GPU_LOCKSTEP_SIZES_H_
#define BLOCKD_ENGINE_GPU_LOCKSTEP_SIZES_H_

#include <cstdint>

#include "engine/gpu/arch/host_device.h"

namespace blockd::gpu::lockstep {

// Shared memory of a thread block that has a tile of 128 rows.
constexpr int64_t WideTileBytes(bool is_float) {
  return !is_float ? 135168 : kIsAmd ? 69632 : 106496;
}

// Scalars that a segment has in scratch while its level is eliminated.
BLOCKD_HOST_DEVICE inline int64_t ScratchScalars(int64_t n) { return 2 * n * n + 129 * n; }

}  // namespace blockd::gpu::lockstep

#endif  // BLOCKD_ENGINE_GPU_LOCKSTEP_SIZES_H_
