// The arguments of kernels that solve: right-hand sides, in a table in device memory, and all
// levels of the plan.
#ifndef BLOCKD_ENGINE_GPU_PLAN_SOLVE_ARGS_H_
#define BLOCKD_ENGINE_GPU_PLAN_SOLVE_ARGS_H_

#include <cstdint>

#include "engine/gpu/plan/level.h"

namespace blockd::gpu {

// Right-hand sides of one factorization, as blockd::SolveSystem.
struct SolveEntry {
  const void* factor;
  void* x;
  int64_t num_rhs;
  void* chains;
};

// A level as a solve sees it.
struct SolveLevel {
  LevelShape shape;
  int64_t separators_before = -1;  // of the levels below this one's chain; -1: the system itself
  int64_t next_separators_before = 0;
  int64_t inverse_offset = 0, next_offset = 0, fill_offset = 0;
  int32_t log_strips = 0;  // of the strips of an item of work; large blocks only
};

// Every level has less than half of the blocks of the one before.
inline constexpr int kMostLevels = 40;

struct SolveTask;

// A solve: pass p goes forward through level p or, from num_levels on, backward through level
// 2 num_levels - 1 - p. Half a solve has some of the passes.
struct SolveArgs {
  SolveLevel levels[kMostLevels];
  int32_t num_levels = 0;
  int32_t first_pass = 0, end_pass = 0;
  int64_t n = 0;
  int64_t separators = 0;  // of all levels
  const SolveEntry* systems = nullptr;
  int64_t num_systems = 0;
  int64_t first_panel = 0, num_panels = 0;  // of columns, of each system
  int64_t panel_columns = 0;                // 8 or 16
  int64_t most_columns = 0;                 // that any panel has
  int64_t vector_rows = 0;                  // that are in shared memory at once; large blocks only
  int64_t table_bytes = 0;                  // of shared memory, for the items; large blocks only
  int32_t pieces_ahead = 0;                 // of a warp's matrices; small blocks only
  // Zero before the launch: how much work has been handed out, and what has been done.
  unsigned long long* tickets = nullptr;
  unsigned* counters = nullptr;
  // The counters of the launch before, which this launch sets back to zero for the next one.
  unsigned* stale = nullptr;
  unsigned stale_words = 0;
  // Unless null, the solve consists of these, and counters are the vectors they leave.
  const SolveTask* tasks = nullptr;
  int64_t num_tasks = 0, num_vectors = 0;

  // Passes of a whole solve.
  BLOCKD_HOST_DEVICE int32_t num_passes() const { return 2 * num_levels; }
  BLOCKD_HOST_DEVICE bool has_pass(int32_t pass) const {
    return first_pass <= pass && pass < end_pass;
  }
  BLOCKD_HOST_DEVICE bool is_forward(int32_t pass) const { return pass < num_levels; }
  BLOCKD_HOST_DEVICE int32_t level_of(int32_t pass) const {
    return pass < num_levels ? pass : 2 * num_levels - 1 - pass;
  }
};

}  // namespace blockd::gpu

#endif  // BLOCKD_ENGINE_GPU_PLAN_SOLVE_ARGS_H_
