#include "blockd/engine/factorization.h"

namespace blockd {

int64_t StagedMatrix::CouplingOffset(const MatrixForm& form) {
  return MemoryPool::Rounded(form.diagonal_bytes());
}

int64_t StagedMatrix::DiagonalIndexOffset(const MatrixForm& form) {
  return CouplingOffset(form) + MemoryPool::Rounded(form.coupling_bytes());
}

int64_t StagedMatrix::CouplingIndexOffset(const MatrixForm& form) {
  const int64_t entries = form.diagonal_palette > 0 ? form.shape.num_blocks : 0;
  return DiagonalIndexOffset(form) + MemoryPool::Rounded(entries * int64_t{sizeof(uint32_t)});
}

int64_t StagedMatrix::BufferBytes(const MatrixForm& form) {
  const int64_t entries = form.coupling_palette > 0 ? form.shape.num_blocks - 1 : 0;
  return CouplingIndexOffset(form) + MemoryPool::Rounded(entries * int64_t{sizeof(uint32_t)});
}

StagedMatrix::StagedMatrix(const MatrixForm& form, DeviceBuffer buffer)
    : buffer_(std::move(buffer)) {
  const std::byte* base = buffer_.data();
  view_.form = form;
  view_.diagonal = base;
  if (form.shape.num_blocks > 1) view_.coupling = base + CouplingOffset(form);
  if (form.diagonal_palette > 0) {
    view_.diagonal_index = reinterpret_cast<const uint32_t*>(base + DiagonalIndexOffset(form));
  }
  if (form.coupling_palette > 0) {
    view_.coupling_index = reinterpret_cast<const uint32_t*>(base + CouplingIndexOffset(form));
  }
}

DeviceBuffer Factorization::Recycle(std::shared_ptr<Factorization> factorization) {
  if (factorization == nullptr || factorization.use_count() != 1) return DeviceBuffer();
  return std::move(factorization->factor_);
}

}  // namespace blockd
