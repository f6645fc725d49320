// The condition number of A, estimated from a factorization by a few solves.
#ifndef BLOCKD_ENGINE_CONDITION_H_
#define BLOCKD_ENGINE_CONDITION_H_

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

// ||A|| ||inv(A)||, 1-norms: ||inv(A)|| by Hager's method as Higham gives it (Algorithm 4.1 of
// "FORTRAN codes for estimating the one-norm of a real or complex matrix", ACM TOMS 14, 1988;
// LAPACK's xLACN2), a lower bound that is rarely below a third of it; at most 11 solves of one
// column. matrix: device memory. CANCELLED between two solves once `cancelled` is true.
// Takes ConditionWorkspaceBytes of the backend's pool, and N n scalars of the host's. On the factor
// track, which it leaves idle.
absl::StatusOr<double> EstimateCondition(Backend& backend, const EliminationPlan& plan,
                                         const BlockTridiagonalView& matrix,
                                         const FactorRef& factor,
                                         const std::atomic<bool>* cancelled);
int64_t ConditionWorkspaceBytes(const EliminationPlan& plan);

}  // namespace blockd

#endif  // BLOCKD_ENGINE_CONDITION_H_
