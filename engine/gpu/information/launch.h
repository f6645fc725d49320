// Starts the kernels of this folder. Each function returns the first error of its launches and the
// kernel's name. None waits, allocates or copies.
#ifndef BLOCKD_ENGINE_GPU_INFORMATION_LAUNCH_H_
#define BLOCKD_ENGINE_GPU_INFORMATION_LAUNCH_H_

#include <cstdint>

#include "engine/gpu/arch/launch_result.h"

namespace blockd::gpu::information {

// Sets what the kernels need of the device; once, before all else.
LaunchResult Prepare();

// InformationSteps (information_form.h) as kernels have them.
struct InformationArgs {
  int64_t n, rows;       // of a block, of observations
  int64_t count, moves;  // blocks, and those with a coupling
  const void *transitions, *whiteners, *to_first, *observations;
  int64_t transition_stride, whitener_stride;  // scalars from one to the next; 0: there is one
  void *products, *diagonal, *coupling;
};
// T: the scalar.
template <typename T>
LaunchResult Form(const InformationArgs &args, Stream stream);

}  // namespace blockd::gpu::information

#endif  // BLOCKD_ENGINE_GPU_INFORMATION_LAUNCH_H_
