// CUDA or HIP, under one name each: BLOCKD_GPU(Malloc) is cudaMalloc or hipMalloc; and the calls
// whose arguments differ. With BLOCKD_GPU_ON_HOST, as arch.h has it, what launches need.
#ifndef BLOCKD_ENGINE_GPU_ARCH_VENDOR_H_
#define BLOCKD_ENGINE_GPU_ARCH_VENDOR_H_

#include <cstddef>
#include <cstdint>
#include <sstream>
#include <string>

#if defined(BLOCKD_GPU_ON_HOST)
#include "engine/gpu/arch/host/host_vendor.h"
#else

#if defined(BLOCKD_GPU_HIP)
#include <hip/hip_runtime.h>
#define BLOCKD_GPU(name) hip##name
#else
#include <cuda_runtime.h>
#define BLOCKD_GPU(name) cuda##name
#endif

#if defined(__CUDACC__) || defined(__HIPCC__)
#define BLOCKD_GPU_CODE 1
#endif

// A kernel's threads, and how many of its thread blocks registers have to leave room for on a
// multiprocessor. HIP counts wavefronts of one of a compute unit's four SIMDs.
#if defined(BLOCKD_GPU_HIP)
#define BLOCKD_LAUNCH_BOUNDS(threads, resident) \
  __launch_bounds__((threads), ((threads) / 64 * (resident) + 3) / 4)
#else
#define BLOCKD_LAUNCH_BOUNDS(threads, resident) __launch_bounds__((threads), (resident))
#endif

// A kernel's argument that is read where it lies, and not copied by each thread. HIP's compilers
// would copy it: so a kernel reads it through InPlace, and it is the first one.
#if defined(BLOCKD_GPU_HIP)
#define BLOCKD_KERNEL_ARGUMENT
#else
#define BLOCKD_KERNEL_ARGUMENT __grid_constant__
#endif

// The shared memory that a launch asks for, in a kernel.
#define BLOCKD_DYNAMIC_SHARED(type, name, alignment) \
  extern __shared__ __align__(alignment)             \
  type name[]

namespace blockd::gpu {

using Error = BLOCKD_GPU(Error_t);
using Stream = BLOCKD_GPU(Stream_t);
using Event = BLOCKD_GPU(Event_t);
using Graph = BLOCKD_GPU(Graph_t);
using GraphExec = BLOCKD_GPU(GraphExec_t);
inline constexpr Error kSuccess = BLOCKD_GPU(Success);

#if defined(BLOCKD_GPU_HIP)
inline constexpr const char* kBackendName = "rocm";
using DeviceProperties = hipDeviceProp_t;
// With features that it has: "gfx90a:sramecc+:xnack-".
inline std::string InstructionSetOf(const DeviceProperties& properties) {
  return properties.gcnArchName;
}
inline Error AllocatePinned(void** p, size_t bytes) { return hipHostMalloc(p, bytes, 0); }
inline Error FreePinned(void* p) { return hipHostFree(p); }
inline Error Instantiate(GraphExec* graph, Graph recorded) {
  return hipGraphInstantiateWithFlags(graph, recorded, 0);
}
#else
inline constexpr const char* kBackendName = "cuda";
using DeviceProperties = cudaDeviceProp;
inline std::string InstructionSetOf(const DeviceProperties& properties) {
  return "sm_" + std::to_string(10 * properties.major + properties.minor);
}
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

// Sets *early to true if LaunchKernel may start the kernel early: if it was compiled for devices
// that can do so.
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

// True if the build has code for a device: if the list of devices that it was compiled for,
// separated by blanks, names it; without a list, from sm_80 on, because later devices take the code
// of earlier ones.
inline bool IsCompiledFor(const DeviceProperties& properties) {
#if defined(BLOCKD_HIP_ARCHITECTURES)
  const std::string name = InstructionSetOf(properties);
  std::istringstream all(BLOCKD_HIP_ARCHITECTURES);
  for (std::string each; all >> each;) {
    if (each == name.substr(0, name.find(':'))) return true;
  }
  return false;
#else
  return properties.major >= 8;
#endif
}

#if defined(BLOCKD_GPU_CODE)
template <typename Args>
__device__ __forceinline__ const Args& InPlace(const Args& first_argument) {
#if defined(__HIP_DEVICE_COMPILE__)
  return *(const Args*)__builtin_amdgcn_kernarg_segment_ptr();  // of another address space
#else
  return first_argument;
#endif
}

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
  // Measured on an H200: the call below takes 7 us more than this one behind an upload.
  if (!early) {
    kernel<<<grid, static_cast<unsigned>(threads), shared_bytes, stream>>>(args...);
    return cudaGetLastError();
  }
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = 1;
  return cudaLaunchKernelEx(&config, kernel, args...);
#endif
}
// How many thread blocks of a kernel a multiprocessor has room for.
template <typename Kernel>
Error CountResident(Kernel kernel, int threads, size_t shared_bytes, int* resident) {
  return BLOCKD_GPU(OccupancyMaxActiveBlocksPerMultiprocessor)(
      resident, reinterpret_cast<const void*>(kernel), threads, shared_bytes);
}
// Launches a kernel all of whose thread blocks run at the same time, or not at all.
template <typename Args>
Error LaunchTogether(void (*kernel)(const Args), dim3 grid, int threads, size_t shared_bytes,
                     Stream stream, Args& args) {
  void* parameters[] = {&args};
  return BLOCKD_GPU(LaunchCooperativeKernel)(reinterpret_cast<const void*>(kernel), grid,
                                             dim3(static_cast<unsigned>(threads)), parameters,
                                             static_cast<unsigned>(shared_bytes), stream);
}
#endif  // BLOCKD_GPU_CODE

}  // namespace blockd::gpu

#endif  // BLOCKD_GPU_ON_HOST

#endif  // BLOCKD_ENGINE_GPU_ARCH_VENDOR_H_
