// How large the tiles of small blocks are, and what they take of a multiprocessor.
#ifndef BLOCKD_ENGINE_GPU_SEGMENT_SIZES_H_
#define BLOCKD_ENGINE_GPU_SEGMENT_SIZES_H_

#include <cstdint>

#include "engine/gpu/arch/host_device.h"

namespace blockd::gpu::segment {

// Rows of the tile that a block is factored in.
constexpr int TileOf(int64_t n) {
  return n <= 4 ? 4 : n <= 16 ? 16 : n <= 32 ? 32 : n <= 64 ? 64 : 128;
}
// Steps whose blocks are there or under way, with a tile of 4 rows.
inline constexpr int kTinyDepth = 8;

// Shared memory of a thread block that factors: D, C and W, or what warpgroups make of them. Of 4
// rows D, S, C and W in double, and for each step E and D of two parts.
constexpr int64_t FactorSharedBytes(bool is_float, int64_t tile) {
  const int64_t scalar = is_float ? 4 : 8;
  if (tile == 4) return tile * tile * (4 * 8 + 3 * kTinyDepth * scalar);
  const int64_t square = tile * (tile + (is_float ? 8 : 4));
  if (is_float && tile == 64 && kMayHaveWarpgroups) {
    return scalar * (2 * square + 4 * tile * tile + 36 * 64);
  }
  return scalar * 3 * square;
}
// And what a kernel declares besides, at most.
inline constexpr int64_t kFactorDeclaredBytes = 1024;

// Thread blocks that share a multiprocessor, if registers allow: one multiplies while another waits
// for its pivots. AMD's have twice as many threads, and its compilers spill registers where more
// than two wavefronts share a SIMD.
constexpr int FactorResident(int64_t tile) {
  const int resident = tile == 128 ? 1 : tile == 64 ? 2 : tile == 32 ? 4 : tile == 16 ? 8 : 16;
  return kIsAmd && resident > 1 ? resident / 2 : resident;
}

// Blocks up to this size are substituted through by one thread block a segment.
inline constexpr int64_t kLargestSolve = 128;
// Up to this one by a warp, of which a multiprocessor has so many at a time.
inline constexpr int64_t kTinyRows = 8;
inline constexpr int64_t kTinyResident = 16;

}  // namespace blockd::gpu::segment

#endif  // BLOCKD_ENGINE_GPU_SEGMENT_SIZES_H_
