#ifndef BLOCKD_ENGINE_GPU_LOCKSTEP_RUNNER_H_
#define BLOCKD_ENGINE_GPU_LOCKSTEP_RUNNER_H_

#include <memory>

#include "engine/gpu/runner.h"

namespace blockd::gpu::lockstep {

// Both outlive it. early: as FactorContext::early.
std::unique_ptr<Runner> MakeRunner(Device& device, const DeviceLimits& limits, bool early);

}  // namespace blockd::gpu::lockstep

#endif  // BLOCKD_ENGINE_GPU_LOCKSTEP_RUNNER_H_
