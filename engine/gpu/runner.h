// How a method runs: the host's part of it, which starts its kernels. Each method's folder has one,
// made by its MakeRunner.
#ifndef BLOCKD_ENGINE_GPU_RUNNER_H_
#define BLOCKD_ENGINE_GPU_RUNNER_H_

#include <cstdint>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "blockd/engine/backend.h"
#include "engine/gpu/arch/launch_result.h"
#include "engine/gpu/device_limits.h"
#include "engine/gpu/plan/factor_args.h"
#include "engine/gpu/plan/factor_scratch.h"
#include "engine/gpu/plan/solve_args.h"
#include "engine/gpu/runtime/counters.h"
#include "engine/gpu/runtime/device.h"

namespace blockd::gpu {

// A factorization of more flops, which takes some milliseconds, can be stopped between its levels,
// and the host keeps no more than one of them ahead of the device. So it does with the launches of
// a solve, none of which has more.
inline constexpr double kLongFlops = 2e11;

// Systems of a batch that are in the table of systems.
struct FactorGroup {
  const FactorBatch& batch;
  const FactorScratch& scratch;
  const FactorEntry* systems;  // on the device, `count` of them
  int64_t first, count;        // of the batch

  const EliminationPlan& plan() const { return *batch.plan; }
};

// From one thread at a time, with the device chosen. Asynchronous.
class Runner {
 public:
  virtual ~Runner() = default;

  virtual FactorNeeds Needs(const EliminationPlan& plan) const = 0;
  // CANCELLED once `wanted` says no, which is asked before each of its launches but the first.
  virtual absl::Status Factor(const FactorGroup& group, absl::FunctionRef<bool()> wanted) = 0;

  // The levels of the plan are in args. Sets what else the method has there, if anything, and
  // returns the bytes that it counts in for a system and a panel of so many columns; no system has
  // more than most_columns.
  virtual absl::StatusOr<int64_t> PrepareSolve(const SolveBatch& batch, int64_t most_columns,
                                               int64_t panel_columns, SolveArgs& args) = 0;
  virtual LaunchResult Solve(Scalar scalar, const SolveArgs& args) = 0;
  // Where the way forward leaves y of the block that is eliminated last: in the base's scratch, not
  // in x.
  virtual bool leaves_last_in_scratch() const { return false; }
};

}  // namespace blockd::gpu

#endif  // BLOCKD_ENGINE_GPU_RUNNER_H_
