// Which part of each level a selected inverse of some blocks has to come to.
#ifndef BLOCKD_ENGINE_INVERSE_RANGES_H_
#define BLOCKD_ENGINE_INVERSE_RANGES_H_

#include <cstdint>
#include <vector>

#include "blockd/engine/elimination_plan.h"

namespace blockd {

// One level's part of an inverse: blocks [first, end) of its chain are wanted, which takes a walk
// through segments [first_segment, end_segment); these need blocks of the next level's chain.
struct InverseRange {
  int64_t first = 0, end = 0;
  int64_t first_segment = 0, end_segment = 0;

  int64_t blocks() const { return end - first; }
  // The interior of a segment, in the order of elimination, that a walk from its end ends with;
  // segment.count: none is wanted, only the right separator.
  int64_t last_interior(const Segment& segment) const;
};

// One a level, for blocks [first, first + count) of the system, count >= 1.
std::vector<InverseRange> InverseRanges(const EliminationPlan& plan, int64_t first, int64_t count);

// Scalars of the chains above the first level: for each block that is wanted its diagonal block of
// the inverse and the coupling block after it, n^2 each. Those of a level lie together, first all
// diagonal blocks, level after level.
int64_t InverseChainScalars(const EliminationPlan& plan, const std::vector<InverseRange>& ranges);

// Flops of the whole selected inverse.
double InverseFlops(const EliminationPlan& plan);

}  // namespace blockd

#endif  // BLOCKD_ENGINE_INVERSE_RANGES_H_
