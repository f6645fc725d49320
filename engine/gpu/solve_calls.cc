#include "engine/gpu/solve_calls.h"

#include <algorithm>
#include <limits>

#include "engine/gpu/plan/plan_args.h"
#include "engine/gpu/vectors/launch.h"

namespace blockd::gpu {
namespace {

// Columns that are solved together: one or two times those of a matrix instruction.
int64_t PanelColumns(const DeviceLimits& limits, int64_t columns) {
  constexpr int64_t kSet = 8, kSharedForTwoSets = 140 << 10;
  return columns <= kSet || limits.block_shared_bytes < kSharedForTwoSets ? kSet : 2 * kSet;
}

// No system and panel of columns has more items of work, which have numbers of 32 bits: for each
// strip of 16 rows of each block two or three products forward and two backward.
int64_t MostItems(const SolveArgs& args) {
  int64_t blocks = 1;
  for (int32_t l = 0; l < args.num_levels; ++l) {
    const LevelShape& shape = args.levels[l].shape;
    blocks += shape.first_length + shape.last_length;
    if (shape.separators > 1) blocks += (shape.separators - 1) * shape.longest_middle();
  }
  return 5 * blocks * ((args.n + 15) / 16);
}

int64_t MostColumns(std::span<const SolveSystem> systems) {
  int64_t most = 1;
  for (const SolveSystem& system : systems) most = std::max(most, system.num_rhs);
  return most;
}

}  // namespace

absl::Status SolveCalls::Solve(const SolveBatch& batch, Runner& method,
                               absl::FunctionRef<bool()> wanted) {
  if (!wanted()) return absl::CancelledError("cancelled while solving");
  absl::Status status = device_.Begin();
  if (!status.ok()) return status;
  const EliminationPlan& plan = *batch.plan;
  if (static_cast<int64_t>(plan.levels().size()) > kMostLevels) {
    return absl::InternalError("a plan of too many levels");
  }
  SolveArgs args = SolveArgsOf(plan, batch.part);
  args.systems = table_.entries();
  const int64_t most = MostColumns(batch.systems);
  const absl::StatusOr<int64_t> bytes =
      method.PrepareSolve(batch, most, PanelColumns(limits_, most), args);
  if (!bytes.ok()) return bytes.status();
  const auto systems = static_cast<int64_t>(batch.systems.size());
  const int64_t at_once = std::min(workspace::kSystemsALaunch, Counters::kMostBytes / *bytes);
  if (at_once < 1) return absl::InternalError("a plan of too many segments");
  for (int64_t first = 0; status.ok() && first < systems; first += at_once) {
    args.num_systems = std::min(at_once, systems - first);
    entries_.clear();
    const auto group = batch.systems.subspan(first, args.num_systems);
    for (const SolveSystem& s : group) entries_.push_back({s.factor, s.x, s.num_rhs, s.chains});
    args.most_columns = MostColumns(group);
    status = table_.Set(entries_);
    if (status.ok() && batch.part == SolvePart::kBackward) {
      status = MoveBetweenLevels(plan, false, true, args);
    }
    if (status.ok()) status = SolvePanels(batch, method, *bytes, args, wanted);
    if (status.ok() && batch.part == SolvePart::kForward) {
      status = MoveBetweenLevels(plan, true, method.leaves_last_in_scratch(), args);
    }
  }
  return status;
}

absl::Status SolveCalls::MoveBetweenLevels(const EliminationPlan& plan, bool down, bool scratch,
                                           const SolveArgs& args) {
  absl::Status status;
  const Stream stream = device_.stream();
  for (int32_t level = 0; status.ok() && level < args.num_levels; ++level) {
    const bool from_scratch = scratch && level + 1 == args.num_levels;
    if (level == 0 && !from_scratch) continue;
    const LevelMove move = {level, plan.levels()[level].chain_length, down, from_scratch};
    status = device_.Launched(plan.shape().scalar == Scalar::kFloat64
                                  ? MoveLevel<double>(args, move, stream)
                                  : MoveLevel<float>(args, move, stream));
  }
  return status;
}

absl::Status SolveCalls::SolvePanels(const SolveBatch& batch, Runner& method, int64_t bytes,
                                     SolveArgs& args, absl::FunctionRef<bool()> wanted) {
  const EliminationPlan& plan = *batch.plan;
  const int64_t columns = args.most_columns;
  args.panel_columns = PanelColumns(limits_, columns);
  args.most_columns = std::min(columns, args.panel_columns);
  const int64_t panels = (columns + args.panel_columns - 1) / args.panel_columns;
  const double flops = plan.solve_flops(args.panel_columns * args.num_systems);
  const int64_t panels_at_once = std::max<int64_t>(
      1, std::min({panels, Counters::kMostBytes / bytes / args.num_systems,
                   std::numeric_limits<uint32_t>::max() / (MostItems(args) * args.num_systems),
                   static_cast<int64_t>(kLongFlops / flops)}));
  const bool is_long = panels_at_once < panels;
  for (int64_t p = 0; p < panels; p += panels_at_once) {
    args.first_panel = p;
    args.num_panels = std::min(panels_at_once, panels - p);
    absl::Status status;
    if (is_long) {
      status = device_.AwaitTurn();
      if (!status.ok()) return status;
      if (!wanted()) return absl::CancelledError("cancelled while solving");
    }
    status = counters_.Launch(args.num_systems * args.num_panels * bytes,
                              [&](const Counters::Piece& mine) {
                                args.tickets = mine.ticket;
                                args.counters = mine.counters;
                                args.stale = mine.stale;
                                args.stale_words = mine.stale_words;
                                return method.Solve(plan.shape().scalar, args);
                              });
    if (status.ok() && is_long) status = device_.MarkTurn();
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

}  // namespace blockd::gpu
