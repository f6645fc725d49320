#include "engine/gpu/segment/runner.h"

#include <algorithm>

#include "engine/gpu/runtime/workspace.h"
#include "engine/gpu/segment/launch.h"
#include "engine/gpu/segment/level_args.h"
#include "engine/gpu/segment/segment.h"

namespace blockd::gpu::segment {
namespace {

LaunchResult Start(Scalar scalar, const EliminateSegmentsArgs& args, Stream stream) {
  return scalar == Scalar::kFloat64 ? Eliminate<double>(args, stream)
                                    : Eliminate<float>(args, stream);
}

class SegmentRunner final : public Runner {
 public:
  SegmentRunner(Device& device, const DeviceLimits& limits) : device_(device), limits_(limits) {}

  FactorNeeds Needs(const EliminationPlan& plan) const override {
    // A thread block and a flag for each segment of each system.
    const int64_t systems = std::clamp<int64_t>(
        workspace::kNumFlags / std::max<int64_t>(1, SegmentsBefore(plan, Levels(plan))), 1,
        workspace::kSystemsALaunch);
    return {systems, systems, 0};
  }

  absl::Status Factor(const FactorGroup& group, absl::FunctionRef<bool()> wanted) override {
    const EliminationPlan& plan = group.plan();
    // A level alone needs no flags.
    const int64_t levels = Levels(plan),
                  at_once = group.scratch.segments <= workspace::kNumFlags ? kMostLevelsALaunch : 1;
    const bool walks_long = WalksLong(plan.shape(), LongestSegment(plan.levels()[0]), limits_);
    int64_t end = 0;
    for (int64_t first = 0; first < levels; first = end) {
      end = first + (first == 0 && walks_long ? 1 : at_once);
      if (first > 0 && !wanted()) return absl::CancelledError("cancelled while factoring");
      const absl::StatusOr<uint32_t> epoch = device_.NextEpoch();
      if (!epoch.ok()) return epoch.status();
      EliminateSegmentsArgs args = ArgsOfLevels(plan, first, end - first);
      args.systems = group.systems;
      args.num_systems = group.count;
      args.done = device_.flags();
      args.done_stride = group.scratch.segments;
      args.epoch = *epoch;
      args.ticket = device_.ticket();
      absl::Status status = device_.Launched(Start(plan.shape().scalar, args, device_.stream()));
      if (!status.ok()) return status;
    }
    return absl::OkStatus();
  }

  absl::StatusOr<int64_t> PrepareSolve(const SolveBatch&, int64_t, int64_t,
                                       SolveArgs& args) override {
    // A system and panel counts the segments of each pass.
    return 2 * args.num_levels * int64_t{sizeof(unsigned)};
  }
  LaunchResult Solve(Scalar scalar, const SolveArgs& args) override {
    return scalar == Scalar::kFloat64 ? Substitute<double>(args, limits_, device_.stream())
                                      : Substitute<float>(args, limits_, device_.stream());
  }

 private:
  static int64_t LongestSegment(const Level& level) {
    int64_t longest = 0;
    for (const Segment& segment : level.segments) longest = std::max(longest, segment.count);
    return longest;
  }
  static int64_t Levels(const EliminationPlan& plan) {
    return static_cast<int64_t>(plan.levels().size());
  }

  Device& device_;
  const DeviceLimits& limits_;
};

}  // namespace

std::unique_ptr<Runner> MakeRunner(Device& device, const DeviceLimits& limits) {
  return std::make_unique<SegmentRunner>(device, limits);
}

}  // namespace blockd::gpu::segment
