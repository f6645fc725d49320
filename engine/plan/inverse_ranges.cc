#include "blockd/engine/inverse_ranges.h"

#include <algorithm>

#include "engine/plan/plan_cuts.h"

namespace blockd {
namespace {

// Flops of one block, in n^3: C inv(L) 1, Z(r,r) times that 2, Z(j,j) 1 and inv(L)' inv(L) 1/3;
// with fill the same of W, and the two products with Z(r,l).
constexpr double kPlainInverseFlops = 13.0 / 3.0;
constexpr double kFillInverseFlops = 37.0 / 3.0;

// The segment that a block of the chain is in, or that it is the right separator of.
int64_t SegmentOf(const Level& level, int64_t block) {
  const auto after =
      std::upper_bound(level.segments.begin(), level.segments.end(), block,
                       [](int64_t b, const Segment& segment) { return b < segment.first; });
  return after - level.segments.begin() - 1;
}

}  // namespace

int64_t InverseRange::last_interior(const Segment& segment) const {
  // Walks go from a segment's separator to its other end.
  const int64_t left = std::max(first, segment.first) - segment.first;
  if (!segment.reversed) return std::min(left, segment.count);
  return segment.first + segment.count - std::min(end, segment.first + segment.count);
}

std::vector<InverseRange> InverseRanges(const EliminationPlan& plan, int64_t first, int64_t count) {
  std::vector<InverseRange> ranges;
  int64_t end = first + count;
  for (const Level& level : plan.levels()) {
    const InverseRange range{first, end, SegmentOf(level, first), SegmentOf(level, end - 1) + 1};
    ranges.push_back(range);
    first = std::max<int64_t>(range.first_segment - 1, 0);
    end = std::min(range.end_segment, static_cast<int64_t>(level.separators.size()));
  }
  return ranges;
}

int64_t InverseChainScalars(const EliminationPlan& plan, const std::vector<InverseRange>& ranges) {
  const int64_t n = plan.shape().block_size;
  int64_t blocks = 0;
  for (size_t level = 1; level < ranges.size(); ++level) blocks += ranges[level].blocks();
  return blocks * 2 * n * n;
}

double InverseFlops(const EliminationPlan& plan) {
  double flops = 0;
  for (const Level& level : plan.levels()) {
    flops += static_cast<double>(level.fills) * kFillInverseFlops +
             static_cast<double>(level.interiors - level.fills) * kPlainInverseFlops;
  }
  return flops * Cube(plan.shape().block_size);
}

}  // namespace blockd
