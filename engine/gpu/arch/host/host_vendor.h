// What vendor.h gives to the files that start kernels, where a kernel is a function of the host: a
// launch runs its thread blocks one after the other, and is done when it returns. So a kernel's
// thread blocks may wait for those with lower numbers or earlier tickets only, as all of ours do.
#ifndef BLOCKD_ENGINE_GPU_ARCH_HOST_HOST_VENDOR_H_
#define BLOCKD_ENGINE_GPU_ARCH_HOST_HOST_VENDOR_H_

#include <cstddef>

#include "engine/gpu/arch/host/host_arch.h"

#define __global__
#define __launch_bounds__(...)
#define __shared__ static
#define __align__(bytes) __attribute__((aligned(bytes)))
#define BLOCKD_GPU(name) blockd::gpu::Host##name
#define BLOCKD_GPU_CODE 1
#define BLOCKD_KERNEL_ARGUMENT
#define BLOCKD_DYNAMIC_SHARED(type, name, alignment) \
  /* NOLINTNEXTLINE(bugprone-macro-parentheses) */   \
  type* const name = reinterpret_cast<type*>(blockd::gpu::HostThreadBlock::Current().shared())

namespace blockd::gpu {

using Error = int;
using Stream = void*;
using Event = void*;
inline constexpr Error kSuccess = 0;
inline constexpr const char* kBackendName = "host";

inline Error HostEventRecord(Event, Stream) { return kSuccess; }
inline Error HostStreamWaitEvent(Stream, Event, unsigned) { return kSuccess; }
inline Error HostGetLastError() { return kSuccess; }

template <typename Kernel>
Error AllowShared(Kernel, size_t) {
  return kSuccess;
}
template <typename Kernel>
Error QueryEarly(Kernel, bool* early) {
  *early = true;
  return kSuccess;
}

template <typename... Expected, typename... Args>
Error LaunchKernel(void (*kernel)(Expected...), dim3 grid, int threads, size_t shared_bytes, Stream,
                   bool, const Args&... args) {
  gridDim = grid;
  blockDim = dim3(static_cast<unsigned>(threads));
  for (blockIdx.z = 0; blockIdx.z < grid.z; ++blockIdx.z) {
    for (blockIdx.y = 0; blockIdx.y < grid.y; ++blockIdx.y) {
      for (blockIdx.x = 0; blockIdx.x < grid.x; ++blockIdx.x) {
        HostThreadBlock block(threads, shared_bytes);
        block.Run([&](int) { kernel(args...); });
      }
    }
  }
  return kSuccess;
}

// There is room for one, which comes after nobody that it could wait for.
template <typename Kernel>
Error CountResident(Kernel, int, size_t, int* resident) {
  *resident = 1;
  return kSuccess;
}
template <typename Args>
Error LaunchTogether(void (*kernel)(const Args), dim3 grid, int threads, size_t shared_bytes,
                     Stream stream, Args& args) {
  Require(grid.x == 1, "thread blocks that have to run at the same time");
  return LaunchKernel(kernel, grid, threads, shared_bytes, stream, false, args);
}
template <typename Kernel>
Error Load(Kernel) {
  return kSuccess;
}

}  // namespace blockd::gpu

#endif  // BLOCKD_ENGINE_GPU_ARCH_HOST_HOST_VENDOR_H_
