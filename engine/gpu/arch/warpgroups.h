// Device code: products by warpgroups, four warps (sm_90a).
#ifndef BLOCKD_ENGINE_GPU_ARCH_WARPGROUPS_H_
#define BLOCKD_ENGINE_GPU_ARCH_WARPGROUPS_H_

#include <cstdint>

#include "engine/gpu/arch/host_device.h"
#include "engine/gpu/arch/vendor.h"

namespace blockd::gpu {

// True if warpgroups, of four warps, multiply tf32 operands: on sm_90a. The host asks
// kMayHaveWarpgroups, whether any device may.
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
inline constexpr bool kHasWarpgroups = true;
#else
inline constexpr bool kHasWarpgroups = false;
#endif

// The description of the matrix B of tf32 in shared memory for a warpgroup's instruction. Entry
// (k, j) is scalar (k / 4 * kColumns + j) * 4 + k % 4.
template <int kColumns>
__device__ inline uint64_t DescribeMatrix(const uint32_t* b) {
#if defined(BLOCKD_GPU_HIP)
  return 0;
#else
  // In units of 16 bytes, to the next four k and to the next eight j.
  constexpr uint64_t kAlong = kColumns, kAcross = 8;
  return kAcross << 32 | kAlong << 16 | __cvta_generic_to_shared(b) >> 4;
#endif
}
// Shared memory that threads wrote, after the barrier that follows, is seen by warpgroups'
// instructions.
__device__ inline void ShareWithWarpgroups() {
  if constexpr (kHasWarpgroups) asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
// Before a warpgroup's first product, after its last, and until all have ended.
__device__ inline void BeginProducts() {
  if constexpr (kHasWarpgroups) asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ inline void EndProducts() {
  if constexpr (kHasWarpgroups) asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
__device__ inline void WaitForProducts() {
  if constexpr (kHasWarpgroups) asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
}
// Starts C += A B, or C = A B, of 16 rows a warp, 8 deep, all columns; a and c as for Mma16x8x8.
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define BLOCKD_TILE(use, j) use(c[j][0]), use(c[j][1]), use(c[j][2]), use(c[j][3])
#define BLOCKD_PRODUCTS(StartProduct, compare, use)                                               \
  __device__ inline void StartProduct(float(&c)[4][4], const uint32_t(&a)[4], uint64_t b) {       \
    asm volatile(                                                                                 \
        "{.reg .pred add; setp." compare                                                          \
        ".u32 add, 0, 0;\n"                                                                       \
        "wgmma.mma_async.sync.aligned.m64n32k8.f32.tf32.tf32 "                                    \
        "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15}, {%16,%17,%18,%19}, %20, add, "  \
        "1, 1;}"                                                                                  \
        : BLOCKD_TILE(use, 0), BLOCKD_TILE(use, 1), BLOCKD_TILE(use, 2), BLOCKD_TILE(use, 3)      \
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));                                    \
  }                                                                                               \
  __device__ inline void StartProduct(float(&c)[8][4], const uint32_t(&a)[4], uint64_t b) {       \
    asm volatile(                                                                                 \
        "{.reg .pred add; setp." compare                                                          \
        ".u32 add, 0, 0;\n"                                                                       \
        "wgmma.mma_async.sync.aligned.m64n64k8.f32.tf32.tf32 "                                    \
        "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23," \
        "%24,%25,%26,%27,%28,%29,%30,%31}, {%32,%33,%34,%35}, %36, add, 1, 1;}"                   \
        : BLOCKD_TILE(use, 0), BLOCKD_TILE(use, 1), BLOCKD_TILE(use, 2), BLOCKD_TILE(use, 3),     \
          BLOCKD_TILE(use, 4), BLOCKD_TILE(use, 5), BLOCKD_TILE(use, 6), BLOCKD_TILE(use, 7)      \
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));                                    \
  }
BLOCKD_PRODUCTS(StartProduct, "eq", "+f")
BLOCKD_PRODUCTS(StartFreshProduct, "ne", "=f")
#undef BLOCKD_PRODUCTS
__device__ inline void StartProduct(float (&c)[16][4], const uint32_t (&a)[4], uint64_t b) {
  asm volatile(
      "{.reg .pred add; setp.eq.u32 add, 0, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n128k8.f32.tf32.tf32 "
      "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,"
      "%25,%26,%27,%28,%29,%30,%31,%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,"
      "%47,%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63}, {%64,%65,%66,%67}, "
      "%68, add, 1, 1;}"
      : BLOCKD_TILE("+f", 0), BLOCKD_TILE("+f", 1), BLOCKD_TILE("+f", 2), BLOCKD_TILE("+f", 3),
        BLOCKD_TILE("+f", 4), BLOCKD_TILE("+f", 5), BLOCKD_TILE("+f", 6), BLOCKD_TILE("+f", 7),
        BLOCKD_TILE("+f", 8), BLOCKD_TILE("+f", 9), BLOCKD_TILE("+f", 10), BLOCKD_TILE("+f", 11),
        BLOCKD_TILE("+f", 12), BLOCKD_TILE("+f", 13), BLOCKD_TILE("+f", 14), BLOCKD_TILE("+f", 15)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}
#undef BLOCKD_TILE
#endif

}  // namespace blockd::gpu

#endif  // BLOCKD_ENGINE_GPU_ARCH_WARPGROUPS_H_
