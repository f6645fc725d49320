#include "server/core/operations/factor_outcome.h"

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/core/common/errors.h"
#include "server/core/common/finite_scanner.h"

namespace blockd::server {
namespace {

constexpr int64_t kPieceBytes = int64_t{1} << 20;  // of a block, read back from the device together

// Where a part of the matrix, or of its palette's indices, lies: in the host's memory or, if the
// caller sent it in chunks, in the device's.
struct Place {
  const void* host;
  int64_t staged;
};

Place PlaceOf(const MatrixSource& matrix, MatrixPart part) {
  return {matrix.view().part(part), StagedMatrix::Offset(matrix.view().form, part)};
}

Place PlaceOfIndex(const MatrixSource& matrix, bool diagonal) {
  const BlockTridiagonalView& view = matrix.view();
  return diagonal ? Place{view.diagonal_index, StagedMatrix::DiagonalIndexOffset(view.form)}
                  : Place{view.coupling_index, StagedMatrix::CouplingIndexOffset(view.form)};
}

// Bytes of it from `offset` on.
absl::Status ReadPart(Solver& solver, const MatrixSource& matrix, const Place& place,
                      int64_t offset, std::span<std::byte> out) {
  if (matrix.staged != nullptr) return solver.Read(*matrix.staged, place.staged + offset, out);
  std::copy_n(static_cast<const std::byte*>(place.host) + offset, out.size(), out.data());
  return absl::OkStatus();
}

// The scanner's finding in `bytes` bytes of a part from `begin` on; empty if all are finite.
absl::StatusOr<std::string> ScanPart(Solver& solver, const MatrixSource& matrix, MatrixPart part,
                                     int64_t begin, int64_t bytes, FiniteScanner scanner) {
  const Place place = PlaceOf(matrix, part);
  std::vector<std::byte> piece(static_cast<size_t>(std::min(bytes, kPieceBytes)));
  for (int64_t at = 0; at < bytes; at += kPieceBytes) {
    piece.resize(static_cast<size_t>(std::min(bytes - at, kPieceBytes)));
    absl::Status status = ReadPart(solver, matrix, place, begin + at, piece);
    if (!status.ok()) return status;
    const std::optional<InvalidField> found = InvalidFieldOf(scanner.Scan(piece));
    if (found) return absl::StrCat(found->field, ": ", found->came);
  }
  return "";
}

// Row `row` of the border, and its corner.
absl::StatusOr<std::string> WhereNotFiniteInBorder(Solver& solver, const MatrixSource& matrix,
                                                   int64_t system, int64_t row) {
  const MatrixForm& form = matrix.view().form;
  const int64_t row_bytes = form.border_bytes() / form.border_rows;
  const int64_t before = form.diagonal_bytes() + form.coupling_bytes();
  absl::StatusOr<std::string> found =
      ScanPart(solver, matrix, MatrixPart::kBorder, row * row_bytes, row_bytes,
               FiniteScanner::AtByte(form, system, before + row * row_bytes));
  if (!found.ok() || !found->empty()) return found;
  return ScanPart(solver, matrix, MatrixPart::kCorner, 0, form.corner_bytes(),
                  FiniteScanner::AtByte(form, system, before + form.border_bytes()));
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
      absl::Status status =
          ReadPart(solver, matrix, PlaceOfIndex(matrix, diagonal), stored * int64_t{sizeof(stored)},
                   std::as_writable_bytes(std::span(&stored, 1)));
      if (!status.ok()) return status;
    }
    const int64_t bytes =
        ScalarBytes(form.shape.scalar) *
        (diagonal ? form.diagonal_block_scalars() : form.coupling_block_scalars());
    absl::StatusOr<std::string> found =
        ScanPart(solver, matrix, diagonal ? MatrixPart::kDiagonal : MatrixPart::kCoupling,
                 stored * bytes, bytes, FiniteScanner::AtBlock(form, system, diagonal, stored));
    if (!found.ok() || !found->empty()) return found;
  }
  return "";
}

}  // namespace

absl::Status NotSpdStatus(Shard& shard, const MatrixSource& matrix, int64_t system,
                          const NotPositiveDefinite& where) {
  shard.metrics().RecordNotPositiveDefinite();
  const bool is_gone = matrix.view().diagonal == nullptr;
  if (!where.natural_order || is_gone) return NotSpdError(system, where);
  const bool in_border = where.block == matrix.view().shape().num_blocks;
  absl::StatusOr<std::string> not_finite =
      in_border ? WhereNotFiniteInBorder(shard.solver(), matrix, system, where.row)
                : WhereNotFinite(shard.solver(), matrix, system, where.block);
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

}  // namespace blockd::server
