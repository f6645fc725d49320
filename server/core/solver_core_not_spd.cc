// What is said of a matrix that is not positive definite: where, and whether it holds NaN there.
#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/core/finite_scanner.h"
#include "server/core/solver_core_impl.h"

namespace blockd::server {
namespace {

constexpr int64_t kPieceBytes = int64_t{1} << 20;  // of a block, read back from the device together

}  // namespace

// One part of the matrix from byte `offset` on, from the host's memory or, if the caller sent it in
// chunks, from the device's.
absl::Status SolverCore::Impl::ReadPart(const MatrixSource& matrix, MatrixPart part, int64_t offset,
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
  if (matrix.staged != nullptr) return solver_->Read(*matrix.staged, staged + offset, out);
  std::copy_n(static_cast<const std::byte*>(host) + offset, out.size(), out.data());
  return absl::OkStatus();
}

// NaN fails the pivot of the row that it stands in, in natural order: only the blocks of that block
// row need to be looked at.
absl::StatusOr<std::string> SolverCore::Impl::WhereNotFinite(const MatrixSource& matrix,
                                                             int64_t system, int64_t block) {
  const MatrixForm& form = matrix.view().form;
  for (const bool diagonal : {true, false}) {
    if (!diagonal && block == 0) continue;
    uint32_t stored = static_cast<uint32_t>(diagonal ? block : block - 1);
    if ((diagonal ? form.diagonal_palette : form.coupling_palette) > 0) {
      absl::Status status =
          ReadPart(matrix, diagonal ? MatrixPart::kDiagonalIndex : MatrixPart::kCouplingIndex,
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
          ReadPart(matrix, diagonal ? MatrixPart::kDiagonal : MatrixPart::kCoupling,
                   stored * bytes + at, piece);
      if (!status.ok()) return status;
      const std::optional<InvalidField> found = InvalidFieldOf(scanner.Scan(piece));
      if (found) return absl::StrCat(found->field, ": ", found->came);
    }
  }
  return "";
}

absl::Status SolverCore::Impl::NotSpdStatus(const MatrixSource& matrix, int64_t system,
                                            const NotPositiveDefinite& where) {
  metrics_->RecordNotPositiveDefinite();
  if (!where.natural_order) return NotSpdError(system, where);
  absl::StatusOr<std::string> not_finite = WhereNotFinite(matrix, system, where.block);
  Note(not_finite.status());
  return NotSpdError(system, where, not_finite.ok() ? *not_finite : "");
}

}  // namespace blockd::server
