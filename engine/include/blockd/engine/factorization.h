// A factored system: the plan, one piece of device memory, and, if asked for, the matrix itself.
//
// Immutable and device resident; any thread may hold one, and the Solver reads it. Its charge is
// bytes(): the plan's factor_bytes plus the kept matrix.
#ifndef BLOCKD_ENGINE_FACTORIZATION_H_
#define BLOCKD_ENGINE_FACTORIZATION_H_

#include <memory>
#include <optional>
#include <utility>

#include "blockd/engine/block_tridiagonal.h"
#include "blockd/engine/elimination_plan.h"
#include "blockd/engine/memory_pool.h"

namespace blockd {

// A matrix in device memory, one buffer: diagonal blocks, coupling blocks, then the palette
// indices, each part starting at a multiple of MemoryPool::kAlignment.
class StagedMatrix {
 public:
  StagedMatrix() = default;
  // `buffer` holds BufferBytes(form).
  StagedMatrix(const MatrixForm& form, DeviceBuffer buffer);
  static int64_t BufferBytes(const MatrixForm& form);

  const BlockTridiagonalView& view() const { return view_; }  // device addresses
  int64_t bytes() const { return buffer_.bytes(); }
  explicit operator bool() const { return static_cast<bool>(buffer_); }
  // Where the parts lie in the buffer, in bytes.
  static int64_t CouplingOffset(const MatrixForm& form);
  static int64_t DiagonalIndexOffset(const MatrixForm& form);
  static int64_t CouplingIndexOffset(const MatrixForm& form);
  std::byte* data() const { return buffer_.data(); }

 private:
  BlockTridiagonalView view_;
  DeviceBuffer buffer_;
};

class Factorization {
 public:
  Factorization(std::shared_ptr<const EliminationPlan> plan, DeviceBuffer factor,
                StagedMatrix matrix)
      : plan_(std::move(plan)), factor_(std::move(factor)), matrix_(std::move(matrix)) {}

  const EliminationPlan& plan() const { return *plan_; }
  const std::shared_ptr<const EliminationPlan>& shared_plan() const { return plan_; }
  const Shape& shape() const { return plan_->shape(); }
  const void* data() const { return factor_.data(); }
  int64_t bytes() const { return factor_.bytes() + matrix_.bytes(); }
  // The matrix on the device, if it was kept: residuals and refinement need it.
  const StagedMatrix& matrix() const { return matrix_; }

  // Takes the factor's memory out of a factorization that nobody else holds, to be overwritten by
  // the next one of the same plan; an empty buffer if somebody does hold it.
  static DeviceBuffer Recycle(std::shared_ptr<Factorization> factorization);

 private:
  std::shared_ptr<const EliminationPlan> plan_;
  DeviceBuffer factor_;
  StagedMatrix matrix_;
};

}  // namespace blockd

#endif  // BLOCKD_ENGINE_FACTORIZATION_H_
