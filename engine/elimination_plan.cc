#include "blockd/engine/elimination_plan.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace blockd {
namespace {

// Flops of one eliminated block, in n^3: chol 1/3, C 1, D -= C C' 1; with fill also W 1, W W' 1, W
// C' 2.
constexpr double kPlainFlops = 7.0 / 3.0;
constexpr double kFillFlops = 19.0 / 3.0;

double Cube(int64_t n) { return static_cast<double>(n) * static_cast<double>(n) * n; }

// A segment at a free end takes less time a block, so it is made so much longer and all segments of
// a level end together; but not where a block is spread over all lanes, and takes as long with a
// fill as without.
double EndLength(int64_t n, const CostModel& costs) {
  if (costs.spread) return 1;
  const double rows = static_cast<double>(n);
  const double rate = costs.lane_flops_per_second * rows / (rows + costs.half_rate_block_size);
  const double plain =
      costs.step_seconds + rows * costs.step_seconds_per_row + kPlainFlops * Cube(n) / rate;
  const double fill =
      rows * costs.fill_seconds_per_row + (kFillFlops - kPlainFlops) * Cube(n) / rate;
  return 1 + fill / plain;
}

// How long the segments of a chain are that has separators: two ends and the middles between them.
struct Cut {
  int64_t first = 0;
  int64_t last = 0;
  int64_t middles = 0;     // segments between two separators
  int64_t in_middles = 0;  // interiors of all of them; they differ by at most one

  int64_t middle(int64_t i) const {
    return in_middles / middles + (i < in_middles % middles ? 1 : 0);
  }
};

Cut MakeCut(int64_t chain, int64_t separators, double end_length) {
  const int64_t interiors = chain - separators;
  Cut cut;
  cut.middles = separators - 1;
  if (cut.middles > 0) {
    const double unit =
        static_cast<double>(interiors) / (static_cast<double>(cut.middles) + 2 * end_length);
    cut.in_middles = std::clamp<int64_t>(std::llround(unit * static_cast<double>(cut.middles)),
                                         cut.middles, interiors - 2);
  }
  cut.last = (interiors - cut.in_middles) / 2;
  cut.first = interiors - cut.in_middles - cut.last;
  return cut;
}

// Interiors of each segment, left to right.
std::vector<int64_t> SegmentLengths(int64_t chain, int64_t separators, double end_length) {
  if (separators == 0) return {chain};
  const Cut cut = MakeCut(chain, separators, end_length);
  std::vector<int64_t> lengths = {cut.first};
  lengths.reserve(separators + 1);
  for (int64_t i = 0; i < cut.middles; ++i) lengths.push_back(cut.middle(i));
  lengths.push_back(cut.last);
  return lengths;
}

Level CutLevel(int64_t chain, int64_t separators, double end_length) {
  Level level;
  level.chain_length = chain;
  level.segments.reserve(separators + 1);
  level.separators.reserve(separators);
  int64_t position = 0;
  for (const int64_t length : SegmentLengths(chain, separators, end_length)) {
    const int64_t index = static_cast<int64_t>(level.segments.size());
    Segment segment;
    segment.first = position;
    segment.count = length;
    segment.slot = level.interiors;
    segment.left_separator = index - 1;
    segment.right_separator = index < separators ? index : -1;
    segment.reversed = separators > 0 && index == separators;
    if (segment.left_separator >= 0 && segment.right_separator >= 0) {
      segment.fill_slot = level.fills;
      level.fills += length;
    }
    level.interiors += length;
    position += length;
    if (index < separators) level.separators.push_back(position++);
    level.segments.push_back(segment);
  }
  return level;
}

// Of the time that more separators have to save: less than the model's error.
constexpr double kWorthwhile = 0.02;

// Finds the numbers of separators, level by level, that the cost model likes best.
class Planner {
 public:
  Planner(const Shape& shape, int64_t batch, const CostModel& costs)
      : n_(shape.block_size), batch_(static_cast<double>(batch)), costs_(costs) {
    const double efficiency = n_ / (n_ + costs.half_rate_block_size);
    lane_rate_ = costs.lane_flops_per_second * efficiency;
    device_rate_ = costs.device_flops_per_second * efficiency;
    block_bytes_ = static_cast<double>(n_) * n_ * ScalarBytes(shape.scalar);
  }

  struct Choice {
    double seconds = 0;
    int64_t separators = 0;
  };

  const Choice& Best(int64_t chain) {
    const auto found = best_.find(chain);
    if (found != best_.end()) return found->second;
    Choice best{LevelSeconds(chain, 0), 0};
    // More separators take more memory, and a solve more levels: they have to be worth it.
    const double worth = costs_.spread ? 1 - kWorthwhile : 1;
    for (const int64_t separators : Candidates(chain)) {
      const double seconds = LevelSeconds(chain, separators) + Best(separators).seconds;
      if (seconds < worth * best.seconds) best = {seconds, separators};
    }
    return best_[chain] = best;
  }

 private:
  // Every number of separators up to 8, then steps of an eighth; a level needs 2s + 1 blocks. More
  // than kMostSeparators keep no device busier, and the host has to remember each.
  static constexpr int64_t kMostSeparators = int64_t{1} << 18;
  static std::vector<int64_t> Candidates(int64_t chain) {
    std::vector<int64_t> candidates;
    const int64_t most = std::min((chain - 1) / 2, kMostSeparators);
    for (int64_t s = 1; s < most; s += std::max<int64_t>(1, s / 8)) candidates.push_back(s);
    if (most >= 1) candidates.push_back(most);
    return candidates;
  }

  static double Longest(const Cut& cut) {
    return static_cast<double>(
        std::max({cut.first, cut.last, cut.middles > 0 ? cut.middle(0) : int64_t{0}}));
  }

  double LevelSeconds(int64_t chain, int64_t separators) const {
    const Cut cut =
        separators > 0 ? MakeCut(chain, separators, EndLength(n_, costs_)) : Cut{.first = chain};
    const double ends = static_cast<double>(cut.first + cut.last);
    const double fills = static_cast<double>(cut.in_middles);
    const double middle = cut.middles > 0 ? static_cast<double>(cut.middle(0)) : 0;
    const double flops = batch_ * Cube(n_) * (ends * kPlainFlops + fills * kFillFlops);
    if (costs_.spread) {
      const double rate = costs_.spread_flops_per_second * static_cast<double>(n_) /
                          (static_cast<double>(n_) + costs_.spread_half_rate_block_size);
      const auto rows = static_cast<double>(n_);
      const double step =
          rows * (costs_.spread_seconds_per_row + rows * costs_.spread_seconds_per_entry);
      return costs_.spread_level_seconds + std::hypot(Longest(cut) * step, flops / rate);
    }
    const double latency =
        costs_.step_seconds + static_cast<double>(n_) * costs_.step_seconds_per_row;
    const double plain_step = latency + kPlainFlops * Cube(n_) / lane_rate_;
    const double fill_step = latency + costs_.fill_seconds_per_row * static_cast<double>(n_) +
                             kFillFlops * Cube(n_) / lane_rate_;
    const double longest =
        std::max(static_cast<double>(cut.first) * plain_step, middle * fill_step);
    const double waves = std::ceil(batch_ * static_cast<double>(separators + 1) / costs_.lanes);
    const double work = flops / device_rate_;
    // Each block is read (D, E) and written (inv(L), C, W) once.
    const double traffic = batch_ * block_bytes_ * (ends * 3 + fills * 4) / costs_.bytes_per_second;
    return costs_.level_seconds + std::max({waves * longest, work, traffic});
  }

  const int64_t n_;
  const double batch_;
  const CostModel& costs_;
  double lane_rate_ = 0;
  double device_rate_ = 0;
  double block_bytes_ = 0;
  std::map<int64_t, Choice> best_;
};

}  // namespace

int64_t TrianglePanelOffset(int64_t n, int64_t p) {
  return p * kPanel * n - kPanel * kPanel * (p * (p - 1) / 2);
}

int64_t TriangleScalars(int64_t n) {
  const int64_t whole = n / kPanel;
  const int64_t rest = n % kPanel;
  return TrianglePanelOffset(n, whole) + rest * rest;
}

EliminationPlan EliminationPlan::Build(const Shape& shape, const std::vector<int64_t>& separators,
                                       double end_length) {
  EliminationPlan plan;
  plan.shape_ = shape;
  const int64_t n = shape.block_size;
  int64_t chain = shape.num_blocks;
  for (size_t i = 0; i <= separators.size(); ++i) {
    Level level = CutLevel(chain, i < separators.size() ? separators[i] : 0, end_length);
    level.inverse_offset = plan.factor_scalars_;
    level.next_offset = level.inverse_offset + level.interiors * TriangleScalars(n);
    // The base's last block has no next.
    const int64_t nexts = i < separators.size() ? level.interiors : level.interiors - 1;
    level.fill_offset = level.next_offset + nexts * n * n;
    plan.factor_scalars_ = level.fill_offset + level.fills * n * n;
    const int64_t cuts = static_cast<int64_t>(level.separators.size());
    plan.separators_ += cuts;
    plan.chain_scalars_ += cuts * 3 * n * n;
    plan.factor_flops_ +=
        Cube(n) * (static_cast<double>(level.fills) * kFillFlops +
                   static_cast<double>(level.interiors - level.fills) * kPlainFlops);
    chain = cuts;
    plan.levels_.push_back(std::move(level));
  }
  // The last block of all has no next: neither C nor an update.
  plan.factor_flops_ -= 2 * Cube(n);
  return plan;
}

absl::StatusOr<EliminationPlan> EliminationPlan::Make(const Shape& shape, int64_t batch,
                                                      const CostModel& costs) {
  absl::Status status = CheckShape(shape);
  if (!status.ok()) return status;
  if (batch < 1)
    return absl::InvalidArgumentError(absl::StrCat("batch is ", batch, ", expected >= 1"));
  Planner planner(shape, batch, costs);
  std::vector<int64_t> separators;
  int64_t chain = shape.num_blocks;
  while (const int64_t cuts = planner.Best(chain).separators) {
    separators.push_back(cuts);
    chain = cuts;
  }
  EliminationPlan plan = Build(shape, separators, EndLength(shape.block_size, costs));
  plan.factor_seconds_ =
      planner.Best(shape.num_blocks).seconds + static_cast<double>(batch) * costs.system_seconds;
  return plan;
}

absl::StatusOr<EliminationPlan> EliminationPlan::MakeWithSeparators(
    const Shape& shape, const std::vector<int64_t>& separators, const CostModel& costs) {
  absl::Status status = CheckShape(shape);
  if (!status.ok()) return status;
  int64_t chain = shape.num_blocks;
  for (const int64_t cuts : separators) {
    if (cuts < 1 || cuts > (chain - 1) / 2) {
      return absl::InvalidArgumentError(
          absl::StrCat("a chain of ", chain, " blocks cannot have ", cuts, " separators"));
    }
    chain = cuts;
  }
  return Build(shape, separators, EndLength(shape.block_size, costs));
}

int64_t EliminationPlan::host_bytes() const {
  int64_t bytes = sizeof(EliminationPlan);
  for (const Level& level : levels_) {
    bytes += static_cast<int64_t>(sizeof(Level) + level.segments.size() * sizeof(Segment) +
                                  level.separators.size() * sizeof(int64_t));
  }
  return bytes;
}

int64_t EliminationPlan::OriginalBlock(int64_t level, int64_t block) const {
  while (level > 0) block = levels_[--level].separators[block];
  return block;
}

double EliminationPlan::solve_flops(int64_t num_rhs) const {
  return 4.0 * static_cast<double>(num_rhs) * static_cast<double>(factor_scalars_);
}

double EliminationPlan::solve_bytes(int64_t num_rhs) const {
  const double scalars = 2.0 * static_cast<double>(factor_scalars_) +
                         4.0 * static_cast<double>(shape_.rows()) * static_cast<double>(num_rhs);
  return scalars * static_cast<double>(ScalarBytes(shape_.scalar));
}

double PredictedSolveSeconds(const EliminationPlan& plan, int64_t num_rhs, const CostModel& costs,
                             int64_t systems) {
  const auto n = static_cast<double>(plan.shape().block_size);
  const auto batch = static_cast<double>(systems);
  const double speed = n / (n + costs.half_rate_block_size);
  const double step = costs.solve_step_seconds + n * costs.solve_step_seconds_per_row;
  // A level's segments share the lanes; all but the first few levels are short.
  const auto lanes = [&](const Level& level) {
    return std::min(batch * static_cast<double>(level.segments.size()), costs.solve_lanes);
  };
  double latency = 0;
  for (const Level& level : plan.levels()) {
    latency += batch * static_cast<double>(level.interiors) / lanes(level) * step +
               costs.solve_level_seconds;
  }
  const double rate = std::min(costs.lane_flops_per_second * lanes(plan.levels().front()),
                               costs.device_flops_per_second);
  // Each level is walked twice, forward and backward.
  return batch * plan.solve_flops(num_rhs) / (rate * speed) +
         batch * plan.solve_bytes(num_rhs) / costs.bytes_per_second + 2 * latency +
         batch * costs.system_seconds;
}

std::string EliminationPlan::DebugString() const {
  std::string text = absl::StrCat(ToString(shape_), ", factor ", factor_bytes(), " bytes, ",
                                  factor_flops_, " flop\n");
  for (const Level& level : levels_) {
    const Segment& middle = level.segments[level.segments.size() / 2];
    absl::StrAppend(&text, "  chain ", level.chain_length, ": ", level.segments.size(),
                    " segments of ", middle.count, ", ends ", level.segments.front().count, " and ",
                    level.segments.back().count, "\n");
  }
  return text;
}

}  // namespace blockd
