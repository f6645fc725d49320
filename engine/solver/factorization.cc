#include "blockd/engine/factorization.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "blockd/engine/backend.h"

namespace blockd {
namespace {

double Epsilon(Scalar scalar) {
  return scalar == Scalar::kFloat64 ? std::numeric_limits<double>::epsilon()
                                    : std::numeric_limits<float>::epsilon();
}

}  // namespace

double Backend::ResidualNorms::backward_error() const {
  if (!std::isfinite(residual) || std::isnan(matrix) || !std::isfinite(solution) ||
      !std::isfinite(rhs)) {
    return std::isnan(residual) ? residual : std::numeric_limits<double>::infinity();
  }
  // The residual is finite, so no entry of A is infinite: what overflowed is a row's sum, and more
  // than the largest number. The product of two norms may leave the range of double.
  const double largest = std::min(matrix, std::numeric_limits<double>::max());
  const long double scale =
      static_cast<long double>(largest) * static_cast<long double>(solution) + rhs;
  return scale > 0 ? static_cast<double>(residual / scale) : residual;
}

double BackwardErrorBound(const Shape& shape, double growth, int64_t border_rows) {
  // Blocks beyond kMostGrowth, or of a growth that is not a number, are solved by substitution.
  const double multiplied = growth <= kMostGrowth ? growth : kMostGrowth;
  const double factor = std::max(1.0, multiplied / kSafeGrowth);
  return 4 * static_cast<double>(shape.block_size + border_rows) * Epsilon(shape.scalar) * factor;
}

double BackwardErrorGoal(const Shape& shape) { return BackwardErrorBound(shape, 1); }

// The indices stand between the blocks and the border.
int64_t StagedMatrix::DiagonalIndexOffset(const MatrixForm& form) {
  return MemoryPool::Rounded(form.diagonal_bytes()) + MemoryPool::Rounded(form.coupling_bytes());
}

int64_t StagedMatrix::CouplingIndexOffset(const MatrixForm& form) {
  const int64_t entries = form.diagonal_palette > 0 ? form.shape.num_blocks : 0;
  return DiagonalIndexOffset(form) + MemoryPool::Rounded(entries * int64_t{sizeof(uint32_t)});
}

int64_t StagedMatrix::Offset(const MatrixForm& form, MatrixPart part) {
  if (part == MatrixPart::kDiagonal) return 0;
  if (part == MatrixPart::kCoupling) return MemoryPool::Rounded(form.diagonal_bytes());
  const int64_t entries = form.coupling_palette > 0 ? form.shape.num_blocks - 1 : 0;
  const int64_t border =
      CouplingIndexOffset(form) + MemoryPool::Rounded(entries * int64_t{sizeof(uint32_t)});
  return part == MatrixPart::kBorder ? border : border + MemoryPool::Rounded(form.border_bytes());
}

int64_t StagedMatrix::BufferBytes(const MatrixForm& form) {
  return Offset(form, MatrixPart::kCorner) + MemoryPool::Rounded(form.corner_bytes());
}

BlockTridiagonalView StagedMatrix::ViewAt(const MatrixForm& form, const std::byte* base) {
  BlockTridiagonalView view;
  view.form = form;
  for (const MatrixPart part : kMatrixParts) {
    if (form.bytes(part) > 0) view.part(part) = base + Offset(form, part);
  }
  if (form.diagonal_palette > 0) {
    view.diagonal_index = reinterpret_cast<const uint32_t*>(base + DiagonalIndexOffset(form));
  }
  if (form.coupling_palette > 0) {
    view.coupling_index = reinterpret_cast<const uint32_t*>(base + CouplingIndexOffset(form));
  }
  return view;
}

StagedMatrix::StagedMatrix(const MatrixForm& form, DeviceBuffer buffer)
    : view_(ViewAt(form, buffer.data())), buffer_(std::move(buffer)) {}

DeviceBuffer Factorization::Recycle(std::shared_ptr<Factorization> factorization) {
  if (factorization == nullptr || factorization.use_count() != 1) return DeviceBuffer();
  return std::move(factorization->factor_);
}

}  // namespace blockd
