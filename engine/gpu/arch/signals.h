// Device code: what thread blocks tell one another, in one launch or from one launch to the next.
#ifndef BLOCKD_ENGINE_GPU_ARCH_SIGNALS_H_
#define BLOCKD_ENGINE_GPU_ARCH_SIGNALS_H_

#include <cstdint>
#include <cstring>

#include "engine/gpu/arch/vendor.h"

namespace blockd::gpu {

// The barrier between what the threads of a thread block write and the one that tells another
// thread block. AMD's barrier waits for no store to global memory, and what one thread releases is
// its own.
__device__ inline void SyncToSignal() {
#if defined(__HIP_DEVICE_COMPILE__)
  __builtin_amdgcn_fence(__ATOMIC_RELEASE, "agent");
#endif
  __syncthreads();
}

// A flag in global memory that one thread block raises to this epoch's value and another waits for.
// The waiting thread block then reads all that the threads of the first one wrote up to a
// SyncToSignal().
__device__ inline void RaiseFlag(uint32_t* flag, uint32_t epoch) {
#if defined(BLOCKD_GPU_HIP)
  __hip_atomic_store(flag, epoch, __ATOMIC_RELEASE, __HIP_MEMORY_SCOPE_AGENT);
#else
  asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(flag), "r"(epoch) : "memory");
#endif
}
__device__ inline bool IsRaised(const uint32_t* flag, uint32_t epoch) {
#if defined(BLOCKD_GPU_HIP)
  return __hip_atomic_load(flag, __ATOMIC_ACQUIRE, __HIP_MEMORY_SCOPE_AGENT) == epoch;
#else
  uint32_t value;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(flag) : "memory");
  return value == epoch;
#endif
}

// Eight bytes to memory that the host reads meanwhile. They say nothing of what else was written.
template <typename Word>
__device__ inline void TellHost(Word* to, const Word& word) {
  static_assert(sizeof(Word) == 8);
  unsigned long long bits;
  memcpy(&bits, &word, sizeof(bits));
#if defined(BLOCKD_GPU_HIP)
  __hip_atomic_store(reinterpret_cast<unsigned long long*>(to), bits, __ATOMIC_RELAXED,
                     __HIP_MEMORY_SCOPE_SYSTEM);
#else
  asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(to), "l"(bits) : "memory");
#endif
}

// The barrier between what a thread block's threads write for the host, and the one that says so.
__device__ inline void SyncToTellHost() {
#if defined(BLOCKD_GPU_HIP)
  __threadfence_system();  // what one thread releases is its own
  __syncthreads();
#else
  __syncthreads();
  if (threadIdx.x == 0) __threadfence_system();
#endif
}
// Counts thread blocks, one thread of each, which has come past SyncToTellHost: true for the last
// one of `all`, which then may say, behind a __threadfence_system(), that all have written. The
// count is 0 again.
__device__ inline bool IsLastToTellHost(unsigned* count, unsigned all) {
  if (atomicAdd(count, 1u) + 1 != all) return false;
  *count = 0;
  return true;
}
// The same between thread blocks alone, past SyncToSignal: no write to the host is awaited.
__device__ inline bool IsLast(unsigned* count, unsigned all) {
  if (all == 1) return true;
  if (atomicAdd(count, 1u) + 1 != all) return false;
  *count = 0;
  return true;
}
// Nanoseconds of a clock that all multiprocessors have.
__device__ inline uint64_t DeviceNanoseconds() {
#if defined(__HIP_DEVICE_COMPILE__)
  return __builtin_amdgcn_s_memrealtime() * 10;  // it counts at 100 MHz
#elif defined(BLOCKD_GPU_HIP)
  return 0;
#else
  uint64_t now;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now)::"memory");
  return now;
#endif
}

// Between thread blocks of one launch: what a thread block wrote before it signals is seen, through
// LoadFresh, by one that has seen the count. SyncToSignal() goes before Signal, the thread block's
// own barrier after HasReached.
__device__ inline void Signal(unsigned* count, unsigned by = 1) {
#if defined(BLOCKD_GPU_HIP)
  __threadfence();
  atomicAdd(count, by);
#else
  asm volatile(
      "fence.acq_rel.gpu;\n\t"
      "red.relaxed.gpu.global.add.u32 [%0], %1;" ::"l"(count),
      "r"(by)
      : "memory");
#endif
}
__device__ inline bool HasReached(const unsigned* count, unsigned target) {
#if defined(BLOCKD_GPU_HIP)
  return __hip_atomic_load(count, __ATOMIC_ACQUIRE, __HIP_MEMORY_SCOPE_AGENT) >= target;
#else
  unsigned value;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(count) : "memory");
  return value >= target;
#endif
}
// Not from a cache that another multiprocessor's stores pass by.
template <typename T>
__device__ inline T LoadFresh(const T* p) {
#if defined(BLOCKD_GPU_HIP)
  return __hip_atomic_load(p, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
#else
  return __ldcg(p);
#endif
}

template <typename T, int kCount>
__device__ inline void LoadVectorFresh(T (&values)[kCount], const T* from) {
#if defined(BLOCKD_GPU_HIP)
  for (int i = 0; i < kCount; ++i) values[i] = LoadFresh(from + i);
#else
  static_assert(sizeof(values) == 16);
  const uint4 bits = __ldcg(reinterpret_cast<const uint4*>(from));
  memcpy(values, &bits, sizeof(values));
#endif
}

// Four scalars, or one, that other thread blocks may be storing just now; nothing else is known to
// be there once one of them is.
__device__ inline void Peek(uint32_t (&bits)[4], const float* p) {
#if defined(BLOCKD_GPU_HIP)
  for (int i = 0; i < 4; ++i) {
    bits[i] = __hip_atomic_load(reinterpret_cast<const uint32_t*>(p) + i, __ATOMIC_RELAXED,
                                __HIP_MEMORY_SCOPE_AGENT);
  }
#else
  asm volatile("ld.relaxed.gpu.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(bits[0]), "=r"(bits[1]), "=r"(bits[2]), "=r"(bits[3])
               : "l"(p)
               : "memory");
#endif
}
__device__ inline uint32_t Peek(const float* p) {
#if defined(BLOCKD_GPU_HIP)
  return __hip_atomic_load(reinterpret_cast<const uint32_t*>(p), __ATOMIC_RELAXED,
                           __HIP_MEMORY_SCOPE_AGENT);
#else
  uint32_t bits;
  asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(bits) : "l"(p) : "memory");
  return bits;
#endif
}
__device__ inline void Show(float* p, uint32_t bits) {
#if defined(BLOCKD_GPU_HIP)
  __hip_atomic_store(reinterpret_cast<uint32_t*>(p), bits, __ATOMIC_RELAXED,
                     __HIP_MEMORY_SCOPE_AGENT);
#else
  asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(p), "r"(bits) : "memory");
#endif
}

// Waits until what the launch follows has ended. Every thread block of a kernel that is launched
// early or followed by such a one calls both, in this order, so that all kernels before have ended.
__device__ inline void AwaitPrevious() {
#if !defined(BLOCKD_GPU_HIP) && defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
__device__ inline void LetNextStart() {
#if !defined(BLOCKD_GPU_HIP) && defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

}  // namespace blockd::gpu

#endif  // BLOCKD_ENGINE_GPU_ARCH_SIGNALS_H_
