// The steps on a device that tasks are made of. The budget had room for each of them, so a refusal
// by the pool means that its memory is in pieces: a step then makes larger ones, and tries once
// more, each item alone.
//
// Called by the threads that feed the device.
#ifndef BLOCKD_SERVER_CORE_OPERATIONS_STEPS_H_
#define BLOCKD_SERVER_CORE_OPERATIONS_STEPS_H_

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "blockd/engine/solver.h"
#include "server/core/shard/shard.h"

namespace blockd::server {

inline void AddTo(Phases& sum, const Phases& more) {
  sum.upload_seconds += more.upload_seconds;
  sum.compute_seconds += more.compute_seconds;
  sum.download_seconds += more.download_seconds;
}

// One outcome an item, in order.
std::vector<FactorOutcome> FactorWithRetry(Shard& shard,
                                           const std::shared_ptr<const EliminationPlan>& plan,
                                           std::span<const FactorItem> items, Phases* phases);
// On the track of what factors.
std::vector<SolveOutcome> SolveWithRetry(Shard& shard, std::span<const SolveItem> items,
                                         Phases* phases);

// The factorization's inverse on the track of what factors, and the pieces of device memory that it
// takes; bytes.
absl::Status InvertWithRetry(Shard& shard, const InverseItem& item, const InverseOutput& output,
                             Phases* phases);
std::vector<int64_t> InversePieces(Shard& shard, const InverseItem& item);
double PredictedInverseSeconds(const EliminationPlan& plan, const CostModel& costs);
double InverseFlops(const EliminationPlan& plan);

// All samples of the item, so many together that more would be no faster; and the pieces of device
// memory, in bytes, that they take of a factorization with such a border.
absl::Status SampleWithRetry(Shard& shard, const SampleItem& item, std::span<std::byte> samples);
std::vector<int64_t> SamplePieces(Shard& shard, const EliminationPlan& plan, int64_t num_samples,
                                  int64_t border_rows);
double PredictedSampleSeconds(const EliminationPlan& plan, const CostModel& costs,
                              int64_t num_samples);
double SampleFlops(const EliminationPlan& plan, int64_t num_samples);

// A refusal of pieces of so many bytes by a pool that is in pieces, said as every lack of memory
// is, with a RetryAfter; any other status as it is.
absl::Status SayInPieces(Shard& shard, const absl::Status& status, std::span<const int64_t> pieces);

}  // namespace blockd::server

#endif  // BLOCKD_SERVER_CORE_OPERATIONS_STEPS_H_
