// A copy for what no processor reads next.
#ifndef BLOCKD_ENGINE_GPU_RUNTIME_STREAMING_COPY_H_
#define BLOCKD_ENGINE_GPU_RUNTIME_STREAMING_COPY_H_

#include <cstddef>

namespace blockd::gpu {

// memcpy. Large ones go past the caches: the lines of `to` are not read before they are written,
// and what others have in the caches stays. Whoever the copy is handed to, a device too, sees all
// of it.
void StreamingCopy(std::byte* to, const std::byte* from, size_t bytes);

}  // namespace blockd::gpu

#endif  // BLOCKD_ENGINE_GPU_RUNTIME_STREAMING_COPY_H_
