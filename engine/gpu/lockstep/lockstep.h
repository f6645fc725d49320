// The method for large blocks: all segments of a level go forward in step, a thread block a tile.
// It fits every shape. What it costs and needs; README.md beside this file says how it works.
#ifndef BLOCKD_ENGINE_GPU_LOCKSTEP_LOCKSTEP_H_
#define BLOCKD_ENGINE_GPU_LOCKSTEP_LOCKSTEP_H_

#include <cstdint>

#include "blockd/engine/block_tridiagonal.h"
#include "blockd/engine/elimination_plan.h"
#include "engine/gpu/device_limits.h"

namespace blockd::gpu::lockstep {

// Rows of a tile, 64 or 128, for blocks of n.
int TileOf(const Shape& shape, const DeviceLimits& limits);

// Bytes of scratch for all segments of a system.
int64_t ScratchBytes(const EliminationPlan& plan);

// Launches of a factorization, about.
int64_t FactorLaunches(const EliminationPlan& plan);

void SetFactorCosts(const Shape& shape, const DeviceLimits& limits, CostModel& costs);

}  // namespace blockd::gpu::lockstep

#endif  // BLOCKD_ENGINE_GPU_LOCKSTEP_LOCKSTEP_H_
