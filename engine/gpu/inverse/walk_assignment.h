// Device code: which segment a thread block walks through, and where its blocks are.
#ifndef BLOCKD_ENGINE_GPU_INVERSE_WALK_ASSIGNMENT_H_
#define BLOCKD_ENGINE_GPU_INVERSE_WALK_ASSIGNMENT_H_

#include <cstddef>

#include "engine/gpu/arch/arch.h"
#include "engine/gpu/inverse/segments_args.h"
#include "engine/gpu/plan/walk.h"

namespace blockd::gpu::inverse {

// The segment that a thread block has. It stands in shared memory: registers are for the blocks.
struct WalkAssignment {
  int level_index = 0;
  int64_t segment = 0;  // of the level
  SegmentRange range;
  int last = 0;  // the interior that the walk ends with; range.count: there is none
  int most = 0;  // of what it comes through, interiors up to this one are wanted
  // Where the k-th interior's blocks are in the factor, and where what comes of them goes; null: it
  // is not wanted. Z of a coupling is that with the interior after it.
  gpu::Walk inverse, next, fill;
  gpu::Walk diagonal, entries, coupling;

  // The base first, then level after level, a level's longest segments first.
  __device__ WalkAssignment(const InvertSegmentsArgs& args, int64_t ticket, int64_t scalar_bytes) {
    while (ticket >=
           args.levels[level_index].segments_before + args.levels[level_index].num_segments) {
      ++level_index;
    }
    const SegmentsLevel& level = args.levels[level_index];
    const int64_t i = ticket - level.segments_before, behind = level.num_segments - 1;
    segment = level.first_segment + (i == 0 ? 0 : i == 1 ? behind : i - 1);
    range = level.shape.segment(segment);
    last = static_cast<int>(LastInterior(range, level.out));
    const int64_t first = range.block(0);
    most = static_cast<int>(range.reversed ? first - level.out.first : level.out.end - 1 - first);
    FindBlocks(args.factor, level, scalar_bytes);
  }

 private:
  __device__ void FindBlocks(const void* factor, const SegmentsLevel& level, int64_t scalar_bytes) {
    // The i-th of blocks that begin so many scalars behind `base`.
    const auto walk = [=](const void* base, int64_t offset, int64_t scalars, int64_t i,
                          int direction) {
      if (base == nullptr) return gpu::Walk();
      const int64_t size = scalars * scalar_bytes;
      return gpu::Walk{
          static_cast<std::byte*>(const_cast<void*>(base)) + offset * scalar_bytes + i * size,
          static_cast<int>(direction * size)};
    };
    const int64_t n = level.shape.n, square = n * n, first = range.block(0) - level.out.first;
    inverse = walk(factor, level.inverse_offset, TriangleSize(n), range.slot, 1);
    next = walk(factor, level.next_offset, square, range.slot, 1);
    fill = walk(factor, level.fill_offset, square, range.fill_slot, 1);
    const int forward = range.reversed ? -1 : 1;
    diagonal = walk(level.out.diagonal, 0, square, first, forward);
    entries = walk(level.out.entries, 0, n, first, forward);
    coupling = walk(level.out.coupling, 0, square, range.reversed ? first - 1 : first, forward);
  }
};

}  // namespace blockd::gpu::inverse

#endif  // BLOCKD_ENGINE_GPU_INVERSE_WALK_ASSIGNMENT_H_
