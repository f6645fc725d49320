// Starts the kernels of this folder. Each function returns the first error of its launches and the
// kernel's name. None waits, allocates or copies.
#ifndef BLOCKD_ENGINE_GPU_INVERSE_LAUNCH_H_
#define BLOCKD_ENGINE_GPU_INVERSE_LAUNCH_H_

#include "engine/gpu/arch/launch_result.h"
#include "engine/gpu/device_limits.h"
#include "engine/gpu/inverse/inverse_args.h"
#include "engine/gpu/inverse/segments_args.h"

namespace blockd::gpu::inverse {

// Set what the kernels need of the device; once, before all else.
LaunchResult Prepare(const DeviceLimits& limits);
LaunchResult PrepareSegments(const DeviceLimits& limits);

// Small blocks: all segments of some levels.
template <typename T>
LaunchResult InvertSegments(const InvertSegmentsArgs& args, Stream stream);

// Other blocks:

// Before the steps of some segments: their right separators' blocks come down to this level's
// chain, and the walks get Z(r,l) both ways.
template <typename T>
LaunchResult Begin(const InverseArgs& args, Stream stream);
// V, G and H of `steps` steps from `step` on; step 0 is each segment's last interior. tile: rows,
// 64 or 128.
template <typename T>
LaunchResult MakeGains(const InverseArgs& args, int tile, int64_t step, int64_t steps,
                       Stream stream);
// These steps, once their gains are there.
template <typename T>
LaunchResult Walk(const InverseArgs& args, int tile, int64_t step, int64_t steps, Stream stream);

}  // namespace blockd::gpu::inverse

#endif  // BLOCKD_ENGINE_GPU_INVERSE_LAUNCH_H_
