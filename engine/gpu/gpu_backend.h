// The GPU backend: CUDA, or HIP from the same source.
#ifndef BLOCKD_ENGINE_GPU_GPU_BACKEND_H_
#define BLOCKD_ENGINE_GPU_GPU_BACKEND_H_

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "blockd/engine/backend.h"
#include "blockd/engine/backend_registry.h"

namespace blockd {

const char* GpuBackendName();  // "cuda" or "rocm"

// NOT_FOUND if there is none, with the reason.
absl::StatusOr<int32_t> CountGpus();

// Takes memory_bytes from the driver at once, with some 270 MiB of its own, device and pinned, and
// nothing later but what the driver needs for the graphs of some plans. NOT_FOUND if there is no
// such device.
absl::StatusOr<std::unique_ptr<Backend>> CreateGpuBackend(const BackendOptions& options);

// Pins host memory that somebody else owns, for all devices, until it is unregistered, which is
// before its owner gives it back. INTERNAL where the driver refuses.
absl::Status RegisterHostMemory(void* begin, int64_t bytes);
void UnregisterHostMemory(void* begin);

}  // namespace blockd

#endif  // BLOCKD_ENGINE_GPU_GPU_BACKEND_H_
