// Device code: copies from global to shared memory that go on beside other work.
#ifndef BLOCKD_ENGINE_GPU_ARCH_COPIES_H_
#define BLOCKD_ENGINE_GPU_ARCH_COPIES_H_

#include <cstdint>

#include "engine/gpu/arch/warp.h"

namespace blockd::gpu {

// Starts a copy of one scalar from global to shared memory; CopyWait ends this thread's copies.
template <typename T>
__device__ inline void CopyAsync(T* shared, const T* global) {
#if defined(BLOCKD_GPU_HIP)
  *shared = *global;
#else
  asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(
                   static_cast<unsigned>(__cvta_generic_to_shared(shared))),
               "l"(global), "n"(sizeof(T))
               : "memory");
#endif
}
// The same for 16 bytes, both places aligned to 16; zeros after the first `valid` of them.
__device__ inline void CopyAsync16(void* shared, const void* global, int valid = 16) {
#if defined(BLOCKD_GPU_HIP)
  uint32_t words[4] = {};
  for (int i = 0; i < 4; ++i) {
    if (4 * i < valid) __builtin_memcpy(&words[i], static_cast<const char*>(global) + 4 * i, 4);
  }
  __builtin_memcpy(shared, words, sizeof(words));
#else
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(
                   static_cast<unsigned>(__cvta_generic_to_shared(shared))),
               "l"(global), "r"(valid)
               : "memory");
#endif
}
__device__ inline void CopyWait() {
#if defined(BLOCKD_GPU_HIP)
  HoldMemory();
#else
  asm volatile("cp.async.wait_all;" ::: "memory");
#endif
}
// Ends a group of copies; CopyWaitBut waits until at most kGroups groups are under way.
__device__ inline void CopyCommit() {
#if !defined(BLOCKD_GPU_HIP)
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}
template <int kGroups>
__device__ inline void CopyWaitBut() {
#if !defined(BLOCKD_GPU_HIP)
  asm volatile("cp.async.wait_group %0;" ::"n"(kGroups) : "memory");
#endif
}

// Four matrices in shared memory, of eight rows of four words: lane l says where row l % 8 of
// matrix l / 8 is, aligned to 16 bytes, and gets of each matrix word l % 4 of row l / 4. Where
// there are warpgroups.
#if !defined(BLOCKD_GPU_HIP)
__device__ inline void LoadMatrices(uint32_t (&words)[4], const uint32_t* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
               : "r"(static_cast<unsigned>(__cvta_generic_to_shared(row)))
               : "memory");
}
#endif

// Asks for the line of global memory at p, which will be read soon.
__device__ inline void Prefetch(const void* p) {
#if !defined(BLOCKD_GPU_HIP)
  asm volatile("prefetch.global.L2 [%0];" ::"l"(p));
#endif
}

}  // namespace blockd::gpu

#endif  // BLOCKD_ENGINE_GPU_ARCH_COPIES_H_
