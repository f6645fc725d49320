// Where the interiors of a segment have something, as kernels walk through them.
#ifndef BLOCKD_ENGINE_GPU_PLAN_WALK_H_
#define BLOCKD_ENGINE_GPU_PLAN_WALK_H_

#include <cstddef>
#include <cstdint>

#include "engine/gpu/arch/host_device.h"

namespace blockd::gpu {

// Where the k-th interior of a segment has something: at + k * step, in bytes.
struct alignas(16) Walk {
  std::byte* at = nullptr;
  int step = 0;

  template <typename T>
  BLOCKD_HOST_DEVICE T* At(int k) const {
    return reinterpret_cast<T*>(at + static_cast<int64_t>(k) * step);
  }
};

}  // namespace blockd::gpu

#endif  // BLOCKD_ENGINE_GPU_PLAN_WALK_H_
