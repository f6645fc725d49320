// The engine's promises at the ends of the range of numbers.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "tests/engine/solver_fixture.h"
#include "tests/support/adversarial.h"

namespace blockd::test {
namespace {

class RangeTest : public SolverTest {
 protected:
  // Normal numbers begin at 2^-Exponents().
  int Exponents() const { return scalar() == Scalar::kFloat64 ? 1022 : 126; }
};

// With a largest diagonal entry from 2^exponent on, to below 2^(exponent + 1).
problems::Problem Scaled(problems::Problem problem, int exponent) {
  const double largest = *std::max_element(problem.diagonal.begin(), problem.diagonal.end());
  const int by = exponent - std::ilogb(largest);
  for (double& entry : problem.diagonal) entry = std::ldexp(entry, by);
  for (double& entry : problem.coupling) entry = std::ldexp(entry, by);
  return problem;
}

TEST_P(RangeTest, KeepsItsPromiseFromTheSmallestPivotsToTheLargest) {
  for (const int64_t n : {1, 3, 16, 33, 70, 200}) {
    const problems::Problem problem = problems::RandomSpd(9, n, 3, 30);
    // Pivots are down to a thirtieth of the largest entry.
    for (const int exponent : {10 - Exponents(), 20 - Exponents(), Exponents() - 1}) {
      SCOPED_TRACE(testing::Message() << "blocks of " << n << " rows, 2^" << exponent);
      const HostMatrix matrix(Scaled(problem, exponent), scalar());
      const auto factorization = MustFactor(solver(), matrix, nullptr, /*keep_matrix=*/true);
      ASSERT_NE(factorization, nullptr);
      std::vector<double> x = SmoothColumns(matrix.shape().rows());
      for (double& value : x) value = std::ldexp(value, exponent < 0 ? Exponents() / 2 : -8);
      Columns rhs(Multiply(matrix.view(), x), scalar());
      for (const bool residual : {false, true}) {
        Columns solution = rhs;
        SolveItem item{.factorization = factorization, .rhs = rhs.data()};
        item.solution = solution.data();
        item.num_rhs = kSmoothColumns;
        item.residual = residual;
        const SolveOutcome outcome = solver().Solve({&item, 1})[0];
        ASSERT_TRUE(outcome.status.ok()) << outcome.status;
        const double error = BackwardError(matrix.view(), solution.values(), rhs.values());
        EXPECT_LE(error, outcome.backward_error_bound);
        EXPECT_LE(outcome.backward_error_bound, factorization->backward_error_bound());
      }
    }
  }
}

// A pivot beyond the range would lose digits without a word, or make a division by zero.
TEST_P(RangeTest, RefusesPivotsThatAreOrWhoseReciprocalsAreNoNormalNumbers) {
  for (const int64_t n : {1, 2, 5, 16, 33, 70, 200}) {
    for (const int exponent :
         {-Exponents(), -Exponents() - 1, -Exponents() - 10, Exponents() - 1, Exponents()}) {
      SCOPED_TRACE(testing::Message() << "blocks of " << n << " rows, 2^" << exponent);
      problems::Problem problem = problems::Poisson(3, n);
      std::fill(problem.coupling.begin(), problem.coupling.end(), 0.0);
      std::fill(problem.diagonal.begin(), problem.diagonal.end(), 0.0);
      for (int64_t i = 0; i < problem.rows(); ++i) {
        // The last two blocks are one after the other beyond the range, if any is.
        problem.diagonal[i / n * n * n + i % n * (n + 1)] = i < n ? 1 : std::ldexp(1.5, exponent);
      }
      const FactorOutcome outcome = FactorOne(solver(), HostMatrix(problem, scalar()));
      const bool taken = -Exponents() <= exponent && exponent < Exponents();
      EXPECT_EQ(outcome.status.ok(), taken) << outcome.status;
      ASSERT_EQ(outcome.not_positive_definite.has_value(), !taken);
      if (!taken) {
        EXPECT_EQ(outcome.not_positive_definite->minor, n + 1);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(EveryTarget, RangeTest, ::testing::ValuesIn(Targets()), TargetName);

}  // namespace
}  // namespace blockd::test
