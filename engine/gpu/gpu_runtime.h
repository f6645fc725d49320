// The one place where CUDA and HIP differ: names of the runtime, and the device's primitives.
//
// Kernels count in groups of 32 lanes, called warps here. On hardware with wavefronts of 64, a
// wavefront is two of them: every shuffle stays within its 32 lanes, and no code relies on two
// warps moving together.
#ifndef BLOCKD_ENGINE_GPU_GPU_RUNTIME_H_
#define BLOCKD_ENGINE_GPU_GPU_RUNTIME_H_

#include <cstddef>
#include <cstdint>

#if defined(BLOCKD_GPU_HIP)
#include <hip/hip_runtime.h>
#define BLOCKD_GPU(name) hip##name
#else
#include <cuda_runtime.h>
#define BLOCKD_GPU(name) cuda##name
#endif

#if defined(__CUDACC__) || defined(__HIPCC__)
#define BLOCKD_GPU_CODE 1
#define BLOCKD_HOST_DEVICE __host__ __device__
#else
#define BLOCKD_HOST_DEVICE
#endif

namespace blockd::gpu {

using Error = BLOCKD_GPU(Error_t);
using Stream = BLOCKD_GPU(Stream_t);
using Event = BLOCKD_GPU(Event_t);
inline constexpr Error kSuccess = BLOCKD_GPU(Success);

#if defined(BLOCKD_GPU_HIP)
inline constexpr const char* kBackendName = "rocm";
using DeviceProperties = hipDeviceProp_t;
inline Error AllocatePinned(void** p, size_t bytes) { return hipHostMalloc(p, bytes, 0); }
inline Error FreePinned(void* p) { return hipHostFree(p); }
#else
inline constexpr const char* kBackendName = "cuda";
using DeviceProperties = cudaDeviceProp;
inline Error AllocatePinned(void** p, size_t bytes) { return cudaMallocHost(p, bytes); }
inline Error FreePinned(void* p) { return cudaFreeHost(p); }
#endif

// Raises a kernel's limit of dynamic shared memory.
template <typename Kernel>
Error AllowShared(Kernel kernel, size_t bytes) {
#if defined(BLOCKD_GPU_HIP)
  return hipFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                             hipFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes));
#else
  return cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                              cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes));
#endif
}

#if defined(BLOCKD_GPU_CODE)

// A kernel's argument that is read where it lies, and not copied by each thread.
#if defined(BLOCKD_GPU_HIP)
#define BLOCKD_KERNEL_ARGUMENT
#else
#define BLOCKD_KERNEL_ARGUMENT __grid_constant__
#endif

inline constexpr int kWarp = 32;

__device__ inline int Lane() { return static_cast<int>(threadIdx.x) & (kWarp - 1); }
__device__ inline int WarpIndex() { return static_cast<int>(threadIdx.x) / kWarp; }

// The value that `lane` of this warp has.
template <typename T>
__device__ inline T Shuffle(T value, int lane) {
#if defined(BLOCKD_GPU_HIP)
  return __shfl(value, lane, kWarp);
#else
  return __shfl_sync(0xffffffffu, value, lane);
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
// The same for 16 bytes, both places aligned to 16.
__device__ inline void CopyAsync16(void* shared, const void* global) {
#if defined(BLOCKD_GPU_HIP)
  *static_cast<uint4*>(shared) = *static_cast<const uint4*>(global);
#else
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(
                   static_cast<unsigned>(__cvta_generic_to_shared(shared))),
               "l"(global)
               : "memory");
#endif
}
__device__ inline void CopyWait() {
#if !defined(BLOCKD_GPU_HIP)
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

// 1 / sqrt(x) to about an ulp for normal x > 0, without a branch, so that what does not wait for it
// goes on.
__device__ inline double ReciprocalRoot(double x) {
#if defined(BLOCKD_GPU_HIP)
  return rsqrt(x);
#else
  double y;
  asm("rsqrt.approx.ftz.f64 %0, %1;" : "=d"(y) : "d"(x));
  const double error = fma(-x, y * y, 1.0);  // about 2^-20
  return fma(y * error, fma(error, 0.375, 0.5), y);
#endif
}

// C += A B by one warp: A is 8 x 4, B is 4 x 8. With g = lane / 4 and t = lane % 4 a lane has
// a = A(g,t), b = B(t,g) and c = C(g, 2t), C(g, 2t+1).
__device__ inline void Mma8x8x4(double (&c)[2], double a, double b) {
#if defined(BLOCKD_GPU_HIP)
  const int lane = Lane();
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    const double row = Shuffle(a, (lane & ~3) + k);
    c[0] = fma(row, Shuffle(b, (lane & 3) * 8 + k), c[0]);
    c[1] = fma(row, Shuffle(b, (lane & 3) * 8 + 4 + k), c[1]);
  }
#else
  asm volatile("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0,%1}, {%2}, {%3}, {%0,%1};"
               : "+d"(c[0]), "+d"(c[1])
               : "d"(a), "d"(b));
#endif
}

// C += A B by one warp: A is 16 x 8, B is 8 x 8; a = A(g,t), A(g+8,t), A(g,t+4), A(g+8,t+4),
// b = B(t,g), B(t+4,g), c = C(g,2t), C(g,2t+1), C(g+8,2t), C(g+8,2t+1).
__device__ inline void Mma16x8x8(double (&c)[4], const double (&a)[4], const double (&b)[2]) {
#if !defined(BLOCKD_GPU_HIP) && defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile(
      "mma.sync.aligned.m16n8k8.row.col.f64.f64.f64.f64 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+d"(c[0]), "+d"(c[1]), "+d"(c[2]), "+d"(c[3])
      : "d"(a[0]), "d"(a[1]), "d"(a[2]), "d"(a[3]), "d"(b[0]), "d"(b[1]));
#else
  double top[2] = {c[0], c[1]}, bottom[2] = {c[2], c[3]};
  Mma8x8x4(top, a[0], b[0]);
  Mma8x8x4(top, a[2], b[1]);
  Mma8x8x4(bottom, a[1], b[0]);
  Mma8x8x4(bottom, a[3], b[1]);
  c[0] = top[0], c[1] = top[1], c[2] = bottom[0], c[3] = bottom[1];
#endif
}

#endif  // BLOCKD_GPU_CODE

}  // namespace blockd::gpu

#endif  // BLOCKD_ENGINE_GPU_GPU_RUNTIME_H_
