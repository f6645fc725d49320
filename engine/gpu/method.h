// The one place that chooses how systems of a shape are factored and solved on a device. A method
// is a folder: segment, lockstep, task_list, substitution. Each says which shapes it fits and what
// it costs; nobody but the functions here asks.
#ifndef BLOCKD_ENGINE_GPU_METHOD_H_
#define BLOCKD_ENGINE_GPU_METHOD_H_

#include <cstdint>

#include "blockd/engine/block_tridiagonal.h"
#include "blockd/engine/elimination_plan.h"
#include "engine/gpu/device_limits.h"

namespace blockd::gpu {

// kSubstitution fits all shapes and is for systems whose growth needs it.
enum class Method : uint8_t { kSegment, kLockstep, kTaskList, kSubstitution };
inline constexpr int kMethods = 4;

// It depends on nothing else, so that a system has the same bits in any batch of one plan.
Method FactorMethod(const Shape& shape, const DeviceLimits& limits);
Method SolveMethod(const Shape& shape, const DeviceLimits& limits);
// Half a solve is no list of tasks.
Method HalfSolveMethod(const Shape& shape);

// The costs of the methods that are chosen for the shape.
CostModel CostsOf(const Shape& shape, const DeviceLimits& limits);

}  // namespace blockd::gpu

#endif  // BLOCKD_ENGINE_GPU_METHOD_H_
