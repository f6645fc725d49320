// Systems built to break a promise on backward errors: diagonal blocks whose inverse factors are
// much larger than their factors are small, and right-hand sides b = A x with a smooth x, which
// random ones hide.
#ifndef BLOCKD_TESTS_SUPPORT_ADVERSARIAL_H_
#define BLOCKD_TESTS_SUPPORT_ADVERSARIAL_H_

#include <cstdint>
#include <string>
#include <vector>

#include "blockd/engine/block_tridiagonal.h"
#include "engine/problems/problems.h"

namespace blockd::test {

struct AdversarialCase {
  std::string name;
  problems::Problem problem;
};

// Families whose blocks stay positive definite when they are rounded to this scalar: one small
// pivot; L = I - c (strictly lower ones), whose inverse grows like (1 + c)^n; kernels of squared
// exponentials with a little on the diagonal; rows of very different sizes. Blocks of up to
// `largest_block` rows.
std::vector<AdversarialCase> AdversarialCases(Scalar scalar, int64_t largest_block);

// N times the block L L', L = `factor`, n x n column-major, with couplings that are small beside
// it.
problems::Problem RepeatBlock(const std::vector<double>& factor, int64_t n, int64_t num_blocks);

// A x, rounded once; x and the result are N n x d, column-major.
std::vector<double> Multiply(const BlockTridiagonalView& view, const std::vector<double>& x);

// Solutions that find out rounding errors which point the same way: ones, a smooth curve, a line,
// and a random vector. N n x 4.
inline constexpr int64_t kSmoothColumns = 4;
std::vector<double> SmoothColumns(int64_t rows);

}  // namespace blockd::test

#endif  // BLOCKD_TESTS_SUPPORT_ADVERSARIAL_H_
