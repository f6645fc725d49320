// The backends that this build has, and which of them can run here. The .cc file is the only one
// that names them.
#ifndef BLOCKD_ENGINE_BACKEND_REGISTRY_H_
#define BLOCKD_ENGINE_BACKEND_REGISTRY_H_

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "blockd/engine/backend.h"

namespace blockd {

struct BackendOptions {
  int64_t memory_bytes = 0;  // size of the pool; 0: three quarters of what the device has free,
  int32_t memory_parts = 1;  // or of that part of it, where several backends are on one CPU
  // 0: one a processor that the process may run on. Results do not depend on it.
  int32_t cpu_threads = 0;
  // Segments that a CPU plan may run at once; 0: one a processor. Results do depend on it.
  int32_t cpu_lanes = 0;
  int32_t device = 0;  // index of the GPU
  // GPUs only: bytes of host memory that the device reads and writes in place
  // (Backend::host_memory).
  int64_t host_memory_bytes = 0;
};

// In order of preference: "cuda", "rocm", "cpu", as far as this build has them.
std::vector<std::string> BuiltBackends();

// How many devices the backend of this name, one of BuiltBackends, finds: 1 for "cpu". NOT_FOUND if
// the build has no such backend or the machine no such device.
absl::StatusOr<int32_t> CountDevices(std::string_view name);

// `name` is "auto" (the first of BuiltBackends that finds a device) or one of "cuda", "rocm",
// "cpu". INVALID_ARGUMENT for another name, NOT_FOUND if the build or the machine lacks it,
// RESOURCE_EXHAUSTED if memory_bytes is more than the device has. passed_over, if not null, gets
// why "auto" did not take what it would rather have.
absl::StatusOr<std::unique_ptr<Backend>> CreateBackend(std::string_view name,
                                                       const BackendOptions& options,
                                                       std::string* passed_over = nullptr);

}  // namespace blockd

#endif  // BLOCKD_ENGINE_BACKEND_REGISTRY_H_
