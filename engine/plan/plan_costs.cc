#include <algorithm>
#include <cmath>
#include <map>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "engine/plan/plan_cuts.h"

namespace blockd {
namespace {

// The modelled seconds of a level for a batch.
class LevelCosts {
 public:
  LevelCosts(const Shape& shape, int64_t batch, const CostModel& costs)
      : n_(shape.block_size), batch_(static_cast<double>(batch)), costs_(costs) {
    const double efficiency = n_ / (n_ + costs.half_rate_block_size);
    lane_rate_ = costs.lane_flops_per_second * efficiency;
    device_rate_ = costs.device_flops_per_second * efficiency;
    block_bytes_ = static_cast<double>(n_) * n_ * ScalarBytes(shape.scalar);
  }

  double Seconds(const Cut& cut, int64_t segments) const {
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
    const double waves = std::ceil(batch_ * static_cast<double>(segments) / costs_.lanes);
    const double work = flops / device_rate_;
    // Each block is read (D, E) and written (inv(L), C, W) once.
    const double traffic = batch_ * block_bytes_ * (ends * 3 + fills * 4) / costs_.bytes_per_second;
    return costs_.level_seconds + std::max({waves * longest, work, traffic});
  }

 private:
  static double Longest(const Cut& cut) {
    return static_cast<double>(
        std::max({cut.first, cut.last, cut.middles > 0 ? cut.middle(0) : int64_t{0}}));
  }

  const int64_t n_;
  const double batch_;
  const CostModel& costs_;
  double lane_rate_ = 0;
  double device_rate_ = 0;
  double block_bytes_ = 0;
};

// The part of the time that more separators have to save: less is within the model's error.
constexpr double kWorthwhile = 0.02;

// Finds the numbers of separators, level by level, that the cost model likes best.
class Planner {
 public:
  Planner(const Shape& shape, int64_t batch, const CostModel& costs)
      : level_costs_(shape, batch, costs),
        end_length_(EndLength(shape.block_size, costs)),
        // More separators take more memory, and a solve more levels: they have to be worth it.
        worth_(costs.spread ? 1 - kWorthwhile : 1) {}

  // The best number of separators for a chain of so many blocks.
  int64_t BestSeparators(int64_t chain) { return Best(chain).separators; }

 private:
  struct Choice {
    double seconds = 0;
    int64_t separators = 0;
  };

  const Choice& Best(int64_t chain) {
    const auto found = best_.find(chain);
    if (found != best_.end()) return found->second;
    Choice best{level_costs_.Seconds(Cut{.first = chain}, 1), 0};
    for (const int64_t separators : Candidates(chain)) {
      const double seconds =
          level_costs_.Seconds(MakeCut(chain, separators, end_length_), separators + 1) +
          Best(separators).seconds;
      if (seconds < worth_ * best.seconds) best = {seconds, separators};
    }
    return best_[chain] = best;
  }

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

  const LevelCosts level_costs_;
  const double end_length_;
  const double worth_;
  std::map<int64_t, Choice> best_;
};

Cut CutOf(const Level& level) {
  Cut cut{.first = level.segments.front().count};
  if (level.separators.empty()) return cut;
  cut.last = level.segments.back().count;
  cut.middles = static_cast<int64_t>(level.segments.size()) - 2;
  cut.in_middles = level.fills;
  return cut;
}

}  // namespace

absl::StatusOr<EliminationPlan> EliminationPlan::Make(const Shape& shape, int64_t batch,
                                                      const CostModel& costs) {
  absl::Status status = CheckShape(shape);
  if (!status.ok()) return status;
  if (batch < 1)
    return absl::InvalidArgumentError(absl::StrCat("batch is ", batch, ", expected >= 1"));
  Planner planner(shape, batch, costs);
  std::vector<int64_t> separators;
  int64_t chain = shape.num_blocks;
  while (const int64_t cuts = planner.BestSeparators(chain)) {
    separators.push_back(cuts);
    chain = cuts;
  }
  return Build(shape, separators, EndLength(shape.block_size, costs), End::kFree);
}

double PredictedFactorSeconds(const EliminationPlan& plan, const CostModel& costs,
                              int64_t systems) {
  const LevelCosts level_costs(plan.shape(), systems, costs);
  double seconds = static_cast<double>(systems) * costs.system_seconds;
  for (const Level& level : plan.levels()) {
    seconds += level_costs.Seconds(CutOf(level), static_cast<int64_t>(level.segments.size()));
  }
  return seconds;
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

}  // namespace blockd
