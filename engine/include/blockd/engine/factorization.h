// A factored system: the plan, one piece of device memory, one more for the border if it has one,
// and, if asked for, the matrix itself.
//
// Immutable and device resident; any thread may hold one, and the Solver reads it. Its charge is
// bytes(): the plan's factor_bytes, the border's and the kept matrix's.
#ifndef BLOCKD_ENGINE_FACTORIZATION_H_
#define BLOCKD_ENGINE_FACTORIZATION_H_

#include <memory>
#include <optional>
#include <utility>

#include "blockd/engine/block_tridiagonal.h"
#include "blockd/engine/elimination_plan.h"
#include "blockd/engine/memory_pool.h"

namespace blockd {

// A matrix in device memory, one buffer: diagonal blocks, coupling blocks, the palette indices, the
// border and its corner, each part starting at a multiple of MemoryPool::kAlignment.
class StagedMatrix {
 public:
  StagedMatrix() = default;
  // `buffer` holds BufferBytes(form).
  StagedMatrix(const MatrixForm& form, DeviceBuffer buffer);
  static int64_t BufferBytes(const MatrixForm& form);
  // The view of a matrix that lies in such a buffer, starting at `base`.
  static BlockTridiagonalView ViewAt(const MatrixForm& form, const std::byte* base);

  const BlockTridiagonalView& view() const { return view_; }  // device addresses
  int64_t bytes() const { return buffer_.bytes(); }
  explicit operator bool() const { return static_cast<bool>(buffer_); }
  // Where the parts lie in the buffer, in bytes.
  static int64_t Offset(const MatrixForm& form, MatrixPart part);
  static int64_t DiagonalIndexOffset(const MatrixForm& form);
  static int64_t CouplingIndexOffset(const MatrixForm& form);
  std::byte* data() const { return buffer_.data(); }

 private:
  BlockTridiagonalView view_;
  DeviceBuffer buffer_;
};

// The border of a factored arrowhead (block_tridiagonal.h). With A = L L' of the chain,
//
//     Y = inv(L) B'     S = C - Y' Y = T T'     log det = log det A + log det S
//
// which is block Cholesky with the border last; serinv's pobtaf computes the same. Y' Y and all
// products with S are summed in double, S and T are in double, for float32 too.
class Border {
 public:
  Border() = default;  // none
  // `buffer` holds Bytes(shape, rows).
  Border(const Shape& shape, int64_t rows, double log_determinant, DeviceBuffer buffer)
      : shape_(shape), rows_(rows), log_determinant_(log_determinant), buffer_(std::move(buffer)) {}
  static int64_t Bytes(const Shape& shape, int64_t rows) {
    return rows == 0 ? 0 : CornerOffset(shape, rows) + rows * rows * int64_t{sizeof(double)};
  }
  // Where T begins in a buffer, in bytes; Y begins at 0.
  static int64_t CornerOffset(const Shape& shape, int64_t rows) {
    return MemoryPool::Rounded(shape.rows() * rows * ScalarBytes(shape.scalar));
  }

  int64_t rows() const { return rows_; }                       // p; 0: there is none
  double log_determinant() const { return log_determinant_; }  // of S
  const std::byte* columns() const { return buffer_.data(); }  // Y, packed [block][column][n]
  const std::byte* corner() const {                            // T, p x p, lower triangle
    return buffer_.data() + CornerOffset(shape_, rows_);
  }
  int64_t bytes() const { return buffer_.bytes(); }

 private:
  Shape shape_;
  int64_t rows_ = 0;
  double log_determinant_ = 0;
  DeviceBuffer buffer_;
};

// The accuracy of solves with a factorization, as far as it is known.
struct Conditioning {
  // FactorReport::growth: how much the blocks' inverses magnify rounding errors, >= 1.
  double growth = 1;
  // A lower bound of ||A|| ||inv(A)||, 1-norms (engine/solver/condition.h); if it was asked for.
  std::optional<double> condition_estimate;

  // True if some blocks hold -L and are solved by substitution.
  bool substitutes() const { return !(growth <= kMostGrowth); }
};

// The promised bound on ||b - A x|| / (||A|| ||x|| + ||b||) of a solve without refinement, in
// infinity norms: 4 n eps max(1, min(growth, kMostGrowth) / kSafeGrowth), with eps the distance
// from 1 to the next number of that scalar type. The growth comes from multiplying blocks by inv(L)
// where LAPACK substitutes with L. Blocks whose growth is above kMostGrowth are solved by
// substitution too. That the error is at most in proportion to n eps growth is analysis; how far
// below it stays, and so kSafeGrowth, was found by search (tests/engine/accuracy/accuracy_test.cc).
// With a border of p rows n + p stands for n.
inline constexpr double kSafeGrowth = 4;
double BackwardErrorBound(const Shape& shape, double growth, int64_t border_rows = 0);

// The backward error that every solve reaches if its matrix is kept, or if the growth is at most
// kSafeGrowth: 4 n eps.
double BackwardErrorGoal(const Shape& shape);

class Factorization {
 public:
  Factorization(std::shared_ptr<const EliminationPlan> plan, DeviceBuffer factor,
                StagedMatrix matrix, const Conditioning& conditioning, Border border = {})
      : plan_(std::move(plan)), factor_(std::move(factor)), conditioning_(conditioning) {
    if (matrix) matrix_ = std::make_unique<StagedMatrix>(std::move(matrix));
    if (border.rows() > 0) border_ = std::make_unique<const Border>(std::move(border));
  }

  const EliminationPlan& plan() const { return *plan_; }
  const std::shared_ptr<const EliminationPlan>& shared_plan() const { return plan_; }
  const Shape& shape() const { return plan_->shape(); }  // of the chain
  const Border& border() const { return border_ ? *border_ : None<Border>(); }
  BorderedShape bordered_shape() const { return {shape(), border().rows()}; }
  int64_t rows() const { return bordered_shape().rows(); }  // of a right-hand side
  const void* data() const { return factor_.data(); }
  int64_t bytes() const { return factor_.bytes() + border().bytes() + matrix().bytes(); }
  // The matrix on the device, if it was kept: residuals and refinement need it.
  const StagedMatrix& matrix() const { return matrix_ ? *matrix_ : None<StagedMatrix>(); }
  const Conditioning& conditioning() const { return conditioning_; }
  double backward_error_bound() const {
    return BackwardErrorBound(shape(), conditioning_.growth, border().rows());
  }
  bool substitutes() const { return conditioning_.substitutes(); }
  // True if a solve without refinement may miss BackwardErrorGoal.
  bool at_risk() const {
    return !(BackwardErrorBound(shape(), conditioning_.growth) <= BackwardErrorGoal(shape()));
  }
  // True if every solve is refined, asked for or not, and fails if that misses BackwardErrorGoal.
  bool refines() const { return at_risk() && matrix_ != nullptr; }
  // Gives the matrix's memory back. Before the factorization is shared only.
  void DropMatrix() { matrix_.reset(); }

  // Takes the factor's memory out of a factorization that nobody else holds, to be overwritten by
  // the next one of the same plan; an empty buffer if somebody does hold it.
  static DeviceBuffer Recycle(std::shared_ptr<Factorization> factorization);

 private:
  template <typename Part>
  static const Part& None() {
    static const Part& none = *new Part;
    return none;
  }

  std::shared_ptr<const EliminationPlan> plan_;
  DeviceBuffer factor_;
  Conditioning conditioning_;
  // Most have neither, and there may be very many.
  std::unique_ptr<StagedMatrix> matrix_;
  std::unique_ptr<const Border> border_;
};

}  // namespace blockd

#endif  // BLOCKD_ENGINE_FACTORIZATION_H_
