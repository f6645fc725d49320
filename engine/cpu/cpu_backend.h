// The CPU backend: segments, systems and panels of right-hand sides spread over a few threads.
#ifndef BLOCKD_ENGINE_CPU_CPU_BACKEND_H_
#define BLOCKD_ENGINE_CPU_CPU_BACKEND_H_

#include <memory>

#include "absl/status/statusor.h"
#include "blockd/engine/backend.h"
#include "blockd/engine/backend_registry.h"

namespace blockd {

// Takes memory_bytes of address space at once; the system backs it with pages at first use. Sets
// OpenBLAS to one thread for the whole process: this backend's threads are its own.
absl::StatusOr<std::unique_ptr<Backend>> CreateCpuBackend(const BackendOptions& options);

}  // namespace blockd

#endif  // BLOCKD_ENGINE_CPU_CPU_BACKEND_H_
