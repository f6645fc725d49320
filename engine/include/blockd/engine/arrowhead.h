// The block arrowhead: a chain with a border of p dense rows,
//
//     [ A  B' ]     A block-tridiagonal, N blocks of n x n; B p x Nn; C p x p,
//     [ B  C  ]
//
// SPD as a whole. The chain is factored first, A = L L', by Solver::Factor; the border then by
// Solver::FactorBorder, from half a solve with p columns and the Schur complement S of the chain:
//
//     Y = inv(L) B'     S = C - Y' Y = T T'     log det = log det A + log det S
//     solve             y = inv(L) b1,  x2 = inv(S) (b2 - Y' y),  x1 = inv(L)' (y - Y x2)
//     selected inverse  with H = inv(L)' Y inv(T)':
//                       Z22 = inv(S),  Z(i,j) = inv(A)(i,j) + H(i) H(j)',  Z(i,border) = -H(i)
//                       inv(T)
//
// That is block Cholesky with the border last. A solve passes once over the chain's factor, forward
// and backward. Of the functions of serinv (pobtaf, pobtas, pobtasi) it computes the same.
//
// Y stays on the device. Y' Y and all products with S are summed in double, S and T are in double
// on the host, for float32 too.
#ifndef BLOCKD_ENGINE_ARROWHEAD_H_
#define BLOCKD_ENGINE_ARROWHEAD_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "blockd/engine/backend.h"
#include "blockd/engine/factorization.h"
#include "blockd/engine/solver.h"

namespace blockd {

// T is p x p on the host, and factored there by one thread.
inline constexpr int64_t kMaxBorderRows = 1024;

// A border to be factored. Host memory, of the chain's scalar type, until the call returns.
struct BorderItem {
  std::shared_ptr<const Factorization> chain;  // of A
  int64_t rows = 0;                            // p >= 1, at most kMaxBorderRows
  const void* border = nullptr;                // B': Nn x p, column-major; so row after row of B
  const void* corner = nullptr;  // C: p x p, column-major; its strict upper triangle is not read
  const std::atomic<bool>* cancelled = nullptr;  // looked at between steps
};

// A factored arrowhead: the chain's factorization, which it may share with others, Y, and T.
// Immutable; any thread may hold one. Borders of one chain are independent of one another.
class Arrowhead {
 public:
  // `columns`: Y, packed. `corner`: T, lower triangle, p x p.
  Arrowhead(std::shared_ptr<const Factorization> chain, DeviceBuffer columns,
            std::vector<double> corner, int64_t border_rows);

  // What Y takes from the pool; bytes.
  static int64_t BorderBytes(const Shape& shape, int64_t border_rows);

  const Factorization& chain() const { return *chain_; }
  const std::shared_ptr<const Factorization>& shared_chain() const { return chain_; }
  const Shape& shape() const { return chain_->shape(); }  // of the chain
  int64_t border_rows() const { return border_rows_; }    // p
  int64_t rows() const { return shape().rows() + border_rows_; }
  BorderColumns columns() const { return {shape(), columns_.data(), border_rows_}; }  // Y
  const std::vector<double>& corner() const { return corner_; }                       // T
  // On the device, beside the chain's.
  int64_t bytes() const { return columns_.bytes(); }
  double corner_log_determinant() const;  // log det S

 private:
  std::shared_ptr<const Factorization> chain_;
  DeviceBuffer columns_;
  std::vector<double> corner_;
  int64_t border_rows_;
};

struct BorderOutcome {
  // INVALID_ARGUMENT, with not_positive_definite set where A is positive definite and the arrowhead
  // is not; CANCELLED; RESOURCE_EXHAUSTED; INTERNAL.
  absl::Status status;
  // block is N, row counts in the border, minor is Nn + row + 1: by rounding too, always in the
  // natural order. Where A is not positive definite, FactorOutcome says it.
  std::optional<NotPositiveDefinite> not_positive_definite;
  std::shared_ptr<const Arrowhead> arrowhead;  // if status is OK
};

// Right-hand sides and solutions: (Nn + p) x d, column-major, host memory.
struct ArrowheadSolveItem {
  std::shared_ptr<const Arrowhead> arrowhead;
  const void* rhs = nullptr;
  void* solution = nullptr;  // may be the same memory as rhs
  int64_t num_rhs = 1;       // d
  // Solutions have no measured error and are not refined: INVALID_ARGUMENT where it is asked for.
  bool residual = false;
  int32_t max_refinements = 0;
  const std::atomic<bool>* cancelled = nullptr;
};

// Blocks of the arrowhead's Z = inv([A B'; B C]), host memory. Blocks of the chain as in
// InverseItem.
struct ArrowheadInverseItem {
  std::shared_ptr<const Arrowhead> arrowhead;
  InverseParts parts = InverseParts::kDiagonalBlocks;
  int64_t first_block = 0;
  int64_t num_blocks = 0;    // 0: of the border only
  void* diagonal = nullptr;  // InverseDiagonalBytes
  void* coupling = nullptr;  // InverseCouplingBytes; read only where couplings are wanted
  // Z of those blocks' rows and the border's columns: num_blocks n x p, column-major. Null: not
  // wanted.
  void* border = nullptr;
  void* corner = nullptr;  // Z22: p x p, both triangles. Null: not wanted
  const std::atomic<bool>* cancelled = nullptr;
};

}  // namespace blockd

#endif  // BLOCKD_ENGINE_ARROWHEAD_H_
