// The shared memory that a task takes of a multiprocessor.
#ifndef BLOCKD_ENGINE_GPU_TASK_LIST_SIZES_H_
#define BLOCKD_ENGINE_GPU_TASK_LIST_SIZES_H_

#include <cstdint>

#include "engine/gpu/arch/host_device.h"

namespace blockd::gpu::task_list {

// Shared memory of a thread block that has a task of a factorization, and what its kernel declares
// besides, at most.
inline constexpr int64_t kFactorSharedBytes = kIsAmd ? 69632 : 106496, kFactorDeclaredBytes = 1024;

}  // namespace blockd::gpu::task_list

#endif  // BLOCKD_ENGINE_GPU_TASK_LIST_SIZES_H_
