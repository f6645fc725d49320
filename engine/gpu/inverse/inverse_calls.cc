#include "engine/gpu/inverse/inverse_calls.h"

#include <algorithm>
#include <vector>

#include "blockd/engine/inverse_ranges.h"
#include "engine/gpu/inverse/launch.h"
#include "engine/gpu/plan/plan_args.h"
#include "engine/gpu/runtime/workspace.h"

namespace blockd::gpu::inverse {
namespace {

// Bytes of shared memory that a thread block takes to walk through a segment.
int64_t WalkBytes(const Shape& shape) {
  const bool is_float = shape.scalar == Scalar::kFloat32;
  return WalkSharedBytes(is_float, WalkTile(shape.block_size)) + kWalkDeclaredBytes;
}
// True if a thread block's shared memory has room for all that a step reads.
bool FitsSegments(const Shape& shape, const DeviceLimits& limits) {
  return shape.block_size <= kLargestWalked && WalkBytes(shape) <= limits.block_shared_bytes;
}

// Where solves beside the walks would wait long for one to end, thread blocks that go on with
// another segment: so many that some of what has room at a time is left to those solves. Else 0.
int64_t ThreadBlocksGoingOn(const EliminationPlan& plan, const DeviceLimits& limits) {
  constexpr double kLongWalkSeconds = 1e-3;
  constexpr int64_t kRoom = 32;  // one in so many is left
  const Shape& shape = plan.shape();
  int64_t longest = 0;
  for (const Segment& segment : plan.levels()[0].segments) {
    longest = std::max(longest, segment.count);
  }
  // Seconds of a step: about what one took on an H200, scaled to the device.
  const double step =
      (6e-7 + 1.6e-7 * static_cast<double>(shape.block_size)) * limits.architecture.step_seconds;
  if (static_cast<double>(longest) * step <= kLongWalkSeconds) return 0;
  const int64_t resident =
      WalkResident(shape.scalar == Scalar::kFloat32, WalkTile(shape.block_size));
  const int64_t places = limits.multiprocessors *
                         std::clamp<int64_t>(limits.shared_bytes / WalkBytes(shape), 1, resident);
  return std::max<int64_t>(1, places - (places + kRoom - 1) / kRoom);
}

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

// Levels [first, end) of a launch, the last one first.
InvertSegmentsArgs ArgsOfLevels(const EliminationPlan& plan,
                                const std::vector<InverseRange>& ranges,
                                const std::vector<Chain>& chains, int64_t first, int64_t end) {
  InvertSegmentsArgs args;
  if (end < static_cast<int64_t>(chains.size())) args.above = chains[end];
  for (int64_t l = end - 1; l >= first; --l) {
    const Level& level = plan.levels()[l];
    const int64_t segments = ranges[l].end_segment - ranges[l].first_segment;
    args.levels[args.num_levels++] = {.shape = ShapeOf(plan, level),
                                      .inverse_offset = level.inverse_offset,
                                      .next_offset = level.next_offset,
                                      .fill_offset = level.fill_offset,
                                      .out = chains[l],
                                      .first_segment = ranges[l].first_segment,
                                      .num_segments = segments,
                                      .segments_before = args.segments};
    args.segments += segments;
  }
  return args;
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

int64_t ScratchBytes(const EliminationPlan& plan, int64_t first_block, int64_t num_blocks,
                     const DeviceLimits& limits) {
  const std::vector<InverseRange> ranges = InverseRanges(plan, first_block, num_blocks);
  if (FitsSegments(plan.shape(), limits)) return ChainBytes(plan, ranges);
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

template <typename T>
absl::Status InverseCalls::RunSegments(const InverseRequest& request,
                                       absl::FunctionRef<bool()> wanted) {
  const EliminationPlan& plan = *request.plan;
  const std::vector<InverseRange> ranges =
      InverseRanges(plan, request.first_block, request.num_blocks);
  const std::vector<Chain> chains = Chains<T>(request, ranges);
  const auto levels = static_cast<int64_t>(ranges.size());
  // A level alone needs no flags.
  const int64_t at_once =
      SegmentsBefore(plan, levels) <= workspace::kNumFlags ? kMostLevelsALaunch : 1;
  const int64_t going_on = ThreadBlocksGoingOn(plan, limits_);
  for (int64_t first = levels; first > 0;) {
    if (!wanted()) return absl::CancelledError("cancelled while inverting");
    const int64_t end = first;
    first = std::max<int64_t>(0, end - at_once);
    InvertSegmentsArgs args = ArgsOfLevels(plan, ranges, chains, first, end);
    args.tickets = args.segments + std::min(going_on, args.segments);
    args.factor = request.factor;
    args.done = device_.flags();
    args.ticket = device_.ticket();
    const absl::StatusOr<uint32_t> epoch = device_.NextEpoch();
    if (!epoch.ok()) return epoch.status();
    args.epoch = *epoch;
    absl::Status status = device_.Launched(InvertSegments<T>(args, device_.stream()));
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status InverseCalls::Run(const InverseRequest& request, int tile,
                               absl::FunctionRef<bool()> wanted) {
  absl::Status status = device_.Begin();
  if (!status.ok()) return status;
  const Shape& shape = request.plan->shape();
  const bool is_double = shape.scalar == Scalar::kFloat64;
  if (FitsSegments(shape, limits_)) {
    return is_double ? RunSegments<double>(request, wanted) : RunSegments<float>(request, wanted);
  }
  return is_double ? RunLevels<double>(request, tile, wanted)
                   : RunLevels<float>(request, tile, wanted);
}

}  // namespace blockd::gpu::inverse
