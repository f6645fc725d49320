// The arguments of the launch that walks through segments of small blocks: several levels of a
// plan, the base first.
#ifndef BLOCKD_ENGINE_GPU_INVERSE_SEGMENTS_ARGS_H_
#define BLOCKD_ENGINE_GPU_INVERSE_SEGMENTS_ARGS_H_

#include <cstdint>

#include "engine/gpu/inverse/inverse_args.h"

namespace blockd::gpu::inverse {

// Levels of one launch: those of most plans.
inline constexpr int kMostLevelsALaunch = 16;

// One of them, and which of its segments are walked through.
struct SegmentsLevel {
  LevelShape shape;
  int64_t inverse_offset = 0, next_offset = 0, fill_offset = 0;
  Chain out;
  int64_t first_segment = 0, num_segments = 0;
  int64_t segments_before = 0;  // of this launch
};

struct InvertSegmentsArgs {
  SegmentsLevel levels[kMostLevelsALaunch];
  int32_t num_levels = 0;
  int64_t segments = 0;  // of all levels
  // Tickets that are taken: one for each segment or, where a thread block goes on with another
  // segment, one more by each thread block.
  int64_t tickets = 0;
  Chain above;  // of the level above the first one
  const void* factor = nullptr;
  // done[i] turns `epoch`, which no launch before has used, when what the i-th segment leaves in
  // its level's chain is there.
  uint32_t* done = nullptr;
  uint32_t epoch = 0;
  uint32_t* ticket = nullptr;  // counts what thread blocks have taken; zero before and after
};

// Rows of the tile that a block is in, and the largest one.
BLOCKD_HOST_DEVICE constexpr int WalkTile(int64_t n) {
  return n <= 8 ? 8 : n <= 16 ? 16 : n <= 32 ? 32 : 64;
}
inline constexpr int64_t kLargestWalked = 64;

// Sets of V, C and W that a thread block has in shared memory, beside Z(r,r), Z(r,l) and Z(l,l); a
// power of two. The shorter a step is, the more steps ahead they are fetched.
BLOCKD_HOST_DEVICE constexpr int WalkSets(int64_t tile) {
  return tile == 8 ? 4 : tile == 16 ? 2 : 1;
}
BLOCKD_HOST_DEVICE constexpr int64_t WalkSharedBytes(bool is_float, int64_t tile) {
  return (3 + 3 * WalkSets(tile)) * tile * (is_float ? (tile + 8) * 4 : (tile + 4) * 8);
}
// And what the kernel declares besides, at most.
inline constexpr int64_t kWalkDeclaredBytes = 1024;

// Thread blocks that share a multiprocessor, if shared memory and registers allow.
constexpr int WalkResident(bool is_float, int64_t tile) {
  const int resident = tile == 64 ? (is_float ? 2 : 1) : tile == 32 ? 4 : tile == 16 ? 8 : 16;
  return kIsAmd && resident > 1 ? resident / 2 : resident;
}

}  // namespace blockd::gpu::inverse

#endif  // BLOCKD_ENGINE_GPU_INVERSE_SEGMENTS_ARGS_H_
