#include "engine/gpu/information/information_calls.h"

#include "engine/gpu/information/launch.h"

namespace blockd::gpu::information {
namespace {

InformationArgs ArgsOf(const InformationSteps& steps) {
  const int64_t n = steps.shape.block_size;
  InformationArgs args = {};
  args.n = n;
  args.rows = steps.rows;
  args.count = steps.count;
  args.moves = steps.moves();
  args.transitions = steps.transitions;
  args.whiteners = steps.whiteners;
  args.to_first = steps.to_first;
  args.observations = steps.observations;
  args.transition_stride = steps.one_transition ? 0 : n * n;
  args.whitener_stride = steps.one_whitener ? 0 : n * n;
  args.products = steps.products;
  args.diagonal = steps.diagonal;
  args.coupling = steps.coupling;
  return args;
}

}  // namespace

absl::Status Run(Device& device, const InformationSteps& steps) {
  absl::Status status = device.Begin();
  if (!status.ok()) return status;
  const InformationArgs args = ArgsOf(steps);
  return device.Launched(steps.shape.scalar == Scalar::kFloat64
                             ? Form<double>(args, device.stream())
                             : Form<float>(args, device.stream()));
}

}  // namespace blockd::gpu::information
