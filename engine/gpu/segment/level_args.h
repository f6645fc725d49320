// The arguments of a launch that eliminates segments, from a plan's levels.
#ifndef BLOCKD_ENGINE_GPU_SEGMENT_LEVEL_ARGS_H_
#define BLOCKD_ENGINE_GPU_SEGMENT_LEVEL_ARGS_H_

#include <algorithm>
#include <cstdint>

#include "engine/gpu/plan/plan_args.h"
#include "engine/gpu/segment/segment_args.h"

namespace blockd::gpu {

// The arguments for the levels from first_level on, at most most_levels, without systems.
inline EliminateSegmentsArgs ArgsOfLevels(const EliminationPlan& plan, int64_t first_level,
                                          int64_t most_levels) {
  const int64_t levels = static_cast<int64_t>(plan.levels().size()) - first_level;
  EliminateSegmentsArgs args;
  args.num_levels = static_cast<int>(std::min(levels, most_levels));
  for (int i = 0; i < args.num_levels; ++i) {
    const EliminateArgs level = ArgsOfLevel(plan, first_level + i);
    args.levels[i] = {.shape = level.level,
                      .chain_offset = level.chain_offset,
                      .next_chain_offset = level.next_chain_offset,
                      .inverse_offset = level.inverse_offset,
                      .next_offset = level.next_offset,
                      .fill_offset = level.fill_offset,
                      .segments_before = level.segments_before};
    args.inverse_stride = level.inverse_stride;
    args.next_stride = level.next_stride;
    args.fill_stride = level.fill_stride;
  }
  return args;
}

}  // namespace blockd::gpu

#endif  // BLOCKD_ENGINE_GPU_SEGMENT_LEVEL_ARGS_H_
