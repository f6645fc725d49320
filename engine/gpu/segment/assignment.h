// Device code: which segment a thread block has, and how that went.
#ifndef BLOCKD_ENGINE_GPU_SEGMENT_ASSIGNMENT_H_
#define BLOCKD_ENGINE_GPU_SEGMENT_ASSIGNMENT_H_

#include <cstddef>

#include "engine/gpu/arch/arch.h"
#include "engine/gpu/plan/walk.h"
#include "engine/gpu/segment/segment_args.h"

namespace blockd::gpu {

// The segment that a thread block has. It stands in shared memory: registers are for the blocks.
struct Assignment {
  int level_index = 0;
  int64_t segment = 0;
  int64_t system = 0;
  SegmentsLevel level;
  FactorEntry entry;
  SegmentRange range;
  Walk inverse, next, fill;  // in the factor
  // In the chain: the interiors' blocks and that of the block after them, and what couples it to
  // the interior before. Null: those of a matrix with indices. And what is added to a block, bytes
  // further; 0: nothing.
  Walk diagonal, coupling;
  int64_t second = 0;
  bool packed = false;        // the diagonal blocks
  bool across = false;        // coupling(k) stands there transposed
  std::byte* left = nullptr;  // what the left separator gets in the next chain

  // Level after level, a level's longest segments first, all systems of a segment together.
  __device__ Assignment(const EliminateSegmentsArgs& args, int64_t ticket, int64_t scalar_bytes) {
    int64_t segments = args.levels[0].shape.segments();
    while (ticket >= segments * args.num_systems) {
      ticket -= segments * args.num_systems;
      segments = args.levels[++level_index].shape.segments();
    }
    level = args.levels[level_index];
    segment = level.shape.launched(ticket / args.num_systems);
    system = ticket % args.num_systems;
    entry = args.systems[system];
    range = level.shape.segment(segment);
    FindBlocks(args, scalar_bytes);
  }

  // Ends last of its system: it has waited for all others, through those that it waited for.
  __device__ bool is_base() const { return level.shape.separators == 0; }
  // In the order of the plan.
  __device__ int64_t position() const { return level.segments_before + segment; }

 private:
  __device__ void FindBlocks(const EliminateSegmentsArgs& args, int64_t scalar_bytes) {
    const int64_t n = level.shape.n, first = range.block(0), step = range.reversed ? -1 : 1;
    const int64_t square = n * n * scalar_bytes;  // bytes of a block
    const auto kept = [&](int64_t offset, int64_t slot, int64_t stride) {
      return Walk{static_cast<std::byte*>(entry.factor) + (offset + slot * stride) * scalar_bytes,
                  static_cast<int>(stride * scalar_bytes)};
    };
    inverse = kept(level.inverse_offset, range.slot, args.inverse_stride);
    next = kept(level.next_offset, range.slot, args.next_stride);
    fill = kept(level.fill_offset, range.fill_slot, args.fill_stride);
    // As numbers, for those that are nowhere (a condition here costs the loop over blocks
    // registers).
    left = reinterpret_cast<std::byte*>(reinterpret_cast<uintptr_t>(entry.chains) +
                                        level.next_chain_offset * scalar_bytes +
                                        range.left * 3 * square);
    const auto walk = [&](const void* base, int64_t block, int64_t size) {
      return Walk{static_cast<std::byte*>(const_cast<void*>(base)) + block * size,
                  static_cast<int>(step * size)};
    };
    // A coupling block of a reversed segment is the one before the interior's.
    const int64_t coupled = range.reversed ? first - 1 : first;
    across = range.reversed;
    if (level.chain_offset >= 0) {
      const std::byte* const chain =
          static_cast<std::byte*>(entry.chains) + level.chain_offset * scalar_bytes;
      diagonal = walk(chain, first, 3 * square);
      coupling = walk(chain + 2 * square, coupled, 3 * square);
      second = square;
      return;
    }
    packed = entry.packed_diagonal != 0;
    across ^= entry.superdiagonal != 0;
    const int64_t size = packed ? n * (n + 1) / 2 * scalar_bytes : square;
    if (entry.diagonal_index == nullptr) diagonal = walk(entry.diagonal, first, size);
    if (entry.coupling_index == nullptr) coupling = walk(entry.coupling, coupled, square);
  }
};

// How it went. Of one thread block, in shared memory.
struct Outcome {
  int failed;       // row of a bad pivot, -1: none
  unsigned first;   // for the base: position of the first other segment that has failed
  int64_t value;    // what this segment's word says if a pivot of it is bad, else 0
  int first_warp;   // that counts as warp 0
  uint32_t growth;  // the largest square of the growth so far, bits of a float; for the base of all
};
inline constexpr unsigned kNobody = ~0u;

// Which of the `others` has failed first, and their growth. All have ended; a thread asks for eight
// of them at once. A call, so that the registers of what surrounds it stay as they are.
__device__ __noinline__ inline void FindOutcome(const int64_t* info, int others, int threads,
                                                Outcome* outcome) {
  constexpr int kAtOnce = 8;
  int first = others;
  int64_t most = 0;
#pragma unroll 1
  for (int i = threadIdx.x; i < others; i += kAtOnce * threads) {
    int64_t values[kAtOnce];
#pragma unroll
    for (int u = 0; u < kAtOnce; ++u) {
      const int position = i + u * threads;
      values[u] = LoadFresh(info + (position < others ? position : others - 1));
    }
#pragma unroll
    for (int u = kAtOnce - 1; u >= 0; --u) {
      const int position = i + u * threads;
      if (IsFailure(values[u]) && position < first) first = position;
      if (!IsFailure(values[u]) && values[u] > most) most = values[u];
    }
  }
  if (first < others) atomicMin(&outcome->first, static_cast<unsigned>(first));
  if (most > 0) atomicMax(&outcome->growth, static_cast<uint32_t>(most));
}

}  // namespace blockd::gpu

#endif  // BLOCKD_ENGINE_GPU_SEGMENT_ASSIGNMENT_H_
