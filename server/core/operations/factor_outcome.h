// The description of a system that was factored or not: where it is not positive definite, and
// whether it holds NaN there.
#ifndef BLOCKD_SERVER_CORE_OPERATIONS_FACTOR_OUTCOME_H_
#define BLOCKD_SERVER_CORE_OPERATIONS_FACTOR_OUTCOME_H_

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "blockd/engine/solver.h"
#include "server/core/shard/shard.h"
#include "server/core/shard/task.h"

namespace blockd::server {

// A matrix in the host's memory or, if `staged` is set, in the device's; or its form alone, if it
// was made on the device for the factorization.
struct MatrixSource {
  BlockTridiagonalView host = {};
  const StagedMatrix* staged = nullptr;
  const BlockTridiagonalView& view() const { return staged ? staged->view() : host; }
};

// For the task's answer, if the outcome is not OK; OK else.
absl::Status OutcomeStatus(Shard& shard, const Task& task, const MatrixSource& matrix,
                           int64_t system, const FactorOutcome& outcome);

}  // namespace blockd::server

#endif  // BLOCKD_SERVER_CORE_OPERATIONS_FACTOR_OUTCOME_H_
