#ifndef BLOCKD_ENGINE_GPU_TASK_LIST_RUNNER_H_
#define BLOCKD_ENGINE_GPU_TASK_LIST_RUNNER_H_

#include <memory>

#include "engine/gpu/runner.h"

namespace blockd::gpu::task_list {

// All outlive it.
std::unique_ptr<Runner> MakeRunner(Device& device, const DeviceLimits& limits, Counters& counters);

}  // namespace blockd::gpu::task_list

#endif  // BLOCKD_ENGINE_GPU_TASK_LIST_RUNNER_H_
