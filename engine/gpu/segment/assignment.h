// Device code: which segment a thread block has, and how that went.
#ifndef BLOCKD_ENGINE_GPU_SEGMENT_ASSIGNMENT_H_
#define BLOCKD_ENGINE_GPU_SEGMENT_ASSIGNMENT_H_

#include "engine/gpu/arch/arch.h"
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

  // Level after level, a level's longest segments first, all systems of a segment together.
  __device__ Assignment(const EliminateSegmentsArgs& args, int64_t ticket) {
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
  }

  // Ends last of its system: it has waited for all others, through those that it waited for.
  __device__ bool is_base() const { return level.shape.separators == 0; }
  // In the order of the plan.
  __device__ int64_t position() const { return level.segments_before + segment; }
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
