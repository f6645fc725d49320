#include "engine/gpu/lockstep/runner.h"

#include <algorithm>
#include <vector>

#include "engine/gpu/lockstep/launch.h"
#include "engine/gpu/lockstep/lockstep.h"
#include "engine/gpu/plan/plan_args.h"
#include "engine/gpu/runtime/launch_graphs.h"
#include "engine/gpu/runtime/workspace.h"
#include "engine/gpu/vectors/launch.h"

namespace blockd::gpu::lockstep {
namespace {

// A plan with very many launches is not recorded: that would take long, and in each of its calls
// the device is behind the host anyway.
constexpr int64_t kMostLaunchesAGraph = 1024;

LaunchResult Start(Scalar scalar, const EliminateArgs& args, const FactorContext& context) {
  return scalar == Scalar::kFloat64 ? Eliminate<double>(args, context)
                                    : Eliminate<float>(args, context);
}
FactorContext ContextOf(Device& device, const DeviceLimits& limits, const Shape& shape,
                        bool early) {
  return {.tile = TileOf(shape, limits),
          .parallelism = limits.multiprocessors,
          .early = early,
          .stream = device.stream(),
          .side = device.side_stream(),
          .fork = device.fork(),
          .join = device.join()};
}

class LockstepRunner final : public Runner {
 public:
  LockstepRunner(Device& device, const DeviceLimits& limits, bool early)
      : device_(device), limits_(limits), early_(early), graphs_(device) {}

  FactorNeeds Needs(const EliminationPlan& plan) const override {
    return {workspace::kSystemsALaunch, workspace::kSystemsALaunch, ScratchBytes(plan)};
  }

  absl::Status Factor(const FactorGroup& group, absl::FunctionRef<bool()> wanted) override {
    const EliminationPlan& plan = group.plan();
    const auto levels = static_cast<int64_t>(plan.levels().size());
    const auto systems = static_cast<double>(group.batch.systems.size());
    const bool recorded = FactorLaunches(plan) <= kMostLaunchesAGraph;
    const bool is_long = plan.factor_flops() * systems > kLongFlops;
    const int64_t at_once = recorded && !is_long ? levels : 1;
    for (int64_t first = 0; first < levels; first += at_once) {
      if (first > 0 && !wanted()) return absl::CancelledError("cancelled while factoring");
      absl::Status status =
          recorded ? RunGraph(group, first, first + at_once, is_long) : RunLevel(group, first);
      if (!status.ok()) return status;
    }
    return absl::OkStatus();
  }

  absl::StatusOr<int64_t> PrepareSolve(const SolveBatch&, int64_t, int64_t,
                                       SolveArgs& args) override {
    // Each segment counts the items of its phases, and its last ones by themselves, both ways.
    return 4 * (args.separators + args.num_levels) * int64_t{sizeof(unsigned)};
  }
  bool leaves_last_in_scratch() const override { return true; }
  LaunchResult Solve(Scalar scalar, const SolveArgs& args) override {
    return scalar == Scalar::kFloat64 ? Substitute<double>(args, limits_, device_.stream())
                                      : Substitute<float>(args, limits_, device_.stream());
  }

 private:
  static EliminateArgs ArgsOf(const FactorGroup& group, int64_t level) {
    EliminateArgs args = ArgsOfLevel(group.plan(), level);
    args.systems = group.systems;
    args.num_systems = group.count;
    return args;
  }
  // After the last level.
  LaunchResult Finish(const EliminateArgs& last) const {
    return FindOutcomes(last.systems, last.num_systems,
                        last.segments_before + last.level.segments(), device_.stream());
  }

  absl::Status RunLevel(const FactorGroup& group, int64_t level) const {
    const EliminationPlan& plan = group.plan();
    FactorContext context = ContextOf(device_, limits_, plan.shape(), early_);
    context.stop = group.batch.stop;
    const EliminateArgs args = ArgsOf(group, level);
    const LaunchResult result = Start(plan.shape().scalar, args, context);
    // The stream that failed does not wait for what is beside it.
    if (!result.ok()) (void)BLOCKD_GPU(StreamSynchronize)(device_.side_stream());
    // A factorization that was stopped has no known outcome.
    const bool stopped = context.stop && context.stop->load(std::memory_order_relaxed);
    const bool last = level + 1 == static_cast<int64_t>(plan.levels().size());
    return device_.Launched(!result.ok() || !last || stopped ? result : Finish(args));
  }

  // The levels from `first` to `end` - 1. A graph knows the systems by their places in the table
  // only, so that it serves all factorizations with this plan.
  absl::Status RunGraph(const FactorGroup& group, int64_t first, int64_t end, bool is_long) {
    const EliminationPlan& plan = group.plan();
    const Shape& shape = plan.shape();
    levels_.clear();
    for (int64_t l = first; l < end; ++l) levels_.push_back(ArgsOf(group, l));
    absl::Status status;
    if (is_long) status = device_.AwaitTurn();
    if (!status.ok()) return status;
    key_.clear();
    AppendToKey(std::span<const EliminateArgs>(levels_), key_);
    AppendToKey(std::span(&shape.scalar, 1), key_);
    const bool last = end == static_cast<int64_t>(plan.levels().size());
    status = device_.Describe(graphs_.Run(key_, [&] {
      const FactorContext context = ContextOf(device_, limits_, shape, early_);
      LaunchResult result;
      for (const EliminateArgs& level : levels_) {
        if (result.ok()) result = Start(shape.scalar, level, context);
      }
      return result.ok() && last ? Finish(levels_.back()) : result;
    }));
    if (status.ok()) status = device_.Launched({kSuccess, "EliminateLockstep in a graph"});
    return status.ok() && is_long ? device_.MarkTurn() : status;
  }

  Device& device_;
  const DeviceLimits& limits_;
  const bool early_;
  LaunchGraphs graphs_;
  std::vector<EliminateArgs> levels_;  // this and the next are kept for their memory
  std::vector<std::byte> key_;
};

}  // namespace

std::unique_ptr<Runner> MakeRunner(Device& device, const DeviceLimits& limits, bool early) {
  return std::make_unique<LockstepRunner>(device, limits, early);
}

}  // namespace blockd::gpu::lockstep
