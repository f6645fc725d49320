// A task of a solve, as the host lists it and thread blocks read it.
#ifndef BLOCKD_ENGINE_GPU_TASK_LIST_SOLVE_TASK_H_
#define BLOCKD_ENGINE_GPU_TASK_LIST_SOLVE_TASK_H_

#include <cstdint>

#include "engine/gpu/arch/host_device.h"

namespace blockd::gpu {

// A task of a solve with few blocks; solve_tasks.h lists them. Vectors are numbered: those that
// tasks leave, and the blocks of x.
struct SolveTask {
  static constexpr int kItemRows = 32;  // that a thread block has of a task at a time
  static constexpr int kMostRows = 256, kMostColumns = 16;  // of a block, and at a time
  static constexpr int kMostParts = 4;                      // that columns are cut into
  static constexpr int32_t kNone = -1;
  BLOCKD_HOST_DEVICE static constexpr int32_t BlockOfX(int64_t block) {
    return -2 - static_cast<int32_t>(block);
  }

  int64_t matrix[2] = {};                                   // where they are in the factor
  int32_t vector[2][2] = {{kNone, kNone}, {kNone, kNone}};  // each multiplies the sum of two
  int32_t start[2] = {kNone, kNone};  // unless inv(L) is it, the product is subtracted from these
  int32_t out = 0;
  int32_t solution = kNone;  // the block of x where it goes besides
  int32_t matrices = 0;
  bool forward = false, triangle = false;
  int8_t part = 0, parts = 1;  // of the columns
};

}  // namespace blockd::gpu

#endif  // BLOCKD_ENGINE_GPU_TASK_LIST_SOLVE_TASK_H_
