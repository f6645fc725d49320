#ifndef BLOCKD_ENGINE_GPU_LOCKSTEP_RUNNER_H_
#define BLOCKD_ENGINE_GPU_LOCKSTEP_RUNNER_H_

#include <memory>

#include "engine/gpu/runner.h"

namespace blockd::gpu::lockstep {

// Both outlive it. early: as FactorContext::early.
std::unique_ptr<Runner> MakeRunner(Device& device, const DeviceLimits& limits, bool early);

// Goes through the matrix of the one system from end to end, keeping nothing, until a pivot is bad.
LaunchResult FactorInNaturalOrder(Device& device, const DeviceLimits& limits, const Shape& shape,
                                  int64_t next_offset, const FactorEntry* system);

}  // namespace blockd::gpu::lockstep

#endif  // BLOCKD_ENGINE_GPU_LOCKSTEP_RUNNER_H_
