// The references for the engine: dense LAPACK for small systems, a block Cholesky in natural order
// and in long double for long ones, and backward errors computed in long double. Everything here
// reads host memory in any form, is slow, plain and independent of the engine's algorithm.
#ifndef BLOCKD_TESTS_SUPPORT_ORACLE_H_
#define BLOCKD_TESTS_SUPPORT_ORACLE_H_

#include <cstdint>
#include <span>
#include <vector>

#include "blockd/engine/block_tridiagonal.h"

namespace blockd::test {

// A(i,i) and A(i+1,i), n x n column-major, both triangles, whatever the form of the view.
std::vector<double> ReadDiagonal(const BlockTridiagonalView& view, int64_t i);
std::vector<double> ReadCoupling(const BlockTridiagonalView& view, int64_t i);

// The whole matrix with its border, column-major.
std::vector<double> AssembleDense(const BlockTridiagonalView& view);

// LAPACK's dpotrf on the assembled matrix.
struct DenseCholesky {
  explicit DenseCholesky(const BlockTridiagonalView& view);
  // 0, or the order of the first leading minor that is not positive.
  int64_t minor = 0;
  // The rest only if minor is 0. `rhs` is Nn x d, column-major.
  std::vector<double> Solve(std::span<const double> rhs) const;
  double LogDeterminant() const;

 private:
  int64_t rows_;
  std::vector<double> factor_;
};

// Block Cholesky from the first block to the last.
class SequentialCholesky {
 public:
  explicit SequentialCholesky(const BlockTridiagonalView& view);
  int64_t minor() const { return minor_; }  // as in DenseCholesky
  std::vector<double> Solve(std::span<const double> rhs) const;
  double LogDeterminant() const;

 private:
  using Block = std::vector<long double>;  // n x n, column-major
  int64_t n_;
  int64_t minor_ = 0;
  std::vector<Block> lower_;  // L(i,i)
  std::vector<Block> below_;  // L(i+1,i)
};

// The largest of the columns' ||b - A x|| / (||A|| ||x|| + ||b||), infinity norms. NaN in, NaN out.
double BackwardError(const BlockTridiagonalView& view, std::span<const double> x,
                     std::span<const double> b);

// ||x - y|| / ||y||, infinity norms over everything.
double RelativeDifference(std::span<const double> x, std::span<const double> y);

}  // namespace blockd::test

#endif  // BLOCKD_TESTS_SUPPORT_ORACLE_H_
