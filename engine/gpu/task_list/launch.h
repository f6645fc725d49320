// Starts the kernels of this folder. Each function returns the first error of its launches and the
// kernel's name. None waits, allocates or copies.
#ifndef BLOCKD_ENGINE_GPU_TASK_LIST_LAUNCH_H_
#define BLOCKD_ENGINE_GPU_TASK_LIST_LAUNCH_H_

#include "engine/gpu/arch/launch_result.h"
#include "engine/gpu/device_limits.h"
#include "engine/gpu/plan/solve_args.h"
#include "engine/gpu/task_list/factor_task.h"

namespace blockd::gpu::task_list {

// Set what the kernels need of the device; once, before all else.
LaunchResult PrepareFactor(const DeviceLimits& limits);
LaunchResult PrepareSolve();

LaunchResult Eliminate(const EliminateTasksArgs& args, Stream stream);
LaunchResult Substitute(const SolveArgs& args, const DeviceLimits& limits, Stream stream);

}  // namespace blockd::gpu::task_list

#endif  // BLOCKD_ENGINE_GPU_TASK_LIST_LAUNCH_H_
