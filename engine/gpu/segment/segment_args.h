// The arguments of a launch that eliminates segments: several levels of a plan at a time.
#ifndef BLOCKD_ENGINE_GPU_SEGMENT_SEGMENT_ARGS_H_
#define BLOCKD_ENGINE_GPU_SEGMENT_SEGMENT_ARGS_H_

#include <cstdint>

#include "engine/gpu/plan/factor_args.h"

namespace blockd::gpu {

// Levels of small blocks that one launch eliminates: those of most plans.
inline constexpr int kMostLevelsALaunch = 16;

// One of these levels: where it stands in a system's arrays, as in EliminateArgs.
struct SegmentsLevel {
  LevelShape shape;
  int64_t chain_offset = -1, next_chain_offset = 0;
  int64_t inverse_offset = 0, next_offset = 0, fill_offset = 0;
  int64_t segments_before = 0;  // in the levels above it, all of the plan's
};

struct EliminateSegmentsArgs {
  SegmentsLevel levels[kMostLevelsALaunch];
  int num_levels = 0;
  const FactorEntry* systems = nullptr;
  int64_t num_systems = 0;
  int64_t inverse_stride = 0, next_stride = 0, fill_stride = 0;
  // For several levels: done[system * done_stride + segment] turns `epoch`, which no launch before
  // has used, when what the segment leaves on its separators is there.
  uint32_t* done = nullptr;
  int64_t done_stride = 0;
  uint32_t epoch = 0;
  uint32_t* ticket = nullptr;  // counts the thread blocks that have begun; zero before and after
};

}  // namespace blockd::gpu

#endif  // BLOCKD_ENGINE_GPU_SEGMENT_SEGMENT_ARGS_H_
