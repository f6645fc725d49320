#include "blockd/engine/elimination_plan.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "engine/plan/plan_cuts.h"

namespace blockd {

Cut MakeCut(int64_t chain, int64_t separators, double end_length, bool open) {
  const int64_t interiors = chain - separators;
  const int64_t ends = open ? 1 : 2;
  Cut cut;
  cut.middles = separators - 1;
  if (cut.middles > 0) {
    const double unit = static_cast<double>(interiors) /
                        (static_cast<double>(cut.middles) + static_cast<double>(ends) * end_length);
    cut.in_middles = std::clamp<int64_t>(std::llround(unit * static_cast<double>(cut.middles)),
                                         cut.middles, interiors - ends);
  }
  cut.last = open ? 0 : (interiors - cut.in_middles) / 2;
  cut.first = interiors - cut.in_middles - cut.last;
  return cut;
}

namespace {

// Interiors of each segment, left to right.
std::vector<int64_t> SegmentLengths(int64_t chain, int64_t separators, double end_length,
                                    bool open) {
  if (separators == 0) return {chain};
  const Cut cut = MakeCut(chain, separators, end_length, open);
  std::vector<int64_t> lengths = {cut.first};
  lengths.reserve(separators + 1);
  for (int64_t i = 0; i < cut.middles; ++i) lengths.push_back(cut.middle(i));
  lengths.push_back(cut.last);
  return lengths;
}

Level CutLevel(int64_t chain, int64_t separators, double end_length, bool open) {
  Level level;
  level.chain_length = chain;
  level.segments.reserve(separators + 1);
  level.separators.reserve(separators);
  int64_t position = 0;
  for (const int64_t length : SegmentLengths(chain, separators, end_length, open)) {
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

// All that a level follows from: CutLevel is the only one that makes any.
std::array<int64_t, 4> WhatMakes(const Level& level) {
  return {level.chain_length, static_cast<int64_t>(level.separators.size()),
          level.segments.front().count, level.segments.back().count};
}

// FNV-1a, by words.
uint64_t Fingerprint(const Shape& shape, const std::vector<Level>& levels) {
  uint64_t hash = 0xcbf29ce484222325;
  const auto add = [&hash](int64_t word) {
    hash = (hash ^ static_cast<uint64_t>(word)) * 0x100000001b3;
    hash ^= hash >> 32;
  };
  for (const int64_t word : {shape.num_blocks, shape.block_size, ScalarBytes(shape.scalar)}) {
    add(word);
  }
  for (const Level& level : levels) {
    for (const int64_t word : WhatMakes(level)) add(word);
  }
  return hash;
}

}  // namespace

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

int64_t TrianglePanelOffset(int64_t n, int64_t p) {
  return p * kPanel * n - kPanel * kPanel * (p * (p - 1) / 2);
}

int64_t TriangleScalars(int64_t n) {
  const int64_t whole = n / kPanel;
  const int64_t rest = n % kPanel;
  return TrianglePanelOffset(n, whole) + rest * rest;
}

EliminationPlan EliminationPlan::Build(const Shape& shape, const std::vector<int64_t>& separators,
                                       double end_length, End end) {
  EliminationPlan plan;
  plan.shape_ = shape;
  const int64_t n = shape.block_size;
  int64_t chain = shape.num_blocks;
  for (size_t i = 0; i <= separators.size(); ++i) {
    Level level =
        CutLevel(chain, i < separators.size() ? separators[i] : 0, end_length, end == End::kOpen);
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
  plan.fingerprint_ = Fingerprint(shape, plan.levels_);
  return plan;
}

bool operator==(const EliminationPlan& a, const EliminationPlan& b) {
  if (&a == &b) return true;
  return a.fingerprint_ == b.fingerprint_ && a.shape_ == b.shape_ &&
         std::equal(a.levels_.begin(), a.levels_.end(), b.levels_.begin(), b.levels_.end(),
                    [](const Level& x, const Level& y) { return WhatMakes(x) == WhatMakes(y); });
}

absl::StatusOr<EliminationPlan> EliminationPlan::MakeChecked(const Shape& shape,
                                                             const std::vector<int64_t>& separators,
                                                             const CostModel& costs, End end) {
  absl::Status status = CheckShape(shape);
  if (!status.ok()) return status;
  int64_t chain = shape.num_blocks;
  for (const int64_t cuts : separators) {
    const int64_t most = end == End::kOpen ? chain / 2 : (chain - 1) / 2;
    if (cuts < 1 || cuts > most) {
      return absl::InvalidArgumentError(
          absl::StrCat("a chain of ", chain, " blocks cannot have ", cuts, " separators"));
    }
    chain = cuts;
  }
  return Build(shape, separators, EndLength(shape.block_size, costs), end);
}

absl::StatusOr<EliminationPlan> EliminationPlan::MakeWithSeparators(
    const Shape& shape, const std::vector<int64_t>& separators, const CostModel& costs) {
  return MakeChecked(shape, separators, costs, End::kFree);
}

absl::StatusOr<EliminationPlan> EliminationPlan::MakeOpen(const Shape& shape,
                                                          const std::vector<int64_t>& separators,
                                                          const CostModel& costs) {
  return MakeChecked(shape, separators, costs, End::kOpen);
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
