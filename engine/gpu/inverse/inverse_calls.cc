#include "engine/gpu/inverse/inverse_calls.h"

#include <algorithm>
#include <vector>

#include "blockd/engine/inverse_ranges.h"
#include "engine/gpu/inverse/launch.h"
#include "engine/gpu/plan/plan_args.h"

namespace blockd::gpu::inverse {
namespace {

// How many segments of a level go together, and of how many steps gains are made at once.
struct Group {
  int64_t segments = 0, ahead = 0;
  int64_t squares() const { return segments * SegmentSquares(ahead); }
};

// So that scratch takes no more than some n^2 for each block of the system, or what keeps a device
// busy; of large blocks, whose tiles do that alone, no gains are made ahead.
Group GroupOf(const EliminationPlan& plan, const Level& level, const InverseRange& range) {
  constexpr int64_t kBusy = 1024, kMost = 65535;  // thread blocks; a grid has no more segments
  const int64_t n = plan.shape().block_size;
  const int64_t tasks = 2 * ((n + 127) / 128) * ((n + 63) / 64);  // of a segment's step, about
  const int64_t fewest = (kBusy + tasks - 1) / tasks;
  const int64_t blocks = std::max(plan.shape().num_blocks, fewest * SegmentSquares(1));
  int64_t longest = 1;
  for (int64_t s = range.first_segment; s < range.end_segment; ++s) {
    longest = std::max(longest, level.segments[s].count);
  }
  Group group;
  group.segments =
      std::min({range.end_segment - range.first_segment, blocks / SegmentSquares(1), kMost});
  const int64_t wanted = (fewest + group.segments - 1) / group.segments;
  const int64_t room = (blocks / group.segments - 7) / 3;
  group.ahead = std::clamp<int64_t>(std::min({wanted, room, longest}), 1, kMostAhead);
  return group;
}

int64_t ChainBytes(const EliminationPlan& plan, const std::vector<InverseRange>& ranges) {
  return MemoryPool::Rounded(InverseChainScalars(plan, ranges) * ScalarBytes(plan.shape().scalar));
}

// Where the chain of each level goes.
template <typename T>
std::vector<Chain> Chains(const InverseRequest& request, const std::vector<InverseRange>& ranges) {
  const int64_t n = request.plan->shape().block_size;
  std::vector<Chain> chains;
  T* at = static_cast<T*>(request.scratch);
  for (const InverseRange& range : ranges) {
    Chain& chain = chains.emplace_back();
    chain.first = range.first;
    chain.end = range.end;
    if (chains.size() == 1) continue;
    chain.diagonal = at;
    chain.coupling = at + range.blocks() * n * n;
    at += 2 * range.blocks() * n * n;
  }
  const bool entries = request.parts == InverseParts::kDiagonalEntries;
  (entries ? chains[0].entries : chains[0].diagonal) = request.diagonal;
  if (request.parts == InverseParts::kWithCouplings) chains[0].coupling = request.coupling;
  return chains;
}

// Steps of the longest walk of some segments.
int64_t StepsOf(const Level& level, const InverseRange& range, int64_t first, int64_t count) {
  int64_t steps = 0;
  for (int64_t s = first; s < first + count; ++s) {
    const Segment& segment = level.segments[s];
    steps = std::max(steps, segment.count - range.last_interior(segment));
  }
  return steps;
}

}  // namespace

int64_t ScratchBytes(const EliminationPlan& plan, int64_t first_block, int64_t num_blocks) {
  const std::vector<InverseRange> ranges = InverseRanges(plan, first_block, num_blocks);
  const int64_t n = plan.shape().block_size;
  int64_t squares = 0;
  for (size_t l = 0; l < ranges.size(); ++l) {
    squares = std::max(squares, GroupOf(plan, plan.levels()[l], ranges[l]).squares());
  }
  return ChainBytes(plan, ranges) + squares * n * n * ScalarBytes(plan.shape().scalar);
}

template <typename T>
absl::Status InverseCalls::RunLevels(const InverseRequest& request, int tile,
                                     absl::FunctionRef<bool()> wanted) {
  const EliminationPlan& plan = *request.plan;
  const std::vector<InverseRange> ranges =
      InverseRanges(plan, request.first_block, request.num_blocks);
  const std::vector<Chain> chains = Chains<T>(request, ranges);
  const Stream stream = device_.stream();
  absl::Status status;
  for (size_t l = ranges.size(); l-- > 0;) {
    const Level& level = plan.levels()[l];
    const Group group = GroupOf(plan, level, ranges[l]);
    InverseArgs args;
    args.level = ShapeOf(plan, level);
    args.factor = request.factor;
    args.inverse_offset = level.inverse_offset;
    args.next_offset = level.next_offset;
    args.fill_offset = level.fill_offset;
    args.out = chains[l];
    if (l + 1 < chains.size()) args.above = chains[l + 1];
    args.scratch = static_cast<std::byte*>(request.scratch) + ChainBytes(plan, ranges);
    args.ahead = static_cast<int32_t>(group.ahead);
    for (int64_t first = ranges[l].first_segment; first < ranges[l].end_segment;
         first += group.segments) {
      // The host is no more than two groups ahead of the device, and may change its mind.
      status = device_.AwaitTurn();
      if (!status.ok()) return status;
      if (!wanted()) return absl::CancelledError("cancelled while inverting");
      args.first_segment = first;
      args.num_segments = std::min(group.segments, ranges[l].end_segment - first);
      const int64_t steps = StepsOf(level, ranges[l], first, args.num_segments);
      status = device_.Launched(Begin<T>(args, stream));
      for (int64_t step = 0; status.ok() && step < steps; step += group.ahead) {
        const int64_t together = std::min(group.ahead, steps - step);
        status = device_.Launched(MakeGains<T>(args, tile, step, together, stream));
        if (status.ok()) status = device_.Launched(Walk<T>(args, tile, step, together, stream));
      }
      if (status.ok()) status = device_.MarkTurn();
      if (!status.ok()) return status;
    }
  }
  return absl::OkStatus();
}

absl::Status InverseCalls::Run(const InverseRequest& request, int tile,
                               absl::FunctionRef<bool()> wanted) {
  absl::Status status = device_.Begin();
  if (!status.ok()) return status;
  const Shape& shape = request.plan->shape();
  if (shape.scalar == Scalar::kFloat64 && shape.block_size <= 32) tile = 32;
  return request.plan->shape().scalar == Scalar::kFloat64 ? RunLevels<double>(request, tile, wanted)
                                                          : RunLevels<float>(request, tile, wanted);
}

}  // namespace blockd::gpu::inverse
