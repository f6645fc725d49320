// Starts the kernels of this folder. Each function returns the first error of its launches and the
// kernel's name. None waits, allocates or copies.
#ifndef BLOCKD_ENGINE_GPU_SEGMENT_LAUNCH_H_
#define BLOCKD_ENGINE_GPU_SEGMENT_LAUNCH_H_

#include "engine/gpu/arch/launch_result.h"
#include "engine/gpu/device_limits.h"
#include "engine/gpu/plan/solve_args.h"
#include "engine/gpu/segment/segment_args.h"

namespace blockd::gpu::segment {

// Set what the kernels need of the device; once, before all else.
LaunchResult PrepareFactor(const DeviceLimits& limits);
LaunchResult PrepareSolve(const DeviceLimits& limits);

template <typename T>
LaunchResult Eliminate(const EliminateSegmentsArgs& args, Stream stream);
template <typename T>
LaunchResult Substitute(const SolveArgs& args, const DeviceLimits& limits, Stream stream);
// Substitute's way with blocks of at most kTinyRows.
template <typename T>
LaunchResult SubstituteTiny(const SolveArgs& args, const DeviceLimits& limits, Stream stream);

}  // namespace blockd::gpu::segment

#endif  // BLOCKD_ENGINE_GPU_SEGMENT_LAUNCH_H_
