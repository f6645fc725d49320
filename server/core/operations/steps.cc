#include "server/core/operations/steps.h"

#include <algorithm>
#include <utility>

#include "absl/functional/function_ref.h"
#include "server/core/common/errors.h"

namespace blockd::server {
namespace {

// More samples at once are no faster.
constexpr int64_t kMostColumns = 256;
// A factorization has 6.33 n^3 flops a block with fill and 2.33 n^3 without, an inverse 12.3 n^3
// and 4.33 n^3.
constexpr double kInverseOverFactor = 1.9;

absl::Status RunWithRetry(Shard& shard, absl::FunctionRef<absl::Status()> run,
                          absl::FunctionRef<std::vector<int64_t>()> pieces_of) {
  absl::Status status = run();
  if (!absl::IsResourceExhausted(status)) return status;
  const std::vector<int64_t> pieces = pieces_of();
  shard.Defragment(pieces);
  return SayInPieces(shard, run(), pieces);
}

}  // namespace

std::vector<FactorOutcome> FactorWithRetry(Shard& shard,
                                           const std::shared_ptr<const EliminationPlan>& plan,
                                           std::span<const FactorItem> items, Phases* phases) {
  if (items.empty()) return {};
  std::vector<FactorOutcome> outcomes = shard.solver().Factor(plan, items, phases);
  const auto exhausted = [](const FactorOutcome& outcome) {
    return absl::IsResourceExhausted(outcome.status);
  };
  if (std::none_of(outcomes.begin(), outcomes.end(), exhausted)) return outcomes;
  for (size_t i = 0; i < items.size(); ++i) {
    if (!exhausted(outcomes[i])) continue;
    const std::vector<int64_t> pieces = shard.solver().FactorPieces(*plan, items[i]);
    if (shard.Defragment(pieces)) {
      outcomes[i] = std::move(shard.solver().Factor(plan, items.subspan(i, 1))[0]);
    }
    outcomes[i].status = SayInPieces(shard, outcomes[i].status, pieces);
  }
  return outcomes;
}

std::vector<SolveOutcome> SolveWithRetry(Shard& shard, std::span<const SolveItem> items,
                                         Phases* phases) {
  std::vector<SolveOutcome> outcomes = shard.solver().Solve(items, phases, Track::kFactor);
  for (size_t i = 0; i < items.size(); ++i) {
    if (!absl::IsResourceExhausted(outcomes[i].status)) continue;
    const Factorization& factorization = *items[i].factorization;
    const std::vector<int64_t> pieces = shard.solver().SolvePieces(
        factorization.plan(), items[i].num_rhs, static_cast<bool>(factorization.matrix()),
        factorization.border().rows());
    shard.Defragment(pieces);
    outcomes[i] = shard.solver().Solve(items.subspan(i, 1), nullptr, Track::kFactor)[0];
    outcomes[i].status = SayInPieces(shard, outcomes[i].status, pieces);
  }
  return outcomes;
}

// -----------------------------------------------------------------------------------------------------
// Inverses and samples

absl::Status InvertWithRetry(Shard& shard, const InverseItem& item, const InverseOutput& output,
                             Phases* phases) {
  return RunWithRetry(
      shard, [&] { return shard.solver().SelectedInverse(item, output, Track::kFactor, phases); },
      [&] { return InversePieces(shard, item); });
}

std::vector<int64_t> InversePieces(Shard& shard, const InverseItem& item) {
  Solver& solver = shard.solver();
  const EliminationPlan& plan = item.factorization->plan();
  const int64_t p = item.factorization->border().rows();
  const int64_t scratch = MemoryPool::Rounded(
      solver.backend().InverseScratchBytes(plan, item.first_block, item.num_blocks));
  const auto bytes = [&](int64_t border_rows) {
    return solver.InverseWorkspaceBytes(plan, item.parts, item.first_block, item.num_blocks,
                                        border_rows);
  };
  std::vector<int64_t> pieces = {bytes(0) - scratch, scratch};
  if (item.factorization->substitutes()) {
    pieces.push_back(MemoryPool::Rounded(plan.factor_bytes()));
  }
  if (p > 0) pieces.push_back(bytes(p) - bytes(0));
  return pieces;
}

double PredictedInverseSeconds(const EliminationPlan& plan, const CostModel& costs) {
  return kInverseOverFactor * PredictedFactorSeconds(plan, costs);
}

double InverseFlops(const EliminationPlan& plan) {
  return kInverseOverFactor * plan.factor_flops();
}

absl::Status SampleWithRetry(Shard& shard, const SampleItem& item, std::span<std::byte> samples) {
  const Factorization& factorization = *item.factorization;
  const int64_t column = factorization.rows() * ScalarBytes(factorization.shape().scalar);
  const auto draw = [&] {
    SampleItem some = item;
    absl::Status status;
    for (int64_t done = 0; done < item.num_samples && status.ok(); done += some.num_samples) {
      some.first_sample = item.first_sample + static_cast<uint64_t>(done);
      some.num_samples = std::min(item.num_samples - done, kMostColumns);
      status = shard.solver().Sample(some, samples.data() + done * column, Track::kFactor);
    }
    return status;
  };
  return RunWithRetry(shard, draw, [&] {
    return SamplePieces(shard, factorization.plan(), item.num_samples,
                        factorization.border().rows());
  });
}

std::vector<int64_t> SamplePieces(Shard& shard, const EliminationPlan& plan, int64_t num_samples,
                                  int64_t border_rows) {
  std::vector<int64_t> pieces = shard.solver().SolvePieces(
      plan, std::min(num_samples, kMostColumns), /*residual=*/false, border_rows);
  for (int64_t& bytes : pieces) bytes = MemoryPool::Rounded(bytes);
  return pieces;
}

// Half a solve.
double PredictedSampleSeconds(const EliminationPlan& plan, const CostModel& costs,
                              int64_t num_samples) {
  return PredictedSolveSeconds(plan, num_samples, costs) / 2;
}

double SampleFlops(const EliminationPlan& plan, int64_t num_samples) {
  return plan.solve_flops(num_samples) / 2;
}

absl::Status SayInPieces(Shard& shard, const absl::Status& status,
                         std::span<const int64_t> pieces) {
  if (!absl::IsResourceExhausted(status) || InsufficientMemoryOf(status)) return status;
  const PoolStats pool = shard.solver().backend().pool().stats();
  int64_t bytes = 0;
  for (const int64_t piece : pieces) bytes += MemoryPool::Rounded(piece);
  return WithRetryAfter(InsufficientMemoryError({.asked_bytes = bytes,
                                                 .free_bytes = pool.free_bytes,
                                                 .evictable_bytes = shard.cache().EvictableBytes(),
                                                 .total_bytes = shard.device().total()}),
                        shard.limits().retry_delay);
}

}  // namespace blockd::server
