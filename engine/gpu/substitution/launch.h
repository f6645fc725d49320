// Starts the kernels of this folder. Each function returns the first error of its launches and the
// kernel's name. None waits, allocates or copies.
#ifndef BLOCKD_ENGINE_GPU_SUBSTITUTION_LAUNCH_H_
#define BLOCKD_ENGINE_GPU_SUBSTITUTION_LAUNCH_H_

#include <cstdint>

#include "engine/gpu/arch/launch_result.h"
#include "engine/gpu/plan/factor_args.h"
#include "engine/gpu/plan/solve_args.h"

namespace blockd::gpu::substitution {

// Has the driver load the kernels; once, before all else.
LaunchResult PrepareFactor();
LaunchResult PrepareSolve();

// Eliminates one level.
template <typename T>
LaunchResult Eliminate(const EliminateArgs& args, Stream stream);

// The passes of args that it has, one launch each.
template <typename T>
LaunchResult Substitute(const SolveArgs& args, Stream stream);

// `count` triangles: inv(L) to `out` for each that is -L; the others of `out` stay.
template <typename T>
LaunchResult InvertTriangles(const T* triangles, int64_t count, int64_t n, T* out, Stream stream);

}  // namespace blockd::gpu::substitution

#endif  // BLOCKD_ENGINE_GPU_SUBSTITUTION_LAUNCH_H_
