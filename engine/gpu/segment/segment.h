// The method for small blocks: a thread block has a segment, its blocks in shared memory. What it
// fits and costs; README.md beside this file says how it works.
#ifndef BLOCKD_ENGINE_GPU_SEGMENT_SEGMENT_H_
#define BLOCKD_ENGINE_GPU_SEGMENT_SEGMENT_H_

#include <cstdint>

#include "blockd/engine/block_tridiagonal.h"
#include "blockd/engine/elimination_plan.h"
#include "engine/gpu/device_limits.h"

namespace blockd::gpu::segment {

bool FitsFactor(const Shape& shape, const DeviceLimits& limits);
bool FitsSolve(const Shape& shape);

// True if a thread block that walks through so many blocks takes longer than solves beside it
// should wait. A level of such segments is planned to leave some places for thread blocks free, and
// is launched by itself, because thread blocks of the next levels would wait in these places.
bool WalksLong(const Shape& shape, int64_t blocks, const DeviceLimits& limits);
void SetFactorCosts(const Shape& shape, const DeviceLimits& limits, CostModel& costs);
void SetSolveCosts(const Shape& shape, const DeviceLimits& limits, CostModel& costs);

}  // namespace blockd::gpu::segment

#endif  // BLOCKD_ENGINE_GPU_SEGMENT_SEGMENT_H_
