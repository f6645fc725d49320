// The arguments of kernels that form a selected inverse: one level of one system's chain, and some
// of its segments.
#ifndef BLOCKD_ENGINE_GPU_INVERSE_INVERSE_ARGS_H_
#define BLOCKD_ENGINE_GPU_INVERSE_INVERSE_ARGS_H_

#include <cstdint>

#include "engine/gpu/plan/level.h"

namespace blockd::gpu::inverse {

// Blocks [first, end) of a chain of Z = inv(A), n x n and column-major; what is null is not wanted.
struct Chain {
  int64_t first = 0, end = 0;
  void* diagonal = nullptr;  // Z(b,b), both triangles
  void* entries = nullptr;   // its diagonal alone, n each
  void* coupling = nullptr;  // Z(b+1,b), b + 1 < end

  BLOCKD_HOST_DEVICE bool Has(int64_t b) const { return first <= b && b < end; }

  // Where these of block b are; null: not wanted.
  template <typename T>
  BLOCKD_HOST_DEVICE T* Diagonal(int64_t b, int64_t n) const {
    return Place<T>(diagonal, b, n * n);
  }
  template <typename T>
  BLOCKD_HOST_DEVICE T* Entries(int64_t b, int64_t n) const {
    return Place<T>(entries, b, n);
  }
  template <typename T>
  BLOCKD_HOST_DEVICE T* Coupling(int64_t b, int64_t n) const {
    return Has(b + 1) ? Place<T>(coupling, b, n * n) : nullptr;
  }

 private:
  template <typename T>
  BLOCKD_HOST_DEVICE T* Place(void* blocks, int64_t b, int64_t scalars) const {
    if (blocks == nullptr || !Has(b)) return nullptr;
    return static_cast<T*>(blocks) + (b - first) * scalars;
  }
};

// Steps whose V, G and H are made together, at most.
inline constexpr int kMostAhead = 8;

struct InverseArgs {
  LevelShape level;
  const void* factor = nullptr;
  int64_t inverse_offset = 0, next_offset = 0, fill_offset = 0;
  Chain out;    // of this level
  Chain above;  // of the next one, where this level's separators are
  int64_t first_segment = 0;
  int64_t num_segments = 0;
  void* scratch = nullptr;  // SegmentSquares(ahead) n^2 scalars for each of these
  int32_t ahead = 1;        // steps whose V, G and H have a place
};

// Blocks that a segment has in scratch: two Z(j,j) that are not wanted themselves, Z(j,r), two
// Z(j,l) with their transposes, and V, G and H of some steps.
BLOCKD_HOST_DEVICE constexpr int64_t SegmentSquares(int64_t ahead) { return 7 + 3 * ahead; }

// The interior, in the order of elimination, that a segment's walk ends with; count: it has none.
BLOCKD_HOST_DEVICE inline int64_t LastInterior(const SegmentRange& range, const Chain& out) {
  const int64_t behind = range.first + range.count;
  if (range.reversed) return behind - (out.end < behind ? out.end : behind);
  const int64_t left = (out.first > range.first ? out.first : range.first) - range.first;
  return left < range.count ? left : range.count;
}

}  // namespace blockd::gpu::inverse

#endif  // BLOCKD_ENGINE_GPU_INVERSE_INVERSE_ARGS_H_
