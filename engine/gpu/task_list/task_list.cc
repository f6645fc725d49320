#include "engine/gpu/task_list/task_list.h"

#include <algorithm>
#include <cmath>

#include "engine/gpu/runtime/workspace.h"
#include "engine/gpu/task_list/factor_tasks.h"
#include "engine/gpu/task_list/sizes.h"
#include "engine/gpu/task_list/solve_task.h"

namespace blockd::gpu::task_list {
namespace {

constexpr int64_t kMostTiles = 512;
static_assert(kMostTiles * FactorTasks::kMostOfATile * int64_t{sizeof(FactorTask)} <=
              workspace::kListBytes);

}  // namespace

int64_t Tiles(const Shape& shape) {
  const int64_t tiles = (shape.block_size + FactorTask::kTile - 1) / FactorTask::kTile;
  return shape.num_blocks * tiles * tiles;
}

bool FitsFactor(const Shape& shape, const DeviceLimits& limits) {
  return shape.scalar == Scalar::kFloat32 &&
         shape.block_size > FactorTask::kTile + FactorTask::kTile / 2 &&
         shape.block_size <= FactorTasks::kMostTiles * FactorTask::kTile &&
         Tiles(shape) <= kMostTiles &&
         kFactorSharedBytes + kFactorDeclaredBytes <= limits.block_shared_bytes;
}

bool FitsSolve(const Shape& shape) {
  const int64_t n = shape.block_size, vectors = 5 * shape.num_blocks;
  return shape.scalar == Scalar::kFloat32 && n <= SolveTask::kMostRows && n % 4 == 0 &&
         vectors * n * SolveTask::kMostColumns * int64_t{sizeof(float)} <
             workspace::kCountersBytes / 2 &&
         vectors * SolveTask::kMostParts * int64_t{sizeof(SolveTask)} <= workspace::kListBytes / 4;
}

int64_t ScratchBytes(const EliminationPlan& plan) {
  size_t segments = 0;
  for (const Level& level : plan.levels()) segments = std::max(segments, level.segments.size());
  return static_cast<int64_t>(segments) * FactorTasks::ScratchScalars(plan.shape().block_size) *
         int64_t{sizeof(float)};
}

void SetFactorCosts(const Shape& shape, const DeviceLimits& limits, CostModel& costs) {
  const Architecture& device = limits.architecture;
  const auto n = static_cast<double>(shape.block_size);
  // A tile takes the same time, whether it is whole or not.
  const double tiles = std::ceil(n / FactorTask::kTile) * FactorTask::kTile / n;
  costs.spread_seconds_per_row = 2.04e-7 * tiles * device.step_seconds;
  costs.spread_seconds_per_entry = 1.13e-10 * tiles * tiles * device.step_seconds;
  costs.spread_flops_per_second = 8.02e13 * device.float_rate;
  costs.spread_half_rate_block_size = 306;
  costs.spread_level_seconds = 4.8e-6 * device.step_seconds;
}

void SetSolveCosts(const DeviceLimits& limits, CostModel& costs) {
  costs.device_flops_per_second = 1.5e13 * limits.architecture.float_rate;
  costs.solve_step_seconds = 1.6e-6 * limits.architecture.step_seconds;
  costs.solve_step_seconds_per_row = 0;
  costs.solve_level_seconds = 1e-6 * limits.architecture.step_seconds;
}

}  // namespace blockd::gpu::task_list
