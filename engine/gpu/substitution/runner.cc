#include "engine/gpu/substitution/runner.h"

#include "engine/gpu/plan/plan_args.h"
#include "engine/gpu/runtime/workspace.h"
#include "engine/gpu/substitution/launch.h"
#include "engine/gpu/vectors/launch.h"

namespace blockd::gpu::substitution {
namespace {

class SubstitutionRunner final : public Runner {
 public:
  explicit SubstitutionRunner(Device& device) : device_(device) {}

  FactorNeeds Needs(const EliminationPlan&) const override {
    return {workspace::kSystemsALaunch, workspace::kSystemsALaunch, 0};
  }

  absl::Status Factor(const FactorGroup& group, absl::FunctionRef<bool()> wanted) override {
    const EliminationPlan& plan = group.plan();
    const auto levels = static_cast<int64_t>(plan.levels().size());
    for (int64_t level = 0; level < levels; ++level) {
      // The host is no more than two levels ahead of the device, and may change its mind.
      absl::Status status = device_.AwaitTurn();
      if (!status.ok()) return status;
      if (!wanted()) return absl::CancelledError("cancelled while factoring");
      EliminateArgs args = ArgsOfLevel(plan, level);
      args.systems = group.systems;
      args.num_systems = group.count;
      status = device_.Launched(plan.shape().scalar == Scalar::kFloat64
                                    ? Eliminate<double>(args, device_.stream())
                                    : Eliminate<float>(args, device_.stream()));
      if (status.ok()) status = device_.MarkTurn();
      if (!status.ok()) return status;
    }
    return device_.Launched(
        FindOutcomes(group.systems, group.count, SegmentsBefore(plan, levels), device_.stream()));
  }

  absl::StatusOr<int64_t> PrepareSolve(const SolveBatch&, int64_t, int64_t, SolveArgs&) override {
    return int64_t{sizeof(unsigned)};  // it counts nothing
  }
  LaunchResult Solve(Scalar scalar, const SolveArgs& args) override {
    return scalar == Scalar::kFloat64 ? Substitute<double>(args, device_.stream())
                                      : Substitute<float>(args, device_.stream());
  }

 private:
  Device& device_;
};

template <typename T>
absl::Status InvertLevels(Device& device, const EliminationPlan& plan, const T* factor, T* out) {
  for (const Level& level : plan.levels()) {
    absl::Status status = device.Launched(
        InvertTriangles<T>(factor + level.inverse_offset, level.interiors, plan.shape().block_size,
                           out + level.inverse_offset, device.stream()));
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

}  // namespace

std::unique_ptr<Runner> MakeRunner(Device& device) {
  return std::make_unique<SubstitutionRunner>(device);
}

absl::Status InvertTriangles(Device& device, const EliminationPlan& plan, const void* factor,
                             void* out) {
  absl::Status status = device.Begin();
  if (!status.ok()) return status;
  status = ToStatus(BLOCKD_GPU(MemcpyAsync)(out, factor, static_cast<size_t>(plan.factor_bytes()),
                                            BLOCKD_GPU(MemcpyDeviceToDevice), device.stream()),
                    "copying a factor");
  if (!status.ok()) return status;
  return plan.shape().scalar == Scalar::kFloat64
             ? InvertLevels(device, plan, static_cast<const double*>(factor),
                            static_cast<double*>(out))
             : InvertLevels(device, plan, static_cast<const float*>(factor),
                            static_cast<float*>(out));
}

}  // namespace blockd::gpu::substitution
