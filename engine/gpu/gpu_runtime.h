// The one place where CUDA and HIP differ: names of the runtime, and the device's primitives.
//
// Kernels count in groups of 32 lanes, called warps here. On hardware with wavefronts of 64, a
// wavefront is two of them: every shuffle stays within its 32 lanes, and no code relies on two
// warps moving together.
#ifndef BLOCKD_ENGINE_GPU_GPU_RUNTIME_H_
#define BLOCKD_ENGINE_GPU_GPU_RUNTIME_H_

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

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
using Graph = BLOCKD_GPU(Graph_t);
using GraphExec = BLOCKD_GPU(GraphExec_t);
inline constexpr Error kSuccess = BLOCKD_GPU(Success);

#if defined(BLOCKD_GPU_HIP)
inline constexpr const char* kBackendName = "rocm";
inline constexpr bool kMayHaveWarpgroups = false;
using DeviceProperties = hipDeviceProp_t;
inline Error AllocatePinned(void** p, size_t bytes) { return hipHostMalloc(p, bytes, 0); }
inline Error FreePinned(void* p) { return hipHostFree(p); }
inline Error Instantiate(GraphExec* graph, Graph recorded) {
  return hipGraphInstantiateWithFlags(graph, recorded, 0);
}
#else
inline constexpr const char* kBackendName = "cuda";
inline constexpr bool kMayHaveWarpgroups = true;
using DeviceProperties = cudaDeviceProp;
inline Error AllocatePinned(void** p, size_t bytes) { return cudaMallocHost(p, bytes); }
inline Error FreePinned(void* p) { return cudaFreeHost(p); }
// Launches keep the priorities of the streams that they were recorded from.
inline Error Instantiate(GraphExec* graph, Graph recorded) {
  return cudaGraphInstantiateWithFlags(graph, recorded, cudaGraphInstantiateFlagUseNodePriority);
}
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

// Has the driver load a kernel now, which it may otherwise do when the kernel is first launched:
// not while a graph is recorded, and not where there is no memory for it any more.
template <typename Kernel>
Error Load(Kernel kernel) {
  BLOCKD_GPU(FuncAttributes) attributes;
  return BLOCKD_GPU(FuncGetAttributes)(&attributes, reinterpret_cast<const void*>(kernel));
}

// Whether LaunchKernel may start a kernel early: whether it was compiled for devices that can.
template <typename Kernel>
Error QueryEarly(Kernel kernel, bool* early) {
#if defined(BLOCKD_GPU_HIP)
  (void)kernel;
  *early = false;
  return hipSuccess;
#else
  cudaFuncAttributes attributes = {};
  const Error error = cudaFuncGetAttributes(&attributes, reinterpret_cast<const void*>(kernel));
  *early = attributes.ptxVersion >= 90;
  return error;
#endif
}

// Bytes of shared memory: of a multiprocessor, and at most of one thread block.
inline Error QueryShared(int device, int* multiprocessor, int* block) {
#if defined(BLOCKD_GPU_HIP)
  constexpr auto kOfAll = hipDeviceAttributeMaxSharedMemoryPerMultiprocessor;
  constexpr auto kOfOne = hipDeviceAttributeMaxSharedMemoryPerBlock;
#else
  constexpr auto kOfAll = cudaDevAttrMaxSharedMemoryPerMultiprocessor;
  constexpr auto kOfOne = cudaDevAttrMaxSharedMemoryPerBlockOptin;
#endif
  const Error error = BLOCKD_GPU(DeviceGetAttribute)(multiprocessor, kOfAll, device);
  return error == kSuccess ? BLOCKD_GPU(DeviceGetAttribute)(block, kOfOne, device) : error;
}

#if defined(BLOCKD_GPU_CODE)

// Launches a kernel. If `early`, which QueryEarly has to allow, its thread blocks may start as soon
// as all of the kernel before on the stream have called LetNextStart or ended. Until AwaitPrevious
// they write nothing, and read only what was there when the kernel before came past its own
// AwaitPrevious.
template <typename... Expected, typename... Args>
Error LaunchKernel(void (*kernel)(Expected...), dim3 grid, int threads, size_t shared_bytes,
                   Stream stream, bool early, const Args&... args) {
#if defined(BLOCKD_GPU_HIP)
  (void)early;
  kernel<<<grid, threads, shared_bytes, stream>>>(args...);
  return hipGetLastError();
#else
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = early ? 1 : 0;
  return cudaLaunchKernelEx(&config, kernel, args...);
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

// A kernel's argument that is read where it lies, and not copied by each thread.
#if defined(BLOCKD_GPU_HIP)
#define BLOCKD_KERNEL_ARGUMENT
#else
#define BLOCKD_KERNEL_ARGUMENT __grid_constant__
#endif

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

// Whether copies from global to shared memory go on beside a thread's other work.
#if defined(BLOCKD_GPU_HIP)
inline constexpr bool kCopiesAside = false;
#else
inline constexpr bool kCopiesAside = true;
#endif

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
  const uint32_t* from = static_cast<const uint32_t*>(global);
  uint32_t* to = static_cast<uint32_t*>(shared);
  for (int i = 0; i < 4; ++i) to[i] = 4 * i < valid ? from[i] : 0u;
#else
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(
                   static_cast<unsigned>(__cvta_generic_to_shared(shared))),
               "l"(global), "r"(valid)
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

// Four matrices in shared memory, of eight rows of four words: lane l says where row l % 8 of
// matrix l / 8 is, aligned to 16 bytes, and gets of each matrix word l % 4 of row l / 4.
__device__ inline void LoadMatrices(uint32_t (&words)[4], const uint32_t* row) {
#if defined(BLOCKD_GPU_HIP)
  for (int i = 0; i < 4; ++i) {
    const auto from = Shuffle(reinterpret_cast<unsigned long long>(row), 8 * i + Lane() / 4);
    words[i] = reinterpret_cast<const uint32_t*>(from)[Lane() % 4];
  }
#else
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
               : "r"(static_cast<unsigned>(__cvta_generic_to_shared(row)))
               : "memory");
#endif
}

// Asks for the line of global memory at p, which will be read soon.
__device__ inline void Prefetch(const void* p) {
#if !defined(BLOCKD_GPU_HIP)
  asm volatile("prefetch.global.L2 [%0];" ::"l"(p));
#endif
}

// A flag in global memory that one thread block raises to this epoch's value and another waits for.
// What the first wrote before, all of its threads up to a __syncthreads(), the second reads after.
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

// Between thread blocks of one launch: what a thread block wrote before it signals is seen, through
// LoadFresh, by one that has seen the count. A thread block's own barrier goes before Signal and
// after HasReached.
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
__device__ inline float ReciprocalRoot(float x) {
#if defined(BLOCKD_GPU_HIP)
  return rsqrtf(x);
#else
  float y;
  asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
#endif
}
// 1 / x to about an ulp for normal x > 0.
__device__ inline float Reciprocal(float x) {
#if defined(BLOCKD_GPU_HIP)
  return 1.0f / x;
#else
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
#endif
}

// 1 / x = guess (1 + correction) to an ulp for normal x > 0. What waits for 1 / x can start with
// the guess.
__device__ inline void GuessReciprocal(double x, double& guess, double& correction) {
#if defined(BLOCKD_GPU_HIP)
  guess = 1.0 / x;
  correction = fma(-x, guess, 1.0);
#else
  asm("rcp.approx.ftz.f64 %0, %1;" : "=d"(guess) : "d"(x));
  const double error = fma(-x, guess, 1.0);  // about 2^-20
  correction = fma(error, error, error);
#endif
}

// CUDA takes float through the tf32 instruction, which reads the first 11 bits of each operand: x
// is the sum of two such numbers, but for 2^-22 of it, and the product of two small parts is left
// out. A small part has either sign, so that what is left out has no bias.
struct SplitFloat {
  uint32_t big, small;

  __device__ explicit SplitFloat(float x) {
    constexpr uint32_t kHalf = 0x1000;  // of the last bit that is read
    big = (__float_as_uint(x) + kHalf) & ~(2 * kHalf - 1);
    small = __float_as_uint(x - __uint_as_float(big));
  }
};

// parts[.][i][j] = the parts that products take of a number: HIP's take it whole.
#if defined(BLOCKD_GPU_HIP)
inline constexpr int kFloatParts = 1;
#else
inline constexpr int kFloatParts = 2;
#endif
template <int kRows, int kColumns>
__device__ inline void SplitInto(float (&parts)[kFloatParts][kRows][kColumns], int i, int j,
                                 float x) {
#if defined(BLOCKD_GPU_HIP)
  parts[0][i][j] = x;
#else
  const SplitFloat split(x);
  parts[0][i][j] = __uint_as_float(split.big);
  parts[1][i][j] = __uint_as_float(split.small);
#endif
}

// C += A B by one warp: A is 8 x 4, B is 4 x 8. With g = lane / 4 and t = lane % 4 a lane has
// a = A(g,t), b = B(t,g) and c = C(g, 2t), C(g, 2t+1).
#if defined(BLOCKD_GPU_HIP)
template <typename T>
__device__ inline void Mma8x8x4(T (&c)[2], T a, T b) {
  const int lane = Lane();
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    const T row = Shuffle(a, (lane & ~3) + k);
    c[0] = fma(row, Shuffle(b, (lane & 3) * 8 + k), c[0]);
    c[1] = fma(row, Shuffle(b, (lane & 3) * 8 + 4 + k), c[1]);
  }
}
#else
__device__ inline void Mma8x8x4(double (&c)[2], double a, double b) {
  asm volatile("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0,%1}, {%2}, {%3}, {%0,%1};"
               : "+d"(c[0]), "+d"(c[1])
               : "d"(a), "d"(b));
}

__device__ inline void MmaTf32(float (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3,
                               uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
#endif

// C += A B by one warp, all 8 x 8: a = A(g,t), A(g,t+4), b = B(t,g), B(t+4,g), c as above.
__device__ inline void Mma8x8x8(double (&c)[2], const double (&a)[2], const double (&b)[2]) {
  Mma8x8x4(c, a[0], b[0]);
  Mma8x8x4(c, a[1], b[1]);
}
__device__ inline void Mma8x8x8(float (&c)[2], const float (&a)[2], const float (&b)[2]) {
#if defined(BLOCKD_GPU_HIP)
  Mma8x8x4(c, a[0], b[0]);
  Mma8x8x4(c, a[1], b[1]);
#else
  const SplitFloat x[2] = {SplitFloat(a[0]), SplitFloat(a[1])};
  const SplitFloat y[2] = {SplitFloat(b[0]), SplitFloat(b[1])};
  // A's big parts above its small ones; no product waits for another.
  float all[4] = {c[0], c[1], 0, 0}, rest[4] = {};
  MmaTf32(all, x[0].big, x[0].small, x[1].big, x[1].small, y[0].big, y[1].big);
  MmaTf32(rest, x[0].big, 0, x[1].big, 0, y[0].small, y[1].small);
  c[0] = all[0] + (all[2] + rest[0]), c[1] = all[1] + (all[3] + rest[1]);
#endif
}

// C += A B by one warp: A is 16 x 8, B is 8 x 8; a = A(g,t), A(g+8,t), A(g,t+4), A(g+8,t+4),
// b = B(t,g), B(t+4,g), c = C(g,2t), C(g,2t+1), C(g+8,2t), C(g+8,2t+1).
template <typename T>
__device__ inline void Mma16x8x8InParts(T (&c)[4], const T (&a)[4], const T (&b)[2]) {
  T top[2] = {c[0], c[1]}, bottom[2] = {c[2], c[3]};
  Mma8x8x4(top, a[0], b[0]);
  Mma8x8x4(top, a[2], b[1]);
  Mma8x8x4(bottom, a[1], b[0]);
  Mma8x8x4(bottom, a[3], b[1]);
  c[0] = top[0], c[1] = top[1], c[2] = bottom[0], c[3] = bottom[1];
}
__device__ inline void Mma16x8x8(double (&c)[4], const double (&a)[4], const double (&b)[2]) {
#if !defined(BLOCKD_GPU_HIP) && defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile(
      "mma.sync.aligned.m16n8k8.row.col.f64.f64.f64.f64 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+d"(c[0]), "+d"(c[1]), "+d"(c[2]), "+d"(c[3])
      : "d"(a[0]), "d"(a[1]), "d"(a[2]), "d"(a[3]), "d"(b[0]), "d"(b[1]));
#else
  Mma16x8x8InParts(c, a, b);
#endif
}
// Operands that serve several products are split once: the compiler sees that.
__device__ inline void Mma16x8x8(float (&c)[4], const float (&a)[4], const float (&b)[2]) {
#if defined(BLOCKD_GPU_HIP)
  Mma16x8x8InParts(c, a, b);
#else
  const SplitFloat x[4] = {SplitFloat(a[0]), SplitFloat(a[1]), SplitFloat(a[2]), SplitFloat(a[3])};
  const SplitFloat y[2] = {SplitFloat(b[0]), SplitFloat(b[1])};
  MmaTf32(c, x[0].small, x[1].small, x[2].small, x[3].small, y[0].big, y[1].big);
  MmaTf32(c, x[0].big, x[1].big, x[2].big, x[3].big, y[0].small, y[1].small);
  MmaTf32(c, x[0].big, x[1].big, x[2].big, x[3].big, y[0].big, y[1].big);
#endif
}

// C += A B by one warp: A is 16 x 4, B is 4 x 8; a = A(g,t), A(g+8,t), b = B(t,g), c as above.
__device__ inline void Mma16x8x4(double (&c)[4], const double (&a)[2], double b) {
#if !defined(BLOCKD_GPU_HIP) && defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile(
      "mma.sync.aligned.m16n8k4.row.col.f64.f64.f64.f64 {%0,%1,%2,%3}, {%4,%5}, {%6}, "
      "{%0,%1,%2,%3};"
      : "+d"(c[0]), "+d"(c[1]), "+d"(c[2]), "+d"(c[3])
      : "d"(a[0]), "d"(a[1]), "d"(b));
#else
  double top[2] = {c[0], c[1]}, bottom[2] = {c[2], c[3]};
  Mma8x8x4(top, a[0], b);
  Mma8x8x4(bottom, a[1], b);
  c[0] = top[0], c[1] = top[1], c[2] = bottom[0], c[3] = bottom[1];
#endif
}

// c[i][j] += a[i] b[j], tiles of 16 x 8, of operands in parts, columns from `first` on. One kind of
// product after the other: the three of a tile wait for one another.
template <int kRows, int kColumns>
__device__ inline void MultiplyParts(float (&c)[kRows][kColumns][4],
                                     const float (&a)[kFloatParts][kRows][4],
                                     const float (&b)[kFloatParts][kColumns][2], int first = 0) {
#if defined(BLOCKD_GPU_HIP)
  for (int i = 0; i < kRows; ++i) {
    for (int j = 0; j < kColumns; ++j) {
      if (j >= first) Mma16x8x8(c[i][j], a[0][i], b[0][j]);
    }
  }
#else
#pragma unroll
  for (int kind = 0; kind < 3; ++kind) {
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const auto& x = a[kind == 0][i];
#pragma unroll
      for (int j = 0; j < kColumns; ++j) {
        if (j < first) continue;
        const auto& y = b[kind == 1][j];
        MmaTf32(c[i][j], __float_as_uint(x[0]), __float_as_uint(x[1]), __float_as_uint(x[2]),
                __float_as_uint(x[3]), __float_as_uint(y[0]), __float_as_uint(y[1]));
      }
    }
  }
#endif
}

// Whether four warps, a warpgroup, multiply tf32 operands: sm_90a. The host asks if any device may.
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
inline constexpr bool kHasWarpgroups = true;
#else
inline constexpr bool kHasWarpgroups = false;
#endif

// What a warpgroup's instruction is told of the matrix B in shared memory, of tf32: entry (k, j) is
// scalar (k / 4 * kColumns + j) * 4 + k % 4.
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

#endif  // BLOCKD_GPU_CODE

}  // namespace blockd::gpu

#endif  // BLOCKD_ENGINE_GPU_GPU_RUNTIME_H_
