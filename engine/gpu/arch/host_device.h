// Common to host code and device code: marks of functions, and what the host knows of a vendor.
// Device code asks these constants and no macro; only the files beside this one know compilers.
#ifndef BLOCKD_ENGINE_GPU_ARCH_HOST_DEVICE_H_
#define BLOCKD_ENGINE_GPU_ARCH_HOST_DEVICE_H_

#if defined(__CUDACC__) || defined(__HIPCC__)
#define BLOCKD_HOST_DEVICE __host__ __device__
#else
#define BLOCKD_HOST_DEVICE
#endif

namespace blockd::gpu {

// True if wavefronts and matrix instructions are AMD's (CDNA). With BLOCKD_GPU_ON_HOST a test
// chooses the vendor.
#if defined(BLOCKD_GPU_HIP) || defined(BLOCKD_GPU_LIKE_AMD)
inline constexpr bool kIsAmd = true;
#else
inline constexpr bool kIsAmd = false;
#endif
// Lanes that move together: a warp or a wavefront. Kernels call both a warp.
inline constexpr int kWarp = kIsAmd ? 64 : 32;
// True if there are devices where warpgroups make products. With BLOCKD_GPU_ON_HOST they do.
inline constexpr bool kMayHaveWarpgroups = !kIsAmd;
// True if parts of a thread block have barriers of their own. BLOCKD_WHOLE_BARRIERS is for
// racecheck, which does not follow such barriers.
#if defined(BLOCKD_WHOLE_BARRIERS)
inline constexpr bool kHasPartBarriers = false;
#else
inline constexpr bool kHasPartBarriers = !kIsAmd;
#endif
// True if copies from global to shared memory go on beside a thread's other work.
inline constexpr bool kCopiesAside = !kIsAmd;

}  // namespace blockd::gpu

#endif  // BLOCKD_ENGINE_GPU_ARCH_HOST_DEVICE_H_
