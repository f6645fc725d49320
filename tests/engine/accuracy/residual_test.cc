// A backend's residuals on the CPU: r and all four norms, for each form of a matrix.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "blockd/engine/backend_registry.h"
#include "tests/support/host_matrix.h"
#include "tests/support/oracle.h"

namespace blockd::test {
namespace {

struct ResidualCase {
  int64_t num_blocks, n, columns;
};

void ExpectResiduals(const ResidualCase& chosen, Scalar scalar, const FormOptions& form) {
  const int64_t num_blocks = chosen.num_blocks, n = chosen.n, columns = chosen.columns;
  SCOPED_TRACE(testing::Message() << "N " << num_blocks << " n " << n << " d " << columns);
  const HostMatrix matrix(problems::Mpc(num_blocks, n, 3), scalar, form);
  const auto backend = CreateBackend("cpu", {.memory_bytes = 64 << 20, .cpu_threads = 2});
  ASSERT_TRUE(backend.ok()) << backend.status();
  const int64_t rows = num_blocks * n;
  // Packed: a block's columns one after another. What the scalar makes of them is what is meant.
  const auto packed = [&](uint64_t seed) {
    return ToScalars(problems::RandomColumns(rows, columns, seed), scalar);
  };
  const std::vector<std::byte> x_bytes = packed(1), b_bytes = packed(2);
  const std::vector<double> x = ToDoubles(x_bytes, scalar), b = ToDoubles(b_bytes, scalar);
  std::vector<std::byte> r_bytes(b_bytes.size());
  const auto norms = (*backend)->Residual(Track::kSolve, matrix.view(), x_bytes.data(),
                                          b_bytes.data(), r_bytes.data(), columns);
  ASSERT_TRUE(norms.ok()) << norms.status();
  const std::vector<double> r = ToDoubles(r_bytes, scalar);
  const std::vector<double> dense = AssembleDense(matrix.view());
  const auto at = [&](int64_t row, int64_t c) { return (row / n * columns + c) * n + row % n; };
  const double rounding = 1e3 * Epsilon(scalar);
  for (int64_t c = 0; c < columns; ++c) {
    Backend::ResidualNorms expected;
    for (int64_t i = 0; i < rows; ++i) {
      double sum = b[at(i, c)], size = 0;
      for (int64_t j = 0; j < rows; ++j) {
        sum -= dense[j * rows + i] * x[at(j, c)];
        size += std::abs(dense[j * rows + i]);
      }
      EXPECT_NEAR(r[at(i, c)], sum, rounding * size);
      expected.residual = std::max(expected.residual, std::abs(sum));
      expected.matrix = std::max(expected.matrix, size);
      expected.solution = std::max(expected.solution, std::abs(x[at(i, c)]));
      expected.rhs = std::max(expected.rhs, std::abs(b[at(i, c)]));
    }
    const Backend::ResidualNorms& mine = (*norms)[c];
    EXPECT_NEAR(mine.residual, expected.residual, rounding * expected.matrix);
    EXPECT_NEAR(mine.matrix, expected.matrix, 1e-12 * expected.matrix);
    EXPECT_EQ(mine.solution, expected.solution);
    EXPECT_EQ(mine.rhs, expected.rhs);
  }
}

TEST(ResidualTest, IsThatOfEveryForm) {
  for (const Scalar scalar : {Scalar::kFloat64, Scalar::kFloat32}) {
    for (const DiagonalForm diagonal : {DiagonalForm::kFull, DiagonalForm::kPackedLower}) {
      for (const CouplingForm coupling :
           {CouplingForm::kSubdiagonal, CouplingForm::kSuperdiagonal}) {
        for (const ResidualCase& chosen :
             {ResidualCase{1, 1, 1}, {5, 3, 2}, {7, 16, 1}, {4, 21, 3}}) {
          ExpectResiduals(chosen, scalar, {.diagonal = diagonal, .coupling = coupling});
        }
      }
    }
  }
}

}  // namespace
}  // namespace blockd::test
