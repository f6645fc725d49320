// The functions of vendor.h where the device is the host: a kernel is a function, and work that is
// started has ended when the call returns. A kernel's thread blocks may wait for those before them,
// or are so few that all run together, as on a GPU.
#ifndef BLOCKD_ENGINE_GPU_ARCH_HOST_HOST_VENDOR_H_
#define BLOCKD_ENGINE_GPU_ARCH_HOST_HOST_VENDOR_H_

#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "engine/gpu/arch/host/host_arch.h"
#include "engine/gpu/arch/host/host_device.h"

#define __global__
#define __launch_bounds__(...)
#define BLOCKD_LAUNCH_BOUNDS(...)
#define __shared__ static BLOCKD_OF_THREAD_BLOCK
#define __align__(bytes) __attribute__((aligned(bytes)))
#define BLOCKD_GPU(name) blockd::gpu::Host##name
#define BLOCKD_GPU_CODE 1
#define BLOCKD_KERNEL_ARGUMENT
#define BLOCKD_DYNAMIC_SHARED(type, name, alignment) \
  /* NOLINTNEXTLINE(bugprone-macro-parentheses) */   \
  type* const name = reinterpret_cast<type*>(blockd::gpu::HostThreadBlock::Current().shared())

namespace blockd::gpu {

// BLOCKD_GPU(name) begins all names alike.
// NOLINTBEGIN(readability-identifier-naming)

using Error = int;
inline constexpr Error kSuccess = 0, HostErrorNotReady = 1, HostErrorMemory = 2;
inline constexpr const char* kBackendName = kIsAmd ? "host_amd" : "host_nvidia";
inline const char* HostGetErrorString(Error error) {
  return error == HostErrorMemory ? "out of memory" : "unknown";
}
inline Error HostGetLastError() { return kSuccess; }

// --- The device ----------------------------------------------------------------------------------

struct DeviceProperties {
  const char* name = "the host";
  size_t totalGlobalMem = size_t{3} << 30;
  int multiProcessorCount = HostDevice::kMultiprocessors;
  int major = 9, minor = 0;
};
inline const char* InstructionSetOf(const DeviceProperties&) { return "gfx90a"; }
inline bool IsCompiledFor(const DeviceProperties&) { return true; }
inline constexpr Error HostErrorInsufficientDriver = 3;
inline Error HostDriverGetVersion(int*) { return kSuccess; }
inline Error HostRuntimeGetVersion(int*) { return kSuccess; }
inline Error HostGetDeviceCount(int* count) { return *count = 1, kSuccess; }
inline Error HostSetDevice(int) { return kSuccess; }
inline Error HostGetDeviceProperties(DeviceProperties* properties, int) {
  return *properties = DeviceProperties(), kSuccess;
}
// An H200's, an MI210's.
inline Error QueryShared(int, int* multiprocessor, int* block) {
  *multiprocessor = (kIsAmd ? 64 : 228) << 10;
  *block = (kIsAmd ? 64 : 227) << 10;
  return kSuccess;
}

// --- Memory --------------------------------------------------------------------------------------

inline Error HostMemGetInfo(size_t* free, size_t* total) {
  *free = *total = DeviceProperties().totalGlobalMem;
  return kSuccess;
}
inline Error HostMalloc(void** p, size_t bytes) {
  *p = std::aligned_alloc(256, (bytes + 255) / 256 * 256);
  return *p == nullptr ? HostErrorMemory : kSuccess;
}
inline Error HostFree(void* p) { return std::free(p), kSuccess; }
inline Error AllocatePinned(void** p, size_t bytes) { return HostMalloc(p, bytes); }
inline Error FreePinned(void* p) { return HostFree(p); }
inline constexpr unsigned HostHostRegisterPortable = 0;
inline Error HostHostRegister(void*, size_t, unsigned) { return kSuccess; }
inline Error HostHostUnregister(void*) { return kSuccess; }
inline Error HostGetDevice(int* device) { return *device = 0, kSuccess; }
enum HostCopyKind { HostMemcpyHostToDevice, HostMemcpyDeviceToHost, HostMemcpyDeviceToDevice };

// --- Streams, events, graphs ---------------------------------------------------------------------

using Stream = struct HostStream*;
using Event = struct HostEvent*;
using Graph = HostGraph*;
using GraphExec = HostGraph*;
struct HostStream {
  int priority = 0;
};
struct HostEvent {};
inline constexpr unsigned HostStreamNonBlocking = 0, HostEventDisableTiming = 0,
                          HostEventBlockingSync = 0;
inline Error HostDeviceGetStreamPriorityRange(int* last, int* first) {
  return *last = 0, *first = -2, kSuccess;
}
inline Error HostStreamCreateWithPriority(Stream* stream, unsigned, int priority) {
  return *stream = new HostStream{priority}, kSuccess;
}
inline Error HostStreamCreateWithFlags(Stream* stream, unsigned) {
  return *stream = new HostStream, kSuccess;
}
inline Error HostStreamDestroy(Stream stream) { return delete stream, kSuccess; }
inline Error HostStreamSynchronize(Stream) { return kSuccess; }
inline Error HostStreamQuery(Stream) { return kSuccess; }
inline Error HostStreamWaitEvent(Stream, Event, unsigned) { return kSuccess; }
inline Error HostEventCreateWithFlags(Event* event, unsigned) {
  return *event = new HostEvent, kSuccess;
}
inline Error HostEventDestroy(Event event) { return delete event, kSuccess; }
inline Error HostEventRecord(Event, Stream) { return kSuccess; }
inline Error HostEventSynchronize(Event) { return kSuccess; }
inline Error HostEventQuery(Event) { return kSuccess; }
inline Error HostMemcpyAsync(void* to, const void* from, size_t bytes, HostCopyKind, Stream) {
  return EnqueueOnHost([=] { std::memcpy(to, from, bytes); }), kSuccess;
}
inline Error HostMemcpy2DAsync(void* to, size_t to_pitch, const void* from, size_t from_pitch,
                               size_t width, size_t height, HostCopyKind, Stream) {
  EnqueueOnHost([=] {
    for (size_t row = 0; row < height; ++row) {
      std::memcpy(static_cast<std::byte*>(to) + row * to_pitch,
                  static_cast<const std::byte*>(from) + row * from_pitch, width);
    }
  });
  return kSuccess;
}
inline Error HostMemsetAsync(void* to, int value, size_t bytes, Stream) {
  return EnqueueOnHost([=] { std::memset(to, value, bytes); }), kSuccess;
}
inline constexpr int HostStreamCaptureModeThreadLocal = 0;
inline Error HostStreamBeginCapture(Stream, int) {
  Require(host_recording == nullptr, "two graphs recorded at a time");
  return host_recording = new HostGraph, kSuccess;
}
inline Error HostStreamEndCapture(Stream, Graph* graph) {
  return *graph = std::exchange(host_recording, nullptr), kSuccess;
}
inline Error HostGraphGetNodes(Graph graph, void*, size_t* nodes) {
  return *nodes = graph->size(), kSuccess;
}
inline Error Instantiate(GraphExec* made, Graph recorded) {
  return *made = new HostGraph(*recorded), kSuccess;
}
inline Error HostGraphDestroy(Graph graph) { return delete graph, kSuccess; }
inline Error HostGraphExecDestroy(GraphExec graph) { return delete graph, kSuccess; }
inline Error HostGraphLaunch(GraphExec graph, Stream) {
  for (const auto& work : *graph) work();
  return kSuccess;
}

// --- Kernels -------------------------------------------------------------------------------------

template <typename Args>
const Args& InPlace(const Args& first_argument) {
  return first_argument;
}
template <typename Kernel>
Error AllowShared(Kernel, size_t bytes) {
  Require(!kIsAmd || bytes <= size_t{160} << 10, "more shared memory than a thread block may have");
  return kSuccess;
}
template <typename Kernel>
Error QueryEarly(Kernel, bool* early) {
  *early = !kIsAmd;
  return kSuccess;
}
template <typename Kernel>
Error Load(Kernel) {
  return kSuccess;
}

template <typename... Expected, typename... Args>
Error LaunchOnHost(void (*kernel)(Expected...), dim3 grid, int threads, size_t shared_bytes,
                   Stream stream, bool together, const Args&... args) {
  Require(threads <= 1024 && threads % kWarp == 0, "a thread block of so many threads");
  const int priority = stream == nullptr ? 0 : stream->priority;
  EnqueueOnHost([=] {
    const int64_t blocks = int64_t{grid.x} * grid.y * grid.z;
    HostDevice::Get().Launch(blocks, together, priority, [&](int64_t block) {
      HostThreadBlock resident(threads, shared_bytes);
      resident.Run([&](int) {
        gridDim = grid, blockDim = dim3(static_cast<unsigned>(threads));
        blockIdx = dim3(static_cast<unsigned>(block % grid.x),
                        static_cast<unsigned>(block / grid.x % grid.y),
                        static_cast<unsigned>(block / grid.x / grid.y));
        kernel(args...);
      });
    });
  });
  return kSuccess;
}

template <typename... Expected, typename... Args>
Error LaunchKernel(void (*kernel)(Expected...), dim3 grid, int threads, size_t shared_bytes,
                   Stream stream, bool, const Args&... args) {
  return LaunchOnHost(kernel, grid, threads, shared_bytes, stream, false, args...);
}

// A multiprocessor has room for one.
template <typename Kernel>
Error CountResident(Kernel, int, size_t, int* resident) {
  *resident = 1;
  return kSuccess;
}
template <typename Args>
Error LaunchTogether(void (*kernel)(const Args), dim3 grid, int threads, size_t shared_bytes,
                     Stream stream, Args& args) {
  Require(grid.x <= HostDevice::kMultiprocessors, "more thread blocks than can run together");
  return LaunchOnHost(kernel, grid, threads, shared_bytes, stream, true, args);
}

// NOLINTEND(readability-identifier-naming)

}  // namespace blockd::gpu

#endif  // BLOCKD_ENGINE_GPU_ARCH_HOST_HOST_VENDOR_H_
