// Shapes, forms and host views of symmetric positive definite (SPD) block-tridiagonal systems, and
// of block arrowheads: those with a border of dense rows.
//
// A system has N diagonal blocks A(i,i), each n x n, and N-1 coupling blocks between neighbours:
//
//     A(0,0)  A(1,0)'
//     A(1,0)  A(1,1)  A(2,1)'
//             A(2,1)  A(2,2)  ...
//
// An arrowhead has p rows more, B, p x Nn, and their corner C, p x p; it is SPD as a whole:
//
//     [ A  B' ]
//     [ B  C  ]
//
// Everything here is plain data: no ownership, no threads. Every size that a caller may choose is
// checked here, for overflow too, before anything is allocated.
#ifndef BLOCKD_ENGINE_BLOCK_TRIDIAGONAL_H_
#define BLOCKD_ENGINE_BLOCK_TRIDIAGONAL_H_

#include <array>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace blockd {

enum class Scalar : uint8_t { kFloat64, kFloat32 };

constexpr int64_t ScalarBytes(Scalar scalar) { return scalar == Scalar::kFloat64 ? 8 : 4; }

// The size and the scalar type of a system.
struct Shape {
  int64_t num_blocks = 0;  // N >= 1
  int64_t block_size = 0;  // n >= 1, at most kMaxBlockSize
  Scalar scalar = Scalar::kFloat64;

  int64_t rows() const { return num_blocks * block_size; }
  friend bool operator==(const Shape&, const Shape&) = default;
  template <typename H>
  friend H AbslHashValue(H h, const Shape& s) {
    return H::combine(std::move(h), s.num_blocks, s.block_size, s.scalar);
  }
};

// Limits that keep every product of sizes below 2^62 bytes; both lie far above any memory.
inline constexpr int64_t kMaxBlockSize = int64_t{1} << 15;
inline constexpr int64_t kMaxRows = int64_t{1} << 40;
// The border's Schur complement, p x p, is factored by one thread of the host.
inline constexpr int64_t kMaxBorderRows = 1024;

// INVALID_ARGUMENT, naming the member and the limit, unless N, n >= 1, the limits hold and the
// bytes of the dense blocks are below 2^62.
absl::Status CheckShape(const Shape& shape);
std::string ToString(const Shape& shape);  // "N=100 n=256 float64"

// The shape of a chain, and of the border that it may have.
struct BorderedShape {
  Shape chain;
  int64_t border_rows = 0;  // p; 0: no border

  int64_t rows() const { return chain.rows() + border_rows; }
  friend bool operator==(const BorderedShape&, const BorderedShape&) = default;
};
std::string ToString(const BorderedShape& shape);  // "N=100 n=256 float64 p=4"

// a * b and a + b; OUT_OF_RANGE where the result exceeds 2^62. Both need a, b >= 0.
absl::StatusOr<int64_t> CheckedProduct(int64_t a, int64_t b);
absl::StatusOr<int64_t> CheckedSum(int64_t a, int64_t b);

// How a diagonal block is stored: all n*n scalars column-major (the strict upper triangle is not
// read), or the lower triangle alone, n(n+1)/2 scalars, column after column (LAPACK's packed 'L').
enum class DiagonalForm : uint8_t { kFull, kPackedLower };

// Which coupling blocks are stored, column-major: A(i+1,i), or A(i,i+1) = A(i+1,i)'.
enum class CouplingForm : uint8_t { kSubdiagonal, kSuperdiagonal };

// The parts of a matrix, in the order in which they are sent.
enum class MatrixPart : uint8_t { kDiagonal, kCoupling, kBorder, kCorner };
inline constexpr std::array kMatrixParts = {MatrixPart::kDiagonal, MatrixPart::kCoupling,
                                            MatrixPart::kBorder, MatrixPart::kCorner};

// How a matrix is laid out. In the palette form each distinct block is stored once, and an index a
// block row says which one it is; a palette of 0 means that every block is stored, in order.
struct MatrixForm {
  Shape shape;
  DiagonalForm diagonal = DiagonalForm::kFull;
  CouplingForm coupling = CouplingForm::kSubdiagonal;
  int64_t diagonal_palette = 0;  // number of distinct diagonal blocks, 0: not a palette
  int64_t coupling_palette = 0;  // number of distinct coupling blocks, 0: not a palette
  int64_t border_rows = 0;       // p, at most kMaxBorderRows; 0: no border

  int64_t diagonal_block_scalars() const;  // n*n or n(n+1)/2
  int64_t coupling_block_scalars() const { return shape.block_size * shape.block_size; }
  int64_t diagonal_blocks() const { return diagonal_palette ? diagonal_palette : shape.num_blocks; }
  int64_t coupling_blocks() const {
    return coupling_palette ? coupling_palette : shape.num_blocks - 1;
  }
  BorderedShape bordered_shape() const { return {shape, border_rows}; }
  int64_t rows() const { return bordered_shape().rows(); }
  int64_t diagonal_bytes() const;
  int64_t coupling_bytes() const;
  int64_t border_bytes() const;
  int64_t corner_bytes() const;
  int64_t bytes(MatrixPart part) const;
  // Scalars only; the indices of a palette (4 bytes a block row) come on top.
  int64_t bytes() const {
    return diagonal_bytes() + coupling_bytes() + border_bytes() + corner_bytes();
  }
  friend bool operator==(const MatrixForm&, const MatrixForm&) = default;
};

// CheckShape, palettes no longer than the chain, and a border no larger than the limit; after it
// bytes() cannot overflow.
absl::Status CheckForm(const MatrixForm& form);

// A matrix in memory that the caller keeps alive and unchanged while the view is in use.
struct BlockTridiagonalView {
  MatrixForm form;
  const void* diagonal = nullptr;            // form.diagonal_bytes()
  const void* coupling = nullptr;            // form.coupling_bytes(); may be null if N == 1
  const uint32_t* diagonal_index = nullptr;  // N entries < diagonal_palette, or null: not a palette
  const uint32_t* coupling_index = nullptr;  // N-1 entries < coupling_palette, or null
  // B', Nn x p, column-major: one row of B after another; and C, p x p, column-major, whose strict
  // upper triangle is not read. Null where there is no border.
  const void* border = nullptr;  // form.border_bytes()
  const void* corner = nullptr;  // form.corner_bytes()

  const Shape& shape() const { return form.shape; }
  const void*& part(MatrixPart which) {
    const void** const parts[] = {&diagonal, &coupling, &border, &corner};
    return *parts[static_cast<size_t>(which)];
  }
  const void* part(MatrixPart which) const {
    return const_cast<BlockTridiagonalView*>(this)->part(which);
  }
  // Points to parts that follow one another from `data` on.
  void SetParts(const void* data);
};

// CheckForm, pointers present where the form needs them, every palette index in range (host
// memory).
absl::Status CheckView(const BlockTridiagonalView& view);

// Where a NaN or an infinity stands in what is read of the matrix: "diagonal block 3, row 1, column
// 0". OK if there is none. Host memory.
absl::Status CheckFinite(const BlockTridiagonalView& view);

// The block A(i,i) or the coupling block between i and i+1, in whatever memory the view is in.
template <typename T>
const T* DiagonalBlock(const BlockTridiagonalView& view, int64_t i) {
  const int64_t stored = view.diagonal_index ? view.diagonal_index[i] : i;
  return static_cast<const T*>(view.diagonal) + stored * view.form.diagonal_block_scalars();
}
template <typename T>
const T* CouplingBlock(const BlockTridiagonalView& view, int64_t i) {
  const int64_t stored = view.coupling_index ? view.coupling_index[i] : i;
  return static_cast<const T*>(view.coupling) + stored * view.form.coupling_block_scalars();
}

}  // namespace blockd

#endif  // BLOCKD_ENGINE_BLOCK_TRIDIAGONAL_H_
