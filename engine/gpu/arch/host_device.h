// What host code and device code share: marks of functions, and what the host knows of a vendor.
#ifndef BLOCKD_ENGINE_GPU_ARCH_HOST_DEVICE_H_
#define BLOCKD_ENGINE_GPU_ARCH_HOST_DEVICE_H_

#if defined(__CUDACC__) || defined(__HIPCC__)
#define BLOCKD_HOST_DEVICE __host__ __device__
#else
#define BLOCKD_HOST_DEVICE
#endif

namespace blockd::gpu {

// Whether there are devices where warpgroups make products. With BLOCKD_GPU_ON_HOST they do.
#if defined(BLOCKD_GPU_HIP)
inline constexpr bool kMayHaveWarpgroups = false;
#else
inline constexpr bool kMayHaveWarpgroups = true;
#endif

}  // namespace blockd::gpu

#endif  // BLOCKD_ENGINE_GPU_ARCH_HOST_DEVICE_H_
