#ifndef BLOCKD_ENGINE_GPU_SEGMENT_RUNNER_H_
#define BLOCKD_ENGINE_GPU_SEGMENT_RUNNER_H_

#include <memory>

#include "engine/gpu/runner.h"

namespace blockd::gpu::segment {

// Both outlive it.
std::unique_ptr<Runner> MakeRunner(Device& device, const DeviceLimits& limits);

}  // namespace blockd::gpu::segment

#endif  // BLOCKD_ENGINE_GPU_SEGMENT_RUNNER_H_
