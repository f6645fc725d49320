#include "server/core/operations/factor_outcome.h"

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/core/errors.h"
#include "server/core/finite_scanner.h"

namespace blockd::server {
namespace {

constexpr int64_t kPieceBytes = int64_t{1} << 20;  // of a block, read back from the device together

enum class MatrixPart { kDiagonal, kCoupling, kDiagonalIndex, kCouplingIndex };

// One part of the matrix from byte `offset` on, from the host's memory or, if the caller sent it in
// chunks, from the device's.
absl::Status ReadPart(Solver& solver, const MatrixSource& matrix, MatrixPart part, int64_t offset,
                      std::span<std::byte> out) {
  const MatrixForm& form = matrix.view().form;
  const BlockTridiagonalView& view = matrix.view();
  const struct {
    const void* host;
    int64_t staged;
  } parts[] = {{view.diagonal, 0},
               {view.coupling, StagedMatrix::CouplingOffset(form)},
               {view.diagonal_index, StagedMatrix::DiagonalIndexOffset(form)},
               {view.coupling_index, StagedMatrix::CouplingIndexOffset(form)}};
  const auto& [host, staged] = parts[static_cast<size_t>(part)];
  if (matrix.staged != nullptr) return solver.Read(*matrix.staged, staged + offset, out);
  std::copy_n(static_cast<const std::byte*>(host) + offset, out.size(), out.data());
  return absl::OkStatus();
}

// NaN fails the pivot of the row that it stands in, in natural order: only the blocks of that block
// row need to be looked at.
absl::StatusOr<std::string> WhereNotFinite(Solver& solver, const MatrixSource& matrix,
                                           int64_t system, int64_t block) {
  const MatrixForm& form = matrix.view().form;
  for (const bool diagonal : {true, false}) {
    if (!diagonal && block == 0) continue;
    uint32_t stored = static_cast<uint32_t>(diagonal ? block : block - 1);
    if ((diagonal ? form.diagonal_palette : form.coupling_palette) > 0) {
      absl::Status status = ReadPart(
          solver, matrix, diagonal ? MatrixPart::kDiagonalIndex : MatrixPart::kCouplingIndex,
          stored * int64_t{sizeof(stored)}, std::as_writable_bytes(std::span(&stored, 1)));
      if (!status.ok()) return status;
    }
    const int64_t bytes =
        ScalarBytes(form.shape.scalar) *
        (diagonal ? form.diagonal_block_scalars() : form.coupling_block_scalars());
    FiniteScanner scanner = FiniteScanner::AtBlock(form, system, diagonal, stored);
    std::vector<std::byte> piece(static_cast<size_t>(std::min(bytes, kPieceBytes)));
    for (int64_t at = 0; at < bytes; at += kPieceBytes) {
      piece.resize(static_cast<size_t>(std::min(bytes - at, kPieceBytes)));
      absl::Status status =
          ReadPart(solver, matrix, diagonal ? MatrixPart::kDiagonal : MatrixPart::kCoupling,
                   stored * bytes + at, piece);
      if (!status.ok()) return status;
      const std::optional<InvalidField> found = InvalidFieldOf(scanner.Scan(piece));
      if (found) return absl::StrCat(found->field, ": ", found->came);
    }
  }
  return "";
}

}  // namespace

absl::Status NotSpdStatus(Shard& shard, const MatrixSource& matrix, int64_t system,
                          const NotPositiveDefinite& where) {
  shard.metrics().RecordNotPositiveDefinite();
  if (!where.natural_order) return NotSpdError(system, where);
  absl::StatusOr<std::string> not_finite =
      WhereNotFinite(shard.solver(), matrix, system, where.block);
  shard.Note(not_finite.status());
  return NotSpdError(system, where, not_finite.ok() ? *not_finite : "");
}

absl::Status OutcomeStatus(Shard& shard, const Task& task, const MatrixSource& matrix,
                           int64_t system, const FactorOutcome& outcome) {
  if (outcome.not_positive_definite) {
    return NotSpdStatus(shard, matrix, system, *outcome.not_positive_definite);
  }
  shard.Note(outcome.status);
  return absl::IsCancelled(outcome.status) ? task.EndStatus(shard.Now()) : outcome.status;
}

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
