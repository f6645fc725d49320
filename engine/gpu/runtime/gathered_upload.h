// Many pieces of host memory go to the device in few copies.
#ifndef BLOCKD_ENGINE_GPU_RUNTIME_GATHERED_UPLOAD_H_
#define BLOCKD_ENGINE_GPU_RUNTIME_GATHERED_UPLOAD_H_

#include <span>

#include "absl/status/status.h"
#include "blockd/engine/backend.h"
#include "engine/gpu/runtime/device.h"

namespace blockd::gpu {

// As Backend::UploadMany: pieces are gathered in pinned memory, and those that follow one another
// on the device, with at most the padding of a pool's piece between them, are one copy of at most
// Card::kCopyBytes. The host waits once for each Card::kCopyBytes, not for each piece. Large pieces
// in memory that the device reaches are copied from where they lie, and then awaited.
absl::Status UploadGathered(Device& device, std::span<const HostCopy> copies);

}  // namespace blockd::gpu

#endif  // BLOCKD_ENGINE_GPU_RUNTIME_GATHERED_UPLOAD_H_
