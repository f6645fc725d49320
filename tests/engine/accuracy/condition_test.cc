// Condition estimates against matrices whose condition number is known exactly.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "tests/engine/solver_fixture.h"

namespace blockd::test {
namespace {

class ConditionTest : public SolverTest {
 protected:
  // Null if it is not positive definite.
  std::shared_ptr<Factorization> FactorEstimating(const HostMatrix& matrix) {
    FactorItem item;
    item.matrix = matrix.view();
    item.estimate_condition = true;
    auto outcomes = solver().Factor(solver().Plan(matrix.shape()).value(), {&item, 1});
    if (outcomes[0].not_positive_definite) return nullptr;
    EXPECT_TRUE(outcomes[0].status.ok()) << outcomes[0].status;
    return std::move(outcomes[0].factorization);
  }
};

// A = T^power, T of rows -1 2 -1. Its entries are integers, and those of inv(A) are positive.
struct Known {
  problems::Problem problem;
  double condition = 0;  // 1-norms
};

// `power` of at most n: the matrix is block tridiagonal then.
Known PowerOfLaplacian(int64_t power, int64_t num_blocks, int64_t n) {
  const int64_t rows = num_blocks * n;
  // Diagonals of T^k, by rows: at(i, j - i + power).
  const int64_t width = 2 * power + 1;
  std::vector<double> bands(rows * width, 0.0), next;
  for (int64_t i = 0; i < rows; ++i) bands[i * width + power] = 1;
  for (int64_t k = 0; k < power; ++k) {
    next.assign(rows * width, 0.0);
    for (int64_t i = 0; i < rows; ++i) {
      for (int64_t d = 0; d < width; ++d) {
        // (T B)(i,j) = 2 B(i,j) - B(i-1,j) - B(i+1,j)
        double& sum = next[i * width + d];
        sum = 2 * bands[i * width + d];
        if (i > 0 && d + 1 < width) sum -= bands[(i - 1) * width + d + 1];
        if (i + 1 < rows && d > 0) sum -= bands[(i + 1) * width + d - 1];
      }
    }
    bands = next;
  }
  Known known;
  problems::Problem& p = known.problem;
  p.num_blocks = num_blocks;
  p.block_size = n;
  p.diagonal.assign(num_blocks * n * n, 0.0);
  p.coupling.assign((num_blocks - 1) * n * n, 0.0);
  double norm = 0;
  for (int64_t i = 0; i < rows; ++i) {
    double sum = 0;
    for (int64_t d = 0; d < width; ++d) {
      const int64_t j = i + d - power;
      if (j < 0 || j >= rows) continue;
      const double entry = bands[i * width + d];
      sum += std::abs(entry);
      if (i / n == j / n) p.diagonal[(i / n * n + j % n) * n + i % n] = entry;
      if (i / n == j / n + 1) p.coupling[(j / n * n + j % n) * n + i % n] = entry;
    }
    norm = std::max(norm, sum);
  }
  // inv(T)(i,j) = min(i,j) (rows + 1 - max(i,j)) / (rows + 1), counted from 1.
  std::vector<long double> sums(rows, 1), solved(rows);
  for (int64_t k = 0; k < power; ++k) {
    for (const bool up : {true, false}) {
      long double before = 0;
      for (int64_t step = 1; step <= rows; ++step) {
        const int64_t i = up ? step : rows + 1 - step;
        if (up) before += static_cast<long double>(i) * sums[i - 1];
        const auto part = static_cast<long double>(up ? rows + 1 - i : i);
        solved[i - 1] = (up ? 0 : solved[i - 1]) + part / (rows + 1) * before;
        if (!up) before += static_cast<long double>(rows + 1 - i) * sums[i - 1];
      }
    }
    sums = solved;
  }
  known.condition = static_cast<double>(norm * *std::max_element(sums.begin(), sums.end()));
  return known;
}

TEST_P(ConditionTest, IsNoLargerThanTheConditionNumber) {
  struct Size {
    int64_t power, num_blocks, n;
  };
  int unresolved = 0;
  for (const auto& [power, num_blocks, n] : std::vector<Size>{{1, 1, 1},
                                                              {1, 100, 1},
                                                              {1, 30000, 1},
                                                              {1, 3, 7},
                                                              {2, 60, 3},
                                                              {2, 3000, 8},
                                                              {3, 14, 3},
                                                              {3, 300, 3},
                                                              {3, 3, 12},
                                                              {3, 60, 12},
                                                              {4, 3, 5},
                                                              {4, 40, 5},
                                                              {4, 1, 16},
                                                              {4, 16, 16},
                                                              {5, 1, 5},
                                                              {5, 3, 20},
                                                              {6, 1, 7},
                                                              {6, 5, 7}}) {
    const Known known = PowerOfLaplacian(power, num_blocks, n);
    SCOPED_TRACE(testing::Message() << num_blocks << " blocks of " << n << " rows, power " << power
                                    << ", condition " << known.condition);
    const auto factorization = FactorEstimating(HostMatrix(known.problem, scalar()));
    if (factorization == nullptr) continue;  // to rounding it was not positive definite
    const double estimate = *factorization->conditioning().condition_estimate;
    EXPECT_LE(estimate, 1.0001 * known.condition);
    // As far as a solve's own error lets it be seen.
    const double seen = 1 / factorization->backward_error_bound();
    EXPECT_GE(estimate, std::min(known.condition / 3, seen));
    unresolved += known.condition > 1 / Epsilon(scalar());
  }
  // Some are what they are for.
  EXPECT_GE(unresolved, 2);
}

TEST_P(ConditionTest, IsTheSameHoweverLargeOrSmallTheMatrixIs) {
  const bool wide = scalar() == Scalar::kFloat64;
  for (const auto& [num_blocks, n] :
       {std::pair<int64_t, int64_t>{1, 1}, {40, 1}, {6, 5}, {2, 40}}) {
    const Known known = PowerOfLaplacian(1, num_blocks, n);
    // Almost from the smallest to the largest pivots that are taken.
    for (const int exponent : wide ? std::vector<int>{-1010, -900, -500, 500, 1000, 1020}
                                   : std::vector<int>{-114, -100, -60, 60, 100, 124}) {
      SCOPED_TRACE(testing::Message()
                   << num_blocks << " blocks of " << n << " rows, times 2^" << exponent);
      problems::Problem scaled = known.problem;
      for (double& entry : scaled.diagonal) entry = std::ldexp(entry, exponent);
      for (double& entry : scaled.coupling) entry = std::ldexp(entry, exponent);
      const auto factorization = FactorEstimating(HostMatrix(scaled, scalar()));
      ASSERT_NE(factorization, nullptr);
      const double estimate = *factorization->conditioning().condition_estimate;
      EXPECT_LE(estimate, 1.0001 * known.condition);
      EXPECT_GE(estimate, known.condition / 3);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(EveryTarget, ConditionTest, ::testing::ValuesIn(Targets()), TargetName);

}  // namespace
}  // namespace blockd::test
