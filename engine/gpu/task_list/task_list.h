// The method for few large blocks of float32: the host lists the work once for a plan, thread
// blocks take it in that order. What it fits, costs and needs; README.md beside this file says how
// it works.
#ifndef BLOCKD_ENGINE_GPU_TASK_LIST_TASK_LIST_H_
#define BLOCKD_ENGINE_GPU_TASK_LIST_TASK_LIST_H_

#include <cstdint>

#include "blockd/engine/block_tridiagonal.h"
#include "blockd/engine/elimination_plan.h"
#include "engine/gpu/device_limits.h"

namespace blockd::gpu::task_list {

// Factorizations: systems with so few tiles that they are soon listed.
bool FitsFactor(const Shape& shape, const DeviceLimits& limits);
// Solves: systems with so few blocks that 16 columns of all vectors have half of the room where
// solves count.
bool FitsSolve(const Shape& shape);

// Tiles of a system, counted as rows of tiles of its blocks by themselves.
int64_t Tiles(const Shape& shape);
// Most tiles of all systems of a launch; more systems are factored one group after another, in the
// same scratch.
inline constexpr int64_t kTilesALaunch = 4096;

// Bytes of scratch for all segments of a system.
int64_t ScratchBytes(const EliminationPlan& plan);

void SetFactorCosts(const Shape& shape, const DeviceLimits& limits, CostModel& costs);
void SetSolveCosts(const DeviceLimits& limits, CostModel& costs);

}  // namespace blockd::gpu::task_list

#endif  // BLOCKD_ENGINE_GPU_TASK_LIST_TASK_LIST_H_
