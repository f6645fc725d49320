// How a chain is cut into segments: what a level of a plan consists of, and what the cost model
// prices.
#ifndef BLOCKD_ENGINE_PLAN_PLAN_CUTS_H_
#define BLOCKD_ENGINE_PLAN_PLAN_CUTS_H_

#include <cstdint>

#include "blockd/engine/elimination_plan.h"

namespace blockd {

// Flops of one eliminated block, in n^3: chol 1/3, C 1, D -= C C' 1; with fill also W 1, W W' 1,
// W C' 2.
inline constexpr double kPlainFlops = 7.0 / 3.0;
inline constexpr double kFillFlops = 19.0 / 3.0;

inline double Cube(int64_t n) {
  return static_cast<double>(n) * static_cast<double>(n) * static_cast<double>(n);
}

// How long the segments of a chain are that has separators: two ends and the middles between them.
struct Cut {
  int64_t first = 0;
  int64_t last = 0;
  int64_t middles = 0;     // segments between two separators
  int64_t in_middles = 0;  // interiors of all of them; they differ by at most one

  // Blocks of the i-th one.
  int64_t middle(int64_t i) const {
    return in_middles / middles + (i < in_middles % middles ? 1 : 0);
  }
};

// The ends are `end_length` times as long as the middles, about. Of an open chain the last block is
// a separator, and `last` is 0.
Cut MakeCut(int64_t chain, int64_t separators, double end_length, bool open = false);

// A segment at a free end takes less time a block, so it is made so much longer and all segments of
// a level end together; but not where a block is spread over all lanes, and takes as long with a
// fill as without.
double EndLength(int64_t n, const CostModel& costs);

}  // namespace blockd

#endif  // BLOCKD_ENGINE_PLAN_PLAN_CUTS_H_
