// What systems cost on a GPU: fitted on one H200, see README.md beside this file.
#ifndef BLOCKD_ENGINE_GPU_COSTS_H_
#define BLOCKD_ENGINE_GPU_COSTS_H_

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "blockd/engine/block_tridiagonal.h"
#include "blockd/engine/elimination_plan.h"
#include "engine/gpu/batch_layout.h"
#include "engine/gpu/launch.h"

namespace blockd::gpu {

inline CostModel CostsOf(const Shape& shape, const SolveLimits& limits) {
  const bool is_float = shape.scalar == Scalar::kFloat32;
  const double speed = is_float ? 1.3 : 1;  // of arithmetic
  const auto multiprocessors = static_cast<double>(limits.multiprocessors);
  const auto n = static_cast<double>(shape.block_size);
  CostModel costs;
  costs.lanes = multiprocessors *
                static_cast<double>(SmallResident(is_float, shape.block_size, limits.shared_bytes));
  costs.solve_lanes = 2 * multiprocessors * std::clamp(64 / n, 1.0, 4.0);
  costs.spread = shape.block_size > LargestSmallBlock(is_float, limits.block_shared_bytes);
  costs.lane_flops_per_second = 8e12 * speed;
  costs.device_flops_per_second = 5e13 * speed;
  costs.half_rate_block_size = 64;
  costs.bytes_per_second = 4.2e12;
  // Of small blocks, beside one another; those of float that fill a multiprocessor take longer.
  const double pace = 0.8 + 0.155 * std::max(0.0, n / 64 - 1);
  costs.step_seconds = 5e-7 * pace;
  costs.step_seconds_per_row = 2.8e-7 * pace;
  costs.fill_seconds_per_row = 3e-8 * pace;
  costs.level_seconds = (1e-6 + 1.5e-9 * n * n) * pace;
  const bool in_groups = is_float && shape.block_size > 32 && shape.block_size <= 64;
  if (in_groups) {
    // What takes time is a tile, whole or not. Warpgroups form a fill beside the inverse, which
    // takes longer then.
    costs.step_seconds = 9.6e-6;
    costs.step_seconds_per_row = 0;
    costs.fill_seconds_per_row = 2.2e-6 / n;
    costs.level_seconds = 1.5e-6;
  }
  costs.spread_seconds_per_row = is_float ? 1.66e-7 : 1.74e-7;
  costs.spread_seconds_per_entry = is_float ? 6.4e-10 : 8.72e-10;
  costs.spread_flops_per_second = is_float ? 1.25e14 : 5.43e13;
  costs.spread_half_rate_block_size = is_float ? 467 : 312;
  costs.spread_level_seconds = is_float ? 1.11e-5 : 1.18e-5;
  if (HasFactorTasks(shape)) {
    // What takes time is a tile, whole or not.
    const double tiles = std::ceil(n / FactorTask::kTile) * FactorTask::kTile / n;
    costs.spread_seconds_per_row = 2.04e-7 * tiles;
    costs.spread_seconds_per_entry = 1.13e-10 * tiles * tiles;
    costs.spread_flops_per_second = 8.02e13;
    costs.spread_half_rate_block_size = 306;
    costs.spread_level_seconds = 4.8e-6;
  }
  costs.solve_step_seconds = 8.5e-7;
  costs.solve_step_seconds_per_row = 2.2e-8;
  costs.solve_level_seconds = in_groups ? 2.5e-6 : 3.5e-6;
  if (HasTasks(shape)) {
    costs.device_flops_per_second = 1.5e13;
    costs.solve_step_seconds = 1.6e-6;
    costs.solve_step_seconds_per_row = 0;
    costs.solve_level_seconds = 1e-6;
  }
  costs.system_seconds = 1e-7;
  return costs;
}

}  // namespace blockd::gpu

#endif  // BLOCKD_ENGINE_GPU_COSTS_H_
