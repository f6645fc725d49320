// Device code: a warp's lanes, and barriers.
//
// Kernels count in groups of 32 lanes, called warps here. On hardware with wavefronts of 64, a
// wavefront is two of them: every shuffle stays within its 32 lanes, and no code relies on two
// warps moving together.
#ifndef BLOCKD_ENGINE_GPU_ARCH_WARP_H_
#define BLOCKD_ENGINE_GPU_ARCH_WARP_H_

#include <cstdint>

#include "engine/gpu/runtime/vendor.h"

namespace blockd::gpu {

inline constexpr int kWarp = 32;

__device__ inline int Lane() { return static_cast<int>(threadIdx.x) & (kWarp - 1); }
__device__ inline int WarpIndex() { return static_cast<int>(threadIdx.x) / kWarp; }

// Where this warp is on its multiprocessor, a hint.
__device__ inline int WarpPlace() {
#if defined(BLOCKD_GPU_HIP)
  return 0;
#else
  int place;
  asm volatile("mov.u32 %0, %%warpid;" : "=r"(place));
  return place;
#endif
}

// The value that `lane` of this warp has.
template <typename T>
__device__ inline T Shuffle(T value, int lane) {
#if defined(BLOCKD_GPU_HIP)
  return __shfl(value, lane, kWarp);
#else
  return __shfl_sync(0xffffffffu, value, lane);
#endif
}

// Whether it is true in all lanes of the warp.
__device__ inline bool AllLanes(bool value) {
#if defined(BLOCKD_GPU_HIP)
  return static_cast<uint32_t>(__ballot(!value) >> (__lane_id() & kWarp)) == 0;
#else
  return __all_sync(0xffffffffu, value) != 0;
#endif
}

// The sum of what kLanes neighbouring lanes have, in each of them.
template <int kLanes, typename T>
__device__ inline T SumOfLanes(T value) {
#pragma unroll
  for (int step = 1; step < kLanes; step *= 2) value += Shuffle(value, Lane() ^ step);
  return value;
}

// *largest becomes the bits of the largest value of the warp, none of which is negative, if that is
// larger; NaN is larger than all. Called by all lanes of a warp.
__device__ inline void NoteLargest(uint32_t* largest, float value) {
  uint32_t bits = __float_as_uint(value);
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  bits = __reduce_max_sync(0xffffffffu, bits);
  if (Lane() == 0) atomicMax(largest, bits);
#else
  atomicMax(largest, bits);
#endif
}

// The compiler moves no access to memory over this.
__device__ inline void HoldMemory() { asm volatile("" ::: "memory"); }

// The compiler takes x, of 32 bits, for another number from here on: what came of it before is
// computed again, not kept in registers, and its own register has not been free until now.
template <typename T>
__device__ inline void Renew(T& x) {
#if defined(BLOCKD_GPU_HIP)
  asm volatile("" : "+v"(x));
#else
  asm volatile("" : "+r"(x));
#endif
}
__device__ inline void Renew(float& x) {
#if defined(BLOCKD_GPU_HIP)
  asm volatile("" : "+v"(x));
#else
  asm volatile("" : "+f"(x));
#endif
}

// Orders the shared memory accesses of a warp's lanes.
__device__ inline void SyncWarp() {
#if defined(BLOCKD_GPU_HIP)
  __builtin_amdgcn_fence(__ATOMIC_ACQ_REL, "wavefront");
  __builtin_amdgcn_wave_barrier();
#else
  __syncwarp();
#endif
}

// A barrier of kWarps warps of a thread block, of which others are at work beside them; 0: of all.
// BLOCKD_WHOLE_BARRIERS is for racecheck, which does not follow barriers of parts.
#if defined(BLOCKD_GPU_HIP) || defined(BLOCKD_WHOLE_BARRIERS)
inline constexpr bool kHasPartBarriers = false;
#else
inline constexpr bool kHasPartBarriers = true;
#endif
template <int kBarrier, int kWarps>
__device__ inline void SyncPart() {
  static_assert(kBarrier == 0 || (kHasPartBarriers && kBarrier < 16));
#if !defined(BLOCKD_GPU_HIP)
  if constexpr (kBarrier > 0) {
    asm volatile("barrier.cta.sync.aligned %0, %1;" ::"n"(kBarrier), "n"(kWarps * kWarp)
                 : "memory");
    return;
  }
#endif
  __syncthreads();
}

}  // namespace blockd::gpu

#endif  // BLOCKD_ENGINE_GPU_ARCH_WARP_H_
