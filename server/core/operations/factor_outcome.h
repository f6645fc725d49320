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

// The budget had room, so a refusal by the pool means that it is in pieces: makes larger ones, and
// tries once more, each item alone.
std::vector<FactorOutcome> FactorWithRetry(Shard& shard,
                                           const std::shared_ptr<const EliminationPlan>& plan,
                                           std::span<const FactorItem> items, Phases* phases);

// A refusal of pieces of so many bytes by a pool that is in pieces, said as every lack of memory
// is, with a RetryAfter; any other status as it is.
absl::Status SayInPieces(Shard& shard, const absl::Status& status, std::span<const int64_t> pieces);

}  // namespace blockd::server

#endif  // BLOCKD_SERVER_CORE_OPERATIONS_FACTOR_OUTCOME_H_
