#include "engine/gpu/lockstep/lockstep.h"

#include <algorithm>

#include "engine/gpu/lockstep/sizes.h"

namespace blockd::gpu::lockstep {
namespace {

// Rows that n takes in whole tiles, cubed.
double CubeInTiles(int64_t n, int64_t tile) {
  const int64_t rows = (n + tile - 1) / tile * tile;
  const auto side = static_cast<double>(rows);
  return side * side * side;
}

}  // namespace

int TileOf(const Shape& shape, const DeviceLimits& limits) {
  // The larger tiles are faster, but waste more of a block that does not fill them.
  const int64_t n = shape.block_size;
  const bool fits = WideTileBytes(shape.scalar == Scalar::kFloat32) <= limits.block_shared_bytes;
  return fits && CubeInTiles(n, 128) <= 2 * CubeInTiles(n, 64) ? 128 : 64;
}

int64_t ScratchBytes(const EliminationPlan& plan) {
  size_t segments = 0;
  for (const Level& level : plan.levels()) segments = std::max(segments, level.segments.size());
  const Shape& shape = plan.shape();
  return static_cast<int64_t>(segments) * ScratchScalars(shape.block_size) *
         ScalarBytes(shape.scalar);
}

int64_t FactorLaunches(const EliminationPlan& plan) {
  const int64_t tiles = (plan.shape().block_size + 127) / 128;
  int64_t steps = 0;
  for (const Level& level : plan.levels()) {
    int64_t longest = 0;
    for (const Segment& segment : level.segments) longest = std::max(longest, segment.count);
    steps += 1 + longest;
  }
  return steps * (2 * tiles + 3);
}

void SetFactorCosts(const Shape& shape, const DeviceLimits& limits, CostModel& costs) {
  const bool is_float = shape.scalar == Scalar::kFloat32;
  const Architecture& device = limits.architecture;
  costs.spread_seconds_per_row = (is_float ? 1.66e-7 : 1.74e-7) * device.step_seconds;
  costs.spread_seconds_per_entry = (is_float ? 6.4e-10 : 8.72e-10) * device.step_seconds;
  costs.spread_flops_per_second =
      is_float ? 1.25e14 * device.float_rate : 5.43e13 * device.double_rate;
  costs.spread_half_rate_block_size = is_float ? 467 : 312;
  costs.spread_level_seconds = (is_float ? 1.11e-5 : 1.18e-5) * device.step_seconds;
}

}  // namespace blockd::gpu::lockstep
