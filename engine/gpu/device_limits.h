// The facts of a device on which the choice of a method, its costs and its launches depend.
#ifndef BLOCKD_ENGINE_GPU_DEVICE_LIMITS_H_
#define BLOCKD_ENGINE_GPU_DEVICE_LIMITS_H_

#include <cstdint>
#include <string_view>

namespace blockd::gpu {

// How fast a kind of device is, in multiples of the one H200 on which all costs were measured.
struct Architecture {
  const char* name = "sm_90";
  bool measured = true;     // otherwise from what the vendor publishes
  double double_rate = 1;   // arithmetic in FP64
  double float_rate = 1;    // and in FP32
  double memory_rate = 1;   // bytes a second
  double step_seconds = 1;  // what one step takes that waits for another
};
// By the device's compute capability. Later ones than sm_90 are taken for it.
Architecture CudaArchitecture(int major, int minor);
// By the name of AMD's instruction set, with or without its features ("gfx90a:sramecc+:xnack-").
// Others are taken for gfx90a.
Architecture HipArchitecture(std::string_view instruction_set);

struct DeviceLimits {
  int64_t multiprocessors = 0;
  int64_t shared_bytes = 0;        // of one multiprocessor
  int64_t block_shared_bytes = 0;  // of one thread block, at most
  Architecture architecture;
};

}  // namespace blockd::gpu

#endif  // BLOCKD_ENGINE_GPU_DEVICE_LIMITS_H_
