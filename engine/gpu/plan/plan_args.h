// Functions that turn a plan's levels and a system into arguments of launches.
#ifndef BLOCKD_ENGINE_GPU_PLAN_PLAN_ARGS_H_
#define BLOCKD_ENGINE_GPU_PLAN_PLAN_ARGS_H_

#include <cstdint>

#include "blockd/engine/backend.h"
#include "blockd/engine/elimination_plan.h"
#include "engine/gpu/plan/factor_args.h"
#include "engine/gpu/plan/solve_args.h"

namespace blockd::gpu {

inline LevelShape ShapeOf(const EliminationPlan& plan, const Level& level) {
  LevelShape shape;
  shape.n = plan.shape().block_size;
  shape.separators = static_cast<int64_t>(level.separators.size());
  shape.first_length = level.segments.front().count;
  if (shape.separators == 0) return shape;
  shape.last_length = level.segments.back().count;
  if (shape.separators < 2) return shape;
  shape.middle_length = level.segments[shape.separators - 1].count;
  shape.longer = level.fills - shape.middle_length * (shape.separators - 1);
  return shape;
}

// In the levels above one.
inline int64_t SeparatorsBefore(const EliminationPlan& plan, int64_t level_index) {
  int64_t before = 0;
  for (int64_t l = 0; l < level_index; ++l) {
    before += static_cast<int64_t>(plan.levels()[l].separators.size());
  }
  return before;
}
// A level has one segment more.
inline int64_t SegmentsBefore(const EliminationPlan& plan, int64_t level_index) {
  return SeparatorsBefore(plan, level_index) + level_index;
}

// The arguments for one level, without systems.
inline EliminateArgs ArgsOfLevel(const EliminationPlan& plan, int64_t level_index) {
  const Level& level = plan.levels()[level_index];
  const int64_t n = plan.shape().block_size, square = n * n;
  EliminateArgs args;
  args.level = ShapeOf(plan, level);
  args.next_chain_offset = SeparatorsBefore(plan, level_index) * 3 * square;
  if (level_index > 0) {
    args.chain_offset = SeparatorsBefore(plan, level_index - 1) * 3 * square;
  }
  args.inverse_offset = level.inverse_offset;
  args.next_offset = level.next_offset;
  args.fill_offset = level.fill_offset;
  args.inverse_stride = TriangleScalars(n);
  args.next_stride = square;
  args.fill_stride = square;
  args.segments_before = SegmentsBefore(plan, level_index);
  return args;
}

// The arguments for a solve, without systems.
inline SolveArgs SolveArgsOf(const EliminationPlan& plan, SolvePart part = SolvePart::kWhole) {
  SolveArgs args;
  args.num_levels = static_cast<int32_t>(plan.levels().size());
  args.first_pass = part == SolvePart::kBackward ? args.num_levels : 0;
  args.end_pass = part == SolvePart::kForward ? args.num_levels : args.num_passes();
  args.n = plan.shape().block_size;
  args.separators = plan.separators();
  for (int32_t l = 0; l < args.num_levels; ++l) {
    const Level& level = plan.levels()[l];
    SolveLevel& out = args.levels[l];
    out.shape = ShapeOf(plan, level);
    if (l > 0) out.separators_before = SeparatorsBefore(plan, l - 1);
    out.next_separators_before = SeparatorsBefore(plan, l);
    out.inverse_offset = level.inverse_offset;
    out.next_offset = level.next_offset;
    out.fill_offset = level.fill_offset;
  }
  return args;
}

// Without what it has in scratch.
inline FactorEntry EntryOf(const BlockTridiagonalView& matrix, void* factor, void* chains) {
  FactorEntry entry = {};
  entry.diagonal = matrix.diagonal;
  entry.coupling = matrix.coupling;
  entry.diagonal_index = matrix.diagonal_index;
  entry.coupling_index = matrix.coupling_index;
  entry.factor = factor;
  entry.chains = chains;
  entry.packed_diagonal = matrix.form.diagonal == DiagonalForm::kPackedLower;
  entry.superdiagonal = matrix.form.coupling == CouplingForm::kSuperdiagonal;
  return entry;
}

}  // namespace blockd::gpu

#endif  // BLOCKD_ENGINE_GPU_PLAN_PLAN_ARGS_H_
