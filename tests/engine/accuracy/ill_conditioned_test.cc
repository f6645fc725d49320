// Blocks that LAPACK factors and whose inverse factors are large: kernels of Gaussian processes,
// Hilbert and Vandermonde matrices, alone and in chains. Such blocks are solved by substitution,
// and every answer keeps the promise of a well-conditioned one.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/engine/solver_fixture.h"
#include "tests/support/adversarial.h"

namespace blockd::test {
namespace {

struct IllConditioned {
  std::string name;
  problems::Problem problem;
};

using Entry = std::function<double(int64_t i, int64_t j)>;

// tridiag(-0.3, 1, -0.3) times the block, as Kronecker's product: the chain adds a condition of 4.
problems::Problem ChainOf(const Entry& entry, int64_t n, int64_t num_blocks) {
  problems::Problem problem;
  problem.num_blocks = num_blocks;
  problem.block_size = n;
  problem.num_rhs = 0;
  std::vector<double> block, coupling;
  for (int64_t j = 0; j < n; ++j) {
    for (int64_t i = 0; i < n; ++i) block.push_back(entry(std::max(i, j), std::min(i, j)));
  }
  for (const double value : block) coupling.push_back(-0.3 * value);
  for (int64_t k = 0; k < num_blocks; ++k) {
    problem.diagonal.insert(problem.diagonal.end(), block.begin(), block.end());
    if (k > 0) {
      problem.coupling.insert(problem.coupling.end(), coupling.begin(), coupling.end());
    }
  }
  return problem;
}

Entry SquaredExponential(int64_t n, double length, double jitter) {
  return [=](int64_t i, int64_t j) {
    const double distance = static_cast<double>(i - j) / static_cast<double>(n) / length;
    return std::exp(-distance * distance / 2) + (i == j ? jitter : 0);
  };
}
double Hilbert(int64_t i, int64_t j) { return 1 / static_cast<double>(i + j + 1); }
// V V' of the powers of n points between 0 and 1.
Entry Vandermonde(int64_t n, double ridge) {
  return [=](int64_t i, int64_t j) {
    const double product = static_cast<double>((i + 1) * (j + 1)) / static_cast<double>(n * n);
    double sum = i == j ? ridge : 0, power = 1;
    for (int64_t k = 0; k < n; ++k, power *= product) sum += power;
    return sum;
  };
}

std::vector<IllConditioned> Cases(Scalar scalar, int64_t largest) {
  const bool fine = scalar == Scalar::kFloat64;
  std::vector<IllConditioned> cases;
  for (const int64_t num_blocks : {1, 4}) {
    const auto add = [&](const std::string& name, const Entry& entry, int64_t n) {
      if (n <= largest) {
        cases.push_back(
            {absl::StrCat(name, "_n", n, "_N", num_blocks), ChainOf(entry, n, num_blocks)});
      }
    };
    for (const int64_t n : {3, 8, 17, 33, 64}) {
      for (const double length : {0.05, 0.1, 0.3, 1.0}) {
        for (const double jitter :
             fine ? std::vector<double>{1e-14, 1e-13, 1e-12, 1e-11, 1e-10, 1e-8, 1e-5}
                  : std::vector<double>{1e-6, 1e-5, 1e-4}) {
          add(absl::StrCat("squared_exponential_", length, "_", jitter),
              SquaredExponential(n, length, jitter), n);
        }
      }
    }
    for (int64_t n = 2; n <= (fine ? 12 : 5); ++n) add("hilbert", Hilbert, n);
    for (const int64_t n : {4, 6, 9, 12}) {
      for (const double ridge : fine ? std::vector<double>{1e-15, 1e-13, 1e-10, 1e-6}
                                     : std::vector<double>{1e-5, 1e-3}) {
        add(absl::StrCat("vandermonde_", ridge), Vandermonde(n, ridge), n);
      }
    }
  }
  return cases;
}

class IllConditionedTest : public SolverTest {
 protected:
  std::vector<IllConditioned> All() const { return Cases(scalar(), is_emulated() ? 17 : 64); }
  // LAPACK factors what the engine is given; for float32 nobody says.
  bool LapackFactors(const HostMatrix& matrix) const {
    return scalar() == Scalar::kFloat64 && DenseCholesky(matrix.view()).minor == 0;
  }
  FactorOutcome Factor(const HostMatrix& matrix, Accuracy accuracy) {
    FactorItem item;
    item.matrix = matrix.view();
    item.accuracy = accuracy;
    return std::move(solver().Factor(solver().Plan(matrix.shape()).value(), {&item, 1})[0]);
  }
  // The backward error of A x = b for b = A x with smooth x, and what the solve says.
  std::pair<double, SolveOutcome> Solve(const HostMatrix& matrix,
                                        std::shared_ptr<const Factorization> factorization) {
    Columns rhs(Multiply(matrix.view(), SmoothColumns(matrix.shape().rows())), scalar());
    Columns x = rhs;
    SolveItem item{
        .factorization = std::move(factorization), .rhs = rhs.data(), .solution = x.data()};
    item.num_rhs = kSmoothColumns;
    SolveOutcome outcome = solver().Solve({&item, 1})[0];
    return {BackwardError(matrix.view(), x.values(), rhs.values()), std::move(outcome)};
  }
};

TEST_P(IllConditionedTest, WhatLapackFactorsIsSolvedAsAccurately) {
  int substituted = 0, refused = 0;
  double worst = 0;
  for (const IllConditioned& test : All()) {
    SCOPED_TRACE(test.name);
    const HostMatrix matrix(test.problem, scalar());
    const FactorOutcome factored = Factor(matrix, Accuracy::kStandard);
    if (!factored.status.ok()) {
      refused += LapackFactors(matrix);
      continue;
    }
    const auto [error, outcome] = Solve(matrix, factored.factorization);
    ASSERT_TRUE(outcome.status.ok()) << outcome.status;
    EXPECT_LE(error, outcome.backward_error_bound);
    EXPECT_LE(outcome.backward_error_bound,
              kMostGrowth / kSafeGrowth * BackwardErrorGoal(matrix.shape()));
    if (!factored.factorization->substitutes()) continue;
    ++substituted;
    worst = std::max(worst, error / BackwardErrorGoal(matrix.shape()));
  }
  EXPECT_GE(substituted, 20);
  EXPECT_EQ(refused, 0);
  // Without any refinement.
  EXPECT_LE(worst, 1);
}

TEST_P(IllConditionedTest, AGuaranteeIsKept) {
  for (const IllConditioned& test : All()) {
    SCOPED_TRACE(test.name);
    const HostMatrix matrix(test.problem, scalar());
    const FactorOutcome factored = Factor(matrix, Accuracy::kGuaranteed);
    if (!factored.status.ok()) continue;
    const auto [error, outcome] = Solve(matrix, factored.factorization);
    ASSERT_TRUE(outcome.status.ok()) << outcome.status;
    EXPECT_LE(error, BackwardErrorGoal(matrix.shape()));
    EXPECT_LE(outcome.backward_error_bound, 1.0001 * BackwardErrorGoal(matrix.shape()));
  }
}

// Refinement cannot give back the digits that the range of numbers takes away.
TEST_P(IllConditionedTest, AGuaranteeThatIsNotKeptFailsTheSolve) {
  const HostMatrix matrix(ChainOf(SquaredExponential(8, 0.3, 1e-5), 8, 4), scalar());
  const FactorOutcome factored = Factor(matrix, Accuracy::kGuaranteed);
  ASSERT_TRUE(factored.status.ok()) << factored.status;
  ASSERT_TRUE(factored.factorization->refines());
  const int64_t rows = matrix.shape().rows();
  const double tiny = scalar() == Scalar::kFloat64 ? 1e-321 : 1e-44;
  std::vector<double> b(2 * rows, 1.0);
  std::fill_n(b.begin(), rows, tiny);
  Columns rhs(b, scalar()), x = rhs;
  std::vector<SolveItem> items(2);
  for (SolveItem& item : items) item = {.factorization = factored.factorization};
  items[0].rhs = rhs.data();
  items[0].solution = x.data();
  const int64_t column = rows * ScalarBytes(scalar());
  items[1].rhs = static_cast<std::byte*>(rhs.data()) + column;
  items[1].solution = static_cast<std::byte*>(x.data()) + column;
  const std::vector<SolveOutcome> outcomes = solver().Solve(items);
  EXPECT_EQ(outcomes[0].status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(outcomes[1].status.ok()) << outcomes[1].status;
}

TEST_P(IllConditionedTest, GoodBlocksBesideABadOneStayMultiplied) {
  for (const int64_t n : {5, 8, 13}) {
    for (const std::vector<int64_t>& separators : {std::vector<int64_t>{}, {1}, {4, 1}, {3, 1}}) {
      problems::Problem problem = problems::Poisson(9, n);
      const problems::Problem bad =
          ChainOf(SquaredExponential(n, 5.0, scalar() == Scalar::kFloat64 ? 1e-12 : 1e-5), n, 1);
      std::copy(bad.diagonal.begin(), bad.diagonal.end(), problem.diagonal.begin() + 4 * n * n);
      for (const int64_t coupling : {3, 4}) {
        std::fill_n(problem.coupling.begin() + coupling * n * n, n * n, 0.0);
      }
      const HostMatrix matrix(problem, scalar());
      const auto factorization =
          MustFactor(solver(), matrix, Cut(matrix.shape(), separators), /*keep_matrix=*/true);
      ASSERT_NE(factorization, nullptr);
      EXPECT_TRUE(factorization->substitutes());
      const auto [error, outcome] = Solve(matrix, factorization);
      ASSERT_TRUE(outcome.status.ok()) << outcome.status;
      EXPECT_LE(error, BackwardErrorGoal(matrix.shape()));
    }
  }
}

// A column is computed alike whatever stands beside it, and a system whatever is in its batch.
TEST_P(IllConditionedTest, BitsDoNotDependOnCompany) {
  const int64_t n = 13, d = 11;
  const HostMatrix bad(ChainOf(SquaredExponential(n, 0.3, 1e-5), n, 5), scalar());
  const HostMatrix good(problems::Poisson(5, n), scalar());
  const PlanPtr plan = solver().Plan(bad.shape()).value();
  std::vector<FactorItem> items(3);
  items[0].matrix = items[2].matrix = good.view();
  items[1].matrix = bad.view();
  const std::vector<FactorOutcome> together = solver().Factor(plan, items);
  const auto alone = MustFactor(solver(), bad, plan);
  ASSERT_TRUE(together[1].status.ok()) << together[1].status;
  ASSERT_TRUE(alone->substitutes());
  EXPECT_FALSE(together[0].factorization->substitutes());
  const std::vector<double> b = problems::RandomColumns(bad.shape().rows(), d, 3);
  Columns all(b, scalar());
  const std::vector<double> x = MustSolve(solver(), together[1].factorization, all, d).values();
  for (int64_t c = 0; c < d; ++c) {
    const int64_t rows = bad.shape().rows();
    const std::vector<double> column(b.begin() + c * rows, b.begin() + (c + 1) * rows);
    EXPECT_EQ(MustSolve(solver(), alone, Columns(column, scalar()), 1).values(),
              std::vector<double>(x.begin() + c * rows, x.begin() + (c + 1) * rows));
  }
  // Factorizations of both kinds in one call.
  std::vector<SolveItem> solves(3);
  std::vector<Columns> solutions(3, Columns(bad.shape().rows(), scalar()));
  for (int i = 0; i < 3; ++i) {
    solves[i].factorization = together[i].factorization;
    solves[i].rhs = all.data();
    solves[i].solution = solutions[i].data();
  }
  for (const SolveOutcome& outcome : solver().Solve(solves)) {
    EXPECT_TRUE(outcome.status.ok()) << outcome.status;
  }
  EXPECT_EQ(solutions[0], solutions[2]);
  EXPECT_EQ(solutions[1].values(), std::vector<double>(x.begin(), x.begin() + bad.shape().rows()));
}

TEST_P(IllConditionedTest, LogDeterminantsAndInversesReadBothKinds) {
  const int64_t n = 6;
  for (const int64_t num_blocks : {1, 5}) {
    const HostMatrix matrix(ChainOf(SquaredExponential(n, 0.5, 1e-5), n, num_blocks), scalar());
    const auto factorization = MustFactor(solver(), matrix);
    ASSERT_TRUE(factorization->substitutes());
    const double epsilon = scalar() == Scalar::kFloat64 ? 1e-10 : 1e-1;
    const SequentialCholesky oracle(matrix.view());
    const absl::StatusOr<double> log_determinant = solver().LogDeterminant(*factorization);
    ASSERT_TRUE(log_determinant.ok()) << log_determinant.status();
    EXPECT_NEAR(*log_determinant, oracle.LogDeterminant(),
                epsilon * std::abs(oracle.LogDeterminant()));
    const int64_t rows = matrix.shape().rows();
    std::vector<double> unit(rows * rows, 0.0);
    for (int64_t i = 0; i < rows; ++i) unit[i * rows + i] = 1;
    const std::vector<double> inverse = oracle.Solve(unit);
    InverseItem item;
    item.factorization = factorization;
    item.parts = InverseParts::kDiagonalEntries;
    item.num_blocks = num_blocks;
    Columns variances(rows, scalar());
    const absl::Status status = solver().SelectedInverse(item, {.diagonal = variances.data()});
    ASSERT_TRUE(status.ok()) << status;
    const std::vector<double> found = variances.values();
    for (int64_t i = 0; i < rows; ++i) {
      EXPECT_NEAR(found[i], inverse[i * rows + i], 1e3 * epsilon * inverse[i * rows + i]);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(EveryTarget, IllConditionedTest, ::testing::ValuesIn(Targets()),
                         TargetName);

}  // namespace
}  // namespace blockd::test
