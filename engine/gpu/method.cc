#include "engine/gpu/method.h"

#include "engine/gpu/lockstep/lockstep.h"
#include "engine/gpu/segment/segment.h"
#include "engine/gpu/task_list/task_list.h"

namespace blockd::gpu {

Method FactorMethod(const Shape& shape, const DeviceLimits& limits) {
  if (segment::FitsFactor(shape, limits)) return Method::kSegment;
  if (task_list::FitsFactor(shape, limits)) return Method::kTaskList;
  return Method::kLockstep;
}

Method SolveMethod(const Shape& shape, const DeviceLimits&) {
  if (segment::FitsSolve(shape)) return Method::kSegment;
  if (task_list::FitsSolve(shape)) return Method::kTaskList;
  return Method::kLockstep;
}

Method HalfSolveMethod(const Shape& shape) {
  return segment::FitsSolve(shape) ? Method::kSegment : Method::kLockstep;
}

CostModel CostsOf(const Shape& shape, const DeviceLimits& limits) {
  const Architecture& device = limits.architecture;
  const bool is_float = shape.scalar == Scalar::kFloat32;
  const double speed = is_float ? 1.3 * device.float_rate : device.double_rate;
  const Method factor = FactorMethod(shape, limits);
  CostModel costs;
  costs.spread = factor != Method::kSegment;
  costs.lane_flops_per_second = 8e12 * speed;
  costs.device_flops_per_second = 5e13 * speed;
  costs.half_rate_block_size = 64;
  costs.bytes_per_second = 4.2e12 * device.memory_rate;
  costs.system_seconds = 1e-7;  // of the host
  segment::SetFactorCosts(shape, limits, costs);
  lockstep::SetFactorCosts(shape, limits, costs);
  if (factor == Method::kTaskList) task_list::SetFactorCosts(shape, limits, costs);
  // Solves in lock-step cost what those by segments do.
  segment::SetSolveCosts(shape, limits, costs);
  if (SolveMethod(shape, limits) == Method::kTaskList) task_list::SetSolveCosts(limits, costs);
  return costs;
}

// The multiples below are ratios to an H200's 67 TF/s in FP64, 165 TF/s in float of three tf32
// products and 4.8 TB/s. Vendors publish of an A100, an MI210, an MI300X and an MI355X: matrix
// instructions in FP64 (19.5, 45.3, 163.4, 78.6 TF/s) and float (52, 45.3, 163.4, 157.3), memory
// (2.0, 1.6, 5.3, 8.0 TB/s). The time of a step is guessed from clocks.
Architecture CudaArchitecture(int major, int minor) {
  (void)minor;
  if (major >= 9) return {};
  return {"sm_80", false, 0.29, 0.32, 0.42, 1.4};
}

Architecture HipArchitecture(std::string_view instruction_set) {
  const std::string_view name = instruction_set.substr(0, instruction_set.find(':'));
  if (name == "gfx942") return {"gfx942", false, 2.4, 0.99, 1.1, 1.8};
  if (name == "gfx950") return {"gfx950", false, 1.2, 0.95, 1.7, 1.6};
  return {"gfx90a", false, 0.68, 0.27, 0.33, 2};
}

}  // namespace blockd::gpu
