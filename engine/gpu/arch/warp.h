// Device code: a warp's lanes, and barriers.
//
// A warp has kWarp lanes: 32, or the 64 of an AMD wavefront.
#ifndef BLOCKD_ENGINE_GPU_ARCH_WARP_H_
#define BLOCKD_ENGINE_GPU_ARCH_WARP_H_

#include <cstdint>

#include "engine/gpu/arch/host_device.h"
#include "engine/gpu/arch/vendor.h"

namespace blockd::gpu {

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

// True if `value` is true in all lanes of the warp.
__device__ inline bool AllLanes(bool value) {
#if defined(BLOCKD_GPU_HIP)
  return __all(value) != 0;
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

// The sum of all lanes' sums[c], returned in the lanes with lane % 8 = c.
template <typename T>
__device__ inline T SumsOfLanes(const T (&sums)[8]) {
  T four[4], two[2];
  const bool high = (Lane() & 4) != 0, upper = (Lane() & 2) != 0, odd = (Lane() & 1) != 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    four[i] = (high ? sums[i + 4] : sums[i]) + Shuffle(high ? sums[i] : sums[i + 4], Lane() ^ 4);
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    two[i] = (upper ? four[i + 2] : four[i]) + Shuffle(upper ? four[i] : four[i + 2], Lane() ^ 2);
  }
  T one = (odd ? two[1] : two[0]) + Shuffle(odd ? two[0] : two[1], Lane() ^ 1);
#pragma unroll
  for (int step = 8; step < kWarp; step *= 2) one += Shuffle(one, Lane() ^ step);
  return one;
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
