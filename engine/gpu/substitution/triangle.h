// Device code: a stored triangle, which is inv(L) or -L (blockd/engine/elimination_plan.h), and
// what thread blocks of this folder share.
#ifndef BLOCKD_ENGINE_GPU_SUBSTITUTION_TRIANGLE_H_
#define BLOCKD_ENGINE_GPU_SUBSTITUTION_TRIANGLE_H_

#include <cstdint>

#include "engine/gpu/arch/arch.h"
#include "engine/gpu/plan/level.h"

namespace blockd::gpu::substitution {

inline constexpr int kThreads = 256;
inline constexpr int kWide = kPanelColumns;  // of a block column

template <typename Kernel, typename... Args>
LaunchResult Start(const char* name, Kernel* kernel, dim3 grid, size_t shared, Stream stream,
                   const Args&... args) {
  return {LaunchKernel(kernel, grid, kThreads, shared, stream, false, args...), name};
}

template <typename T>
struct Triangle {
  T* data = nullptr;
  int64_t n = 0;

  // Column j of the triangle: entry (i, j) is At(j)[i], i >= j.
  __device__ T* Column(int64_t j) const {
    const int64_t p = j / kWide, first = p * kWide;
    return data + PanelOffset(n, p) + (j - first) * (n - first) - first;
  }
  __device__ bool IsSubstituted() const { return data[0] < T{0}; }
};

__device__ inline int Width(int64_t n, int64_t first) {
  return static_cast<int>(n - first < kWide ? n - first : kWide);
}

}  // namespace blockd::gpu::substitution

#endif  // BLOCKD_ENGINE_GPU_SUBSTITUTION_TRIANGLE_H_
