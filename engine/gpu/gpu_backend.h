// The GPU backend: CUDA, or HIP from the same source.
#ifndef BLOCKD_ENGINE_GPU_GPU_BACKEND_H_
#define BLOCKD_ENGINE_GPU_GPU_BACKEND_H_

#include <memory>

#include "absl/status/statusor.h"
#include "blockd/engine/backend.h"
#include "blockd/engine/backend_registry.h"

namespace blockd {

const char* GpuBackendName();  // "cuda" or "rocm"

// Takes memory_bytes from the driver at once, with some 130 MiB of its own, device and pinned, and
// nothing later but what the driver needs for the graphs of some plans. NOT_FOUND if there is no
// such device.
absl::StatusOr<std::unique_ptr<Backend>> CreateGpuBackend(const BackendOptions& options);

}  // namespace blockd

#endif  // BLOCKD_ENGINE_GPU_GPU_BACKEND_H_
