// The condition number of A, estimated from a factorization by a few solves.
#ifndef BLOCKD_ENGINE_SOLVER_CONDITION_H_
#define BLOCKD_ENGINE_SOLVER_CONDITION_H_

#include <atomic>
#include <cstdint>

#include "absl/status/statusor.h"
#include "blockd/engine/backend.h"
#include "blockd/engine/elimination_plan.h"

namespace blockd {

// A factor in device memory, and whether some of its blocks hold -L.
struct FactorRef {
  const void* data = nullptr;
  bool substitutes = false;
};

// ||A|| ||x|| / ||A x||, 1-norms, for an x that makes it large: a lower bound of ||A|| ||inv(A)||.
// A x is computed, in double, so that the solves' own errors never make it larger. x comes from
// Hager's method as Higham gives it (Algorithm 4.1 of "FORTRAN codes for estimating the one-norm of
// a real or complex matrix", ACM TOMS 14, 1988; LAPACK's xLACN2), and is refined where A x is far
// off.
//
// It is rarely less than a third of the condition number, or than 1 / BackwardErrorBound if that is
// less: beyond, a solve's error hides how small A x may be. It is at most 2^52, and does not depend
// on the size of A, from subnormal numbers to the largest.
//
// At most 15 solves of one column and 5 products with A. matrix: device memory. CANCELLED
// between two solves once `cancelled` is true. Takes ConditionWorkspaceBytes of the backend's pool,
// and 6 N n doubles of the host's. On the factor track, which it leaves idle.
absl::StatusOr<double> EstimateCondition(Backend& backend, const EliminationPlan& plan,
                                         const BlockTridiagonalView& matrix,
                                         const FactorRef& factor,
                                         const std::atomic<bool>* cancelled);
int64_t ConditionWorkspaceBytes(const EliminationPlan& plan);

}  // namespace blockd

#endif  // BLOCKD_ENGINE_SOLVER_CONDITION_H_
