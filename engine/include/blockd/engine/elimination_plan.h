// The symbolic phase: in which order the blocks of a system are eliminated, and what that costs.
//
// A level is a chain of blocks. Some of them are separators; the runs between two separators are
// segments, and their blocks are the interiors. All segments of a level are eliminated in parallel;
// the separators, with the Schur complement that the elimination leaves on them, are the next
// level's chain. The last level (the base) has one segment, no separators, and is eliminated in
// sequence.
//
//     chain        o o o o | o o o | o o o | o o o o       | separator, o interior
//     segments     0 ->      1 ->    2 ->    <- 3
//
// A segment between two separators carries a fill block W toward its left separator; the first and
// the last segment of a chain need none, because the chain's ends are free: the first runs left to
// right, the last right to left (`reversed`), each toward its only separator. One separator alone
// is the twisted factorization, none the sequential one. See engine/README.md for the formulas and
// flops.
//
// An open plan keeps the last block of its chain to the end: on every level it is the last
// separator, with no segment after it. So its pivots are those of the natural order. Such a plan is
// for finding out where a matrix is not positive definite (not_positive_definite.h), not for
// solving.
//
// A plan is a pure function of the shape, the number of systems a batch and the cost model. It is
// immutable, and any thread may read it.
#ifndef BLOCKD_ENGINE_ELIMINATION_PLAN_H_
#define BLOCKD_ENGINE_ELIMINATION_PLAN_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "blockd/engine/block_tridiagonal.h"

namespace blockd {

// The costs of systems of one shape on a backend. engine/README.md and engine/gpu/README.md have
// the numbers and say how they were fitted.
struct CostModel {
  double lanes = 1;                         // segments that run at once without slowing one another
  double solve_lanes = 1;                   // the same of a solve
  double lane_flops_per_second = 4.8e10;    // of one segment alone, at large n
  double device_flops_per_second = 4.8e10;  // of all lanes together, at large n
  double half_rate_block_size = 40;         // n at which half of the rates above is reached
  double bytes_per_second = 3.4e10;         // of all lanes together
  double step_seconds = 1.5e-7;             // latency of one block of a segment, beside its flops
  double step_seconds_per_row = 0;          // and what each of its n rows adds to that
  double fill_seconds_per_row = 0;          // and to that of a block which carries a fill
  // If blocks are spread over all lanes, all segments go forward in lock-step: a level takes its
  // longest segment's steps one after another or all its flops, whatever is longer, and more where
  // these are alike (the root of the sum of squares).
  bool spread = false;
  double spread_seconds_per_row = 0;    // of a step, for each of its n rows
  double spread_seconds_per_entry = 0;  // and for each of its n^2 entries
  double spread_flops_per_second = 0;
  double spread_half_rate_block_size = 0;
  double spread_level_seconds = 0;
  double level_seconds = 8e-6;  // starting and joining one level's segments
  // Seconds that a solve spends on each block of a segment, in each direction, beside its bytes and
  // flops; and on each level.
  double solve_step_seconds = 1.5e-7;
  double solve_step_seconds_per_row = 0;
  double solve_level_seconds = 8e-6;
  double system_seconds = 0;  // that a call takes on the host for each of its systems
};

// A run of blocks that is eliminated in sequence.
struct Segment {
  int64_t first = 0;       // chain index of the leftmost interior
  int64_t count = 0;       // interiors, >= 1; 0 in an open plan's last segments
  int64_t slot = 0;        // index of the first eliminated interior among the level's interiors
  int64_t fill_slot = -1;  // the same among those that carry W, -1 if the segment carries none
  int64_t left_separator = -1;  // index in the next level's chain, -1 if the end is free
  int64_t right_separator = -1;
  bool reversed = false;  // eliminated from right to left (only a last segment)

  bool has_fill() const { return fill_slot >= 0; }
  // Chain index of the k-th interior in the order of elimination.
  int64_t block(int64_t k) const { return reversed ? first + count - 1 - k : first + k; }
};

struct Level {
  int64_t chain_length = 0;
  std::vector<Segment> segments;    // left to right
  std::vector<int64_t> separators;  // chain indices, left to right; segments.size() - 1 of them
  int64_t interiors = 0;
  int64_t fills = 0;  // interiors that carry W
  // Offsets, in scalars, of this level's arrays in the factor. One entry an interior, at its slot:
  int64_t inverse_offset = 0;  // inv(L), TriangleScalars(n) each
  int64_t next_offset = 0;     // C, n*n each, toward the block that is eliminated next or, for
                               // a segment's last interior, toward its separator; the base's
                               // last interior has none
  int64_t fill_offset = 0;     // W, n*n each, at its fill slot
};

// inv(L) is lower triangular and stored in block columns of kPanel columns: block column p holds
// rows p*kPanel .. n-1 of columns p*kPanel .. min(n, (p+1)*kPanel)-1, column-major with leading
// dimension n - p*kPanel. Zeros above the diagonal are stored.
//
// A multiplication by inv(L) magnifies rounding errors by the growth of the block (FactorReport). A
// block whose growth is above kMostGrowth is solved by substitution instead: it holds -L in the
// place and the layout of inv(L). The sign of its first entry tells the two apart, because diagonal
// entries of L and of inv(L) are positive. What such a block gives to its C, W and Schur
// complements is also computed by substitution.
inline constexpr double kMostGrowth = 100;
inline constexpr int64_t kPanel = 8;
int64_t TriangleScalars(int64_t n);
// Scalars before block column p.
int64_t TrianglePanelOffset(int64_t n, int64_t p);

class EliminationPlan {
 public:
  // A plan for `batch` >= 1 systems of one shape that are factored together, fastest by the cost
  // model. INVALID_ARGUMENT if the shape is not valid.
  static absl::StatusOr<EliminationPlan> Make(const Shape& shape, int64_t batch,
                                              const CostModel& costs);
  // A plan whose levels have the given numbers of separators, for tests and experiments; the base
  // follows. INVALID_ARGUMENT if a level cannot be cut so (s separators need 2s+1 blocks).
  // `costs` says how long a level's ends are.
  static absl::StatusOr<EliminationPlan> MakeWithSeparators(const Shape& shape,
                                                            const std::vector<int64_t>& separators,
                                                            const CostModel& costs = {});
  // An open plan; s separators need 2s blocks. The one without separators is not different.
  static absl::StatusOr<EliminationPlan> MakeOpen(const Shape& shape,
                                                  const std::vector<int64_t>& separators,
                                                  const CostModel& costs = {});

  const Shape& shape() const { return shape_; }
  const std::vector<Level>& levels() const { return levels_; }  // at least one, the base last
  bool is_open() const { return levels_.front().segments.back().count == 0; }
  // The block of the system that stands at `block` in the chain of `level`.
  int64_t OriginalBlock(int64_t level, int64_t block) const;
  int64_t host_bytes() const;  // what the plan itself takes of the host's memory
  int64_t factor_bytes() const { return factor_scalars_ * ScalarBytes(shape_.scalar); }
  // Scalars of the reduced chains while one system is factored: for each separator of each level
  // two contributions to its diagonal block and one coupling block, 3 n^2.
  int64_t chain_scalars() const { return chain_scalars_; }
  int64_t separators() const { return separators_; }  // of all levels together
  // Scalars that solving for num_rhs columns needs beside them: two vectors for each separator,
  // what its two segments leave on it, and one for each segment.
  int64_t solve_chain_scalars(int64_t num_rhs) const {
    const int64_t segments = separators_ + static_cast<int64_t>(levels_.size());
    return (2 * separators_ + segments) * shape_.block_size * num_rhs;
  }
  double factor_flops() const { return factor_flops_; }  // of one system
  double solve_flops(int64_t num_rhs) const;
  double solve_bytes(
      int64_t num_rhs) const;       // factor read forward and back, right-hand sides moved
  std::string DebugString() const;  // a line a level

  // Equal plans eliminate the same blocks in the same order and lay the factor out alike, so that
  // systems which were factored with one are solved together with those of the other. Where they
  // come from, which batch or which object, does not matter.
  friend bool operator==(const EliminationPlan& a, const EliminationPlan& b);
  // The same for equal plans, in every process; costs nothing.
  uint64_t fingerprint() const { return fingerprint_; }
  template <typename H>
  friend H AbslHashValue(H h, const EliminationPlan& plan) {
    return H::combine(std::move(h), plan.fingerprint_);
  }

 private:
  EliminationPlan() = default;
  enum class End : bool { kFree, kOpen };  // of each level's chain, on the right
  static absl::StatusOr<EliminationPlan> MakeChecked(const Shape& shape,
                                                     const std::vector<int64_t>& separators,
                                                     const CostModel& costs, End end);
  static EliminationPlan Build(const Shape& shape, const std::vector<int64_t>& separators,
                               double end_length, End end);

  Shape shape_;
  std::vector<Level> levels_;
  int64_t factor_scalars_ = 0;
  int64_t chain_scalars_ = 0;
  int64_t separators_ = 0;
  double factor_flops_ = 0;
  uint64_t fingerprint_ = 0;
};

// Seconds that the cost model predicts for factoring `systems` systems together on the device.
double PredictedFactorSeconds(const EliminationPlan& plan, const CostModel& costs,
                              int64_t systems = 1);
// Seconds that the cost model predicts for a Solve with `num_rhs` right-hand sides on the device.
double PredictedSolveSeconds(const EliminationPlan& plan, int64_t num_rhs, const CostModel& costs,
                             int64_t systems = 1);

}  // namespace blockd

#endif  // BLOCKD_ENGINE_ELIMINATION_PLAN_H_
