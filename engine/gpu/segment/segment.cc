#include "engine/gpu/segment/segment.h"

#include <algorithm>
#include <cmath>

#include "engine/gpu/segment/sizes.h"

namespace blockd::gpu::segment {
namespace {

bool IsFloat(const Shape& shape) { return shape.scalar == Scalar::kFloat32; }

// True if warpgroups form the products. A tile then takes the same time however full it is.
bool IsByWarpgroups(const Shape& shape) {
  return IsFloat(shape) && shape.block_size > 32 && shape.block_size <= 64;
}

// Thread blocks that a multiprocessor has at a time.
int64_t Resident(const Shape& shape, const DeviceLimits& limits) {
  const int tile = TileOf(shape.block_size);
  const int64_t fit = limits.shared_bytes / FactorSharedBytes(IsFloat(shape), tile);
  return std::clamp<int64_t>(fit, 1, FactorResident(tile));
}

// The costs of a chain's first level decide: a walk that takes longer than this leaves solves,
// which wait for thread blocks to end, too little room.
constexpr double kLongWalkSeconds = 1e-3;
// The share of the places for thread blocks that is then left to solves: one in so many.
constexpr double kRoom = 32;

}  // namespace

bool FitsFactor(const Shape& shape, const DeviceLimits& limits) {
  const int64_t smallest = IsFloat(shape) ? 32 : 16, largest = IsFloat(shape) ? 128 : 64;
  if (shape.block_size <= smallest) return true;
  if (shape.block_size > largest) return false;
  return FactorSharedBytes(IsFloat(shape), TileOf(shape.block_size)) + kFactorDeclaredBytes <=
         limits.block_shared_bytes;
}

bool FitsSolve(const Shape& shape) { return shape.block_size <= kLargestSolve; }

void SetFactorCosts(const Shape& shape, const DeviceLimits& limits, CostModel& costs) {
  const auto n = static_cast<double>(shape.block_size);
  const double slower = limits.architecture.step_seconds;
  costs.lanes =
      static_cast<double>(limits.multiprocessors) * static_cast<double>(Resident(shape, limits));
  // Tiles of float that fill a multiprocessor take longer.
  const double pace = (0.8 + 0.155 * std::max(0.0, n / 64 - 1)) * slower;
  costs.step_seconds = 5e-7 * pace;
  costs.step_seconds_per_row = 2.8e-7 * pace;
  costs.fill_seconds_per_row = 3e-8 * pace;
  costs.level_seconds = (1e-6 + 1.5e-9 * n * n) * pace;
  if (shape.block_size <= 4) {
    // The costs of few segments; 16 on a multiprocessor with n = 4 take two to three times as long.
    costs.step_seconds = 7.5e-7 * slower;
    costs.step_seconds_per_row = 0;
    costs.fill_seconds_per_row = 0;
    costs.level_seconds = 3.6e-6 * slower;
  }
  if (IsByWarpgroups(shape)) {
    // They form a fill beside the inverse, which takes longer then.
    costs.step_seconds = 9.6e-6 * slower;
    costs.step_seconds_per_row = 0;
    costs.fill_seconds_per_row = 2.2e-6 / n * slower;
    costs.level_seconds = 1.5e-6 * slower;
  }
  if (costs.lanes > 1 &&
      WalksLong(shape, shape.num_blocks / static_cast<int64_t>(costs.lanes), limits)) {
    costs.lanes -= std::ceil(costs.lanes / kRoom);
  }
}

bool WalksLong(const Shape& shape, int64_t blocks, const DeviceLimits& limits) {
  const double step = 5e-7 + 2.8e-7 * static_cast<double>(shape.block_size);
  return static_cast<double>(blocks) * step * limits.architecture.step_seconds > kLongWalkSeconds;
}

void SetSolveCosts(const Shape& shape, const DeviceLimits& limits, CostModel& costs) {
  const auto n = static_cast<double>(shape.block_size);
  const double slower = limits.architecture.step_seconds;
  costs.solve_lanes =
      2 * static_cast<double>(limits.multiprocessors) * std::clamp(64 / n, 1.0, 4.0);
  costs.solve_step_seconds = 8.5e-7 * slower;
  costs.solve_step_seconds_per_row = 2.2e-8 * slower;
  costs.solve_level_seconds = (IsByWarpgroups(shape) ? 2.5e-6 : 3.5e-6) * slower;
  if (shape.block_size <= kTinyRows) {
    costs.solve_lanes = static_cast<double>(kTinyResident * limits.multiprocessors);
    costs.solve_step_seconds = 2e-7 * slower;
    costs.solve_step_seconds_per_row = 5e-8 * slower;
  }
}

}  // namespace blockd::gpu::segment
