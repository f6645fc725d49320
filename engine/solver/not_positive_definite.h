// Which leading minor of a matrix that is not positive definite is the first that fails.
//
// A factorization in the plan's own order meets some pivot that is not positive; the first leading
// minor that is not, in natural order, may be another. Leading minors are monotone: if the first p
// blocks are positive definite, so are the first p - 1. So the search factors prefixes of the
// matrix, with open plans (elimination_plan.h), which keep the last block of a prefix to the end
// and thereby meet its pivots in natural order, and ends with the prefix in which everything is
// positive but a pivot of the last block.
#ifndef BLOCKD_ENGINE_SOLVER_NOT_POSITIVE_DEFINITE_H_
#define BLOCKD_ENGINE_SOLVER_NOT_POSITIVE_DEFINITE_H_

#include <atomic>
#include <cstdint>

#include "absl/status/statusor.h"
#include "blockd/engine/backend.h"
#include "blockd/engine/solver.h"

namespace blockd {

// A factorization that has ended with a failure, and its memory, which the search works in.
struct FailedFactorization {
  const EliminationPlan* plan = nullptr;
  FactorSystem system;  // factor and chains: what the plan asks for
  void* scratch = nullptr;
  int64_t scratch_bytes = 0;
  PivotFailure failure;
  const std::atomic<bool>* cancelled = nullptr;  // looked at between factorizations and in them
};

// Takes no memory of the device but what it is given, and at most about 2 log2(N) factorizations;
// one or two if the pivot that failed belongs to the block that is to blame. CANCELLED, or what a
// factorization said, with the factor track idle. Where rounding lets the natural order succeed,
// the answer is the pivot that failed in the plan's order, and says so.
absl::StatusOr<NotPositiveDefinite> FindFirstBadMinor(Backend& backend,
                                                      const FailedFactorization& failed);

}  // namespace blockd

#endif  // BLOCKD_ENGINE_SOLVER_NOT_POSITIVE_DEFINITE_H_
