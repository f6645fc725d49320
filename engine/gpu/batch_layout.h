// Where the tables, counters and scratch of a batch of systems lie, and how it is cut into
// launches.
#ifndef BLOCKD_ENGINE_GPU_BATCH_LAYOUT_H_
#define BLOCKD_ENGINE_GPU_BATCH_LAYOUT_H_

#include <algorithm>
#include <cstdint>

#include "blockd/engine/elimination_plan.h"
#include "blockd/engine/memory_pool.h"
#include "engine/gpu/plan/plan_args.h"
#include "engine/gpu/runtime/device.h"
#include "engine/gpu/task_list/factor_tasks.h"
#include "engine/gpu/task_list/task_lists.h"

namespace blockd::gpu {

// Systems of one launch: a grid's dimensions end at 65535.
inline constexpr int64_t kSystemsALaunch = 32768;
// The workspace: first the tables of systems to factor and to solve with; then what a launch leaves
// as the next one wants it, a ticket and flags of small factorizations and what solves count in;
// the rest is for one call at a time.
inline constexpr int64_t kTableBytes = int64_t{3} << 20;
static_assert(kSystemsALaunch * sizeof(FactorEntry) <= kTableBytes);
static_assert(kSystemsALaunch * sizeof(SolveEntry) <= kTableBytes);
inline constexpr int64_t kTicketOffset = 2 * kTableBytes, kTicketBytes = 256;
inline constexpr int64_t kFlags = int64_t{2} << 20;
inline constexpr int64_t kFlagsOffset = kTicketOffset + kTicketBytes;
// Of these two, launches take turns: each clears what the one before used.
inline constexpr int64_t kSolveOffset = kFlagsOffset + kFlags * int64_t{sizeof(uint32_t)};
inline constexpr int64_t kSolveBytes = int64_t{32} << 20;
// Tasks of plans with few blocks.
inline constexpr int64_t kTasksOffset = kSolveOffset + 2 * kSolveBytes;
inline constexpr int64_t kCallOffset = kTasksOffset + TaskLists::kMost * TaskLists::kListBytes;
inline constexpr int64_t kCallBytes = Device::kWorkspaceBytes - kCallOffset;
// Systems whose failures kernels write where the host reads them.
inline constexpr int64_t kPinnedFailures = Device::kResultBytes / int64_t{sizeof(FirstFailure)};

// Tiles of a system, counted as rows of tiles of its blocks by themselves.
inline int64_t FewTiles(const Shape& shape) {
  const int64_t tiles = (shape.block_size + FactorTask::kTile - 1) / FactorTask::kTile;
  return shape.num_blocks * tiles * tiles;
}
// Whether a factorization consists of tasks, whatever its systems: in float32, of systems with so
// few tiles that they are soon listed.
inline constexpr int64_t kMostFewTiles = 512;
static_assert(kMostFewTiles * FactorTasks::kMostOfATile * int64_t{sizeof(FactorTask)} <=
              TaskLists::kListBytes);
inline bool HasFactorTasks(const Shape& shape) {
  return shape.scalar == Scalar::kFloat32 &&
         shape.block_size > FactorTask::kTile + FactorTask::kTile / 2 &&
         shape.block_size <= FactorTasks::kMostTiles * FactorTask::kTile &&
         FewTiles(shape) <= kMostFewTiles;
}
// Of all systems of a launch; more are factored one group after another, in the same scratch.
inline constexpr int64_t kTilesALaunch = 4096;

// Of one segment of one system with large blocks.
inline int64_t LargeScratchBytes(const Shape& shape) {
  return LargeScratchScalars(shape.block_size) * ScalarBytes(shape.scalar);
}

// Launches of a factorization of large blocks, about. A plan with very many is not recorded: that
// would take long, and in each of its calls the device is behind the host anyway.
inline constexpr int64_t kMostLaunchesAGraph = 1024;
inline int64_t LargeLaunches(const EliminationPlan& plan) {
  const int64_t tiles = (plan.shape().block_size + 127) / 128;
  int64_t steps = 0;
  for (const Level& level : plan.levels()) {
    const LevelShape shape = ShapeOf(plan, level);
    steps += 1 + std::max({shape.first_length, shape.last_length, shape.longest_middle()});
  }
  return steps * (2 * tiles + 3);
}

// Of a factorization that takes many milliseconds: its levels are graphs of their own, and the host
// keeps no more than one of them ahead of the device. So it does with the launches of a solve, none
// of which has more.
inline constexpr double kLongFlops = 2e11;

// What a factorization has in its scratch, and how it is cut into launches.
struct FactorScratch {
  int64_t info_stride = 0;                     // segments of all levels
  int64_t systems_a_launch = kSystemsALaunch;  // that have scratch
  int64_t levels_a_launch = 1;
  bool has_graph = false;                     // one for levels_a_launch levels
  bool is_long = false;                       // so that it can be stopped between levels
  int64_t found_offset = 0, found_bytes = 0;  // FirstFailures of a batch with too many to be pinned
  int64_t blocks_offset = 0, blocks_stride = 0, bytes = 0;

  // small: one thread block has a segment. few: there are tasks.
  FactorScratch(const EliminationPlan& plan, int64_t systems, bool small, bool few) {
    int64_t most = 0;
    for (const Level& level : plan.levels()) {
      const int64_t segments = static_cast<int64_t>(level.segments.size());
      info_stride += segments;
      most = std::max(most, segments);
    }
    if (small) {
      // A thread block and a flag for each segment of each system. A level alone needs no flags.
      systems_a_launch = std::clamp<int64_t>(kFlags / info_stride, 1, kSystemsALaunch);
      if (info_stride <= kFlags) levels_a_launch = kMostLevelsALaunch;
    } else if (few) {
      levels_a_launch = static_cast<int64_t>(plan.levels().size());
      systems_a_launch = kTilesALaunch / FewTiles(plan.shape());
    } else if (LargeLaunches(plan) <= kMostLaunchesAGraph) {
      has_graph = true;
      is_long = plan.factor_flops() * static_cast<double>(systems) > kLongFlops;
      if (!is_long) levels_a_launch = static_cast<int64_t>(plan.levels().size());
    }
    found_offset = info_stride * systems * int64_t{sizeof(int64_t)};
    if (systems > kPinnedFailures) found_bytes = systems * int64_t{sizeof(FirstFailure)};
    blocks_offset = MemoryPool::Rounded(found_offset + found_bytes);
    const Shape& shape = plan.shape();
    if (few) {
      blocks_stride = most * FewScratchScalars(shape.block_size) * ScalarBytes(shape.scalar);
    } else if (!small) {
      blocks_stride = most * LargeScratchBytes(shape);
    }
    bytes = blocks_offset + std::min(systems, systems_a_launch) * blocks_stride;
  }
};

// No system and panel of columns has more items of work in a solve: for each strip of 16 rows of
// each block two or three products forward and two backward.
inline int64_t MostSolveItems(const SolveArgs& args) {
  int64_t blocks = 0;
  for (int32_t l = 0; l < args.num_levels; ++l) {
    const LevelShape& shape = args.levels[l].shape;
    blocks += shape.first_length + shape.last_length;
    if (shape.separators > 1) blocks += (shape.separators - 1) * shape.longest_middle();
  }
  return 5 * blocks * ((args.n + 15) / 16);
}

// Whether a solve consists of tasks, whatever its systems and columns: in float32, of systems with
// so few blocks that 16 columns of all vectors have half of the room where solves count.
inline bool HasTasks(const Shape& shape) {
  const int64_t n = shape.block_size, vectors = 5 * shape.num_blocks;
  return shape.scalar == Scalar::kFloat32 && n > kLargestSmallSolve && n <= SolveTask::kMostRows &&
         n % 4 == 0 &&
         vectors * n * SolveTask::kMostColumns * int64_t{sizeof(float)} < kSolveBytes / 2 &&
         vectors * SolveTask::kMostParts * int64_t{sizeof(SolveTask)} <= TaskLists::kListBytes / 4;
}

}  // namespace blockd::gpu

#endif  // BLOCKD_ENGINE_GPU_BATCH_LAYOUT_H_
