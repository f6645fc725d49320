// The result of starting a kernel.
#ifndef BLOCKD_ENGINE_GPU_ARCH_LAUNCH_RESULT_H_
#define BLOCKD_ENGINE_GPU_ARCH_LAUNCH_RESULT_H_

#include "engine/gpu/arch/vendor.h"

namespace blockd::gpu {

struct LaunchResult {
  Error error = kSuccess;
  const char* kernel = "";
  bool ok() const { return error == kSuccess; }
};

}  // namespace blockd::gpu

#endif  // BLOCKD_ENGINE_GPU_ARCH_LAUNCH_RESULT_H_
