// The promised accuracy of solutions, against systems that are built to break the promise.
#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <random>
#include <vector>

#include "tests/engine/solver_fixture.h"
#include "tests/support/adversarial.h"

namespace blockd::test {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

struct Solved {
  SolveOutcome outcome;
  double error = 0;  // of all columns, as the oracle measures it
};

class AccuracyTest : public SolverTest {
 protected:
  std::shared_ptr<Factorization> FactorAs(const HostMatrix& matrix, Accuracy accuracy,
                                          bool keep_matrix = false, PlanPtr plan = nullptr) {
    FactorItem item;
    item.matrix = matrix.view();
    item.accuracy = accuracy;
    item.keep_matrix = keep_matrix;
    if (plan == nullptr) plan = solver().Plan(matrix.shape()).value();
    FactorOutcome outcome = std::move(solver().Factor(plan, {&item, 1})[0]);
    EXPECT_TRUE(outcome.status.ok()) << outcome.status;
    return std::move(outcome.factorization);
  }

  // For b = A x with smooth x.
  Solved SolveSmooth(const HostMatrix& matrix, std::shared_ptr<const Factorization> factorization,
                     int32_t max_refinements = 0) {
    Columns rhs(Multiply(matrix.view(), SmoothColumns(matrix.shape().rows())), scalar());
    Columns x = rhs;
    SolveItem item{
        .factorization = std::move(factorization), .rhs = rhs.data(), .solution = x.data()};
    item.num_rhs = kSmoothColumns;
    item.max_refinements = max_refinements;
    Solved solved;
    solved.outcome = solver().Solve({&item, 1})[0];
    EXPECT_TRUE(solved.outcome.status.ok()) << solved.outcome.status;
    solved.error = BackwardError(matrix.view(), x.values(), rhs.values());
    return solved;
  }

  const std::vector<AdversarialCase>& Cases() const {
    // Made once: they take longer than the tests.
    static const int64_t largest = GpuTargets().empty() ? 64 : 200;
    static const std::vector<AdversarialCase> cases[] = {
        AdversarialCases(Scalar::kFloat64, largest), AdversarialCases(Scalar::kFloat32, largest)};
    return cases[scalar() == Scalar::kFloat64 ? 0 : 1];
  }
};

TEST_P(AccuracyTest, EverySolveKeepsItsPromise) {
  int at_risk = 0, missed = 0;
  for (const AdversarialCase& test : Cases()) {
    SCOPED_TRACE(test.name);
    const HostMatrix matrix(test.problem, scalar());
    const auto factorization = FactorAs(matrix, Accuracy::kStandard);
    if (factorization == nullptr) continue;
    const Solved solved = SolveSmooth(matrix, factorization);
    EXPECT_FALSE(solved.outcome.backward_error.has_value());
    EXPECT_EQ(solved.outcome.refinements, 0);
    EXPECT_EQ(solved.outcome.backward_error_bound,
              BackwardErrorBound(matrix.shape(), factorization->conditioning().growth));
    EXPECT_LE(solved.error, solved.outcome.backward_error_bound);
    at_risk += factorization->at_risk();
    missed += solved.error > ErrorBound(matrix.shape());
  }
  // The families do what they are for, and substitution where growth is large does too.
  EXPECT_GE(at_risk, 20);
  EXPECT_EQ(missed, 0);
}

TEST_P(AccuracyTest, AKeptMatrixBringsEverySolveToTheGoalUnasked) {
  for (const AdversarialCase& test : Cases()) {
    SCOPED_TRACE(test.name);
    const HostMatrix matrix(test.problem, scalar());
    const auto factorization = FactorAs(matrix, Accuracy::kStandard, /*keep_matrix=*/true);
    if (factorization == nullptr) continue;
    const Solved solved = SolveSmooth(matrix, factorization);
    EXPECT_LE(solved.error, ErrorBound(matrix.shape()));
    EXPECT_LE(solved.outcome.backward_error_bound, 1.0001 * ErrorBound(matrix.shape()));
    EXPECT_EQ(solved.outcome.backward_error.has_value(), factorization->at_risk());
  }
}

TEST_P(AccuracyTest, GuaranteedKeepsWhatItNeedsAndNothingElse) {
  for (const AdversarialCase& test : Cases()) {
    SCOPED_TRACE(test.name);
    const HostMatrix matrix(test.problem, scalar());
    const auto factorization = FactorAs(matrix, Accuracy::kGuaranteed);
    if (factorization == nullptr) continue;
    EXPECT_EQ(static_cast<bool>(factorization->matrix()), factorization->at_risk());
    EXPECT_LE(SolveSmooth(matrix, factorization).error, ErrorBound(matrix.shape()));
  }
  const HostMatrix kind(problems::Poisson(40, 6), scalar());
  const auto factorization = FactorAs(kind, Accuracy::kGuaranteed);
  EXPECT_FALSE(factorization->at_risk());
  EXPECT_FALSE(factorization->matrix());
  EXPECT_EQ(factorization->bytes(), factorization->plan().factor_bytes());
  EXPECT_TRUE(FactorAs(kind, Accuracy::kGuaranteed, /*keep_matrix=*/true)->matrix());
}

TEST_P(AccuracyTest, HoldsForEveryPlan) {
  for (const AdversarialCase& test : Cases()) {
    const int64_t blocks = test.problem.num_blocks;
    if (blocks != 9 || test.problem.block_size > 32) continue;
    SCOPED_TRACE(test.name);
    const HostMatrix matrix(test.problem, scalar());
    for (const std::vector<int64_t>& separators : {std::vector<int64_t>{}, {1}, {4, 1}, {2}}) {
      const auto factorization =
          FactorAs(matrix, Accuracy::kStandard, false, Cut(matrix.shape(), separators));
      if (factorization == nullptr) continue;
      const Solved solved = SolveSmooth(matrix, factorization);
      EXPECT_LE(solved.error, solved.outcome.backward_error_bound);
    }
  }
}

// A search by hand: small changes of L that make the error larger, in units of what was promised.
TEST_P(AccuracyTest, NoSearchFindsABlockThatBreaksThePromise) {
  std::mt19937_64 random(5);
  std::normal_distribution<double> normal;
  double worst = 0;
  for (const int64_t n : {2, 3, 5, 9}) {
    for (int start = 0; start < 3; ++start) {
      std::vector<double> best(n * n, 0.0);
      for (int64_t j = 0; j < n; ++j) {
        for (int64_t i = j; i < n; ++i) best[j * n + i] = normal(random);
        best[j * n + j] = std::pow(10.0, -std::abs(normal(random)));
      }
      double largest = 0;
      for (int step = 0; step < 60; ++step) {
        std::vector<double> next = best;
        for (double& entry : next) {
          if (entry != 0 && random() % 2 == 0) entry *= 1 + 0.5 * normal(random);
        }
        const HostMatrix matrix(RepeatBlock(next, n, 2), scalar());
        const FactorOutcome factored = FactorOne(solver(), matrix);
        if (!factored.status.ok()) continue;  // rounded to one that is not positive definite
        const Solved solved = SolveSmooth(matrix, factored.factorization);
        const double part = solved.error / solved.outcome.backward_error_bound;
        ASSERT_LE(part, 1) << "n = " << n << ": " << ::testing::PrintToString(next);
        if (part > largest) {
          largest = part;
          best = next;
        }
      }
      worst = std::max(worst, largest);
    }
  }
  RecordProperty("largest_part_of_the_bound", testing::PrintToString(worst));
}

// sqrt(D(i,i) inv(D)(i,i)), the largest, of one block: by Gauss-Jordan in long double.
double GrowthOf(const HostMatrix& matrix) {
  const int64_t n = matrix.shape().block_size;
  const std::vector<double> block = ReadDiagonal(matrix.view(), 0);
  std::vector<long double> a(block.begin(), block.end()), inverse(n * n, 0);
  for (int64_t i = 0; i < n; ++i) inverse[i * n + i] = 1;
  for (int64_t k = 0; k < n; ++k) {
    const long double pivot = a[k * n + k];
    for (int64_t j = 0; j < n; ++j) {
      a[j * n + k] /= pivot;
      inverse[j * n + k] /= pivot;
    }
    for (int64_t i = 0; i < n; ++i) {
      const long double factor = a[k * n + i];
      if (i == k || factor == 0) continue;
      for (int64_t j = 0; j < n; ++j) {
        a[j * n + i] -= factor * a[j * n + k];
        inverse[j * n + i] -= factor * inverse[j * n + k];
      }
    }
  }
  long double largest = 1;
  for (int64_t i = 0; i < n; ++i) {
    largest = std::max(largest, block[i * n + i] * inverse[i * n + i]);
  }
  return static_cast<double>(std::sqrt(largest));
}

TEST_P(AccuracyTest, GrowthIsThatOfTheWorstRow) {
  const double most = scalar() == Scalar::kFloat64 ? 1e6 : 300;  // beyond, rounding decides
  int compared = 0;
  for (const AdversarialCase& test : Cases()) {
    if (test.problem.num_blocks != 1) continue;
    const HostMatrix matrix(test.problem, scalar());
    const double exact = GrowthOf(matrix);
    if (!(exact < most)) continue;
    SCOPED_TRACE(test.name);
    const auto factorization = FactorAs(matrix, Accuracy::kStandard);
    const double growth = factorization->conditioning().growth;
    EXPECT_GE(growth, 0.95 * exact);
    // A device may sum in parts.
    EXPECT_LE(growth, (GetParam().backend == "cpu" ? 1.05 : 4) * exact);
    ++compared;
  }
  EXPECT_GE(compared, 20);
}

TEST_P(AccuracyTest, GrowthIsThatOfTheWorstBlockWhereverItIs) {
  for (const int64_t n : {1, 3, 8, 20, 40}) {
    for (const int64_t bad : {0, 3, 6}) {
      std::vector<double> factor(n * n, 0.0);
      for (int64_t i = 0; i < n; ++i) factor[i * n + i] = 1;
      problems::Problem problem = RepeatBlock(factor, n, 7);
      std::fill(problem.coupling.begin(), problem.coupling.end(), 0.0);
      // [1 r; r 1] has a growth of 1 / sqrt(1 - r^2).
      if (n > 1) problem.diagonal[bad * n * n + 1] = problem.diagonal[bad * n * n + n] = 0.99;
      const HostMatrix matrix(problem, scalar());
      const double expected = n > 1 ? 1 / std::sqrt(1 - 0.99 * 0.99) : 1;
      for (const std::vector<int64_t>& separators : {std::vector<int64_t>{}, {3, 1}, {2}}) {
        const auto factorization =
            FactorAs(matrix, Accuracy::kStandard, false, Cut(matrix.shape(), separators));
        EXPECT_NEAR(factorization->conditioning().growth, expected, 1e-3 * expected)
            << "n = " << n << " block " << bad;
      }
    }
  }
}

TEST_P(AccuracyTest, GrowthDoesNotDependOnScaling) {
  const double small = scalar() == Scalar::kFloat64 ? 1e-60 : 1e-15;
  for (const double scale : {1.0, small, 1 / small}) {
    problems::Problem problem = problems::RandomSpd(5, 12, 3, 100);
    for (double& entry : problem.diagonal) entry *= scale;
    for (double& entry : problem.coupling) entry *= scale;
    const auto plain =
        FactorAs(HostMatrix(problems::RandomSpd(5, 12, 3, 100), scalar()), Accuracy::kStandard);
    const auto scaled = FactorAs(HostMatrix(problem, scalar()), Accuracy::kStandard);
    EXPECT_NEAR(scaled->conditioning().growth, plain->conditioning().growth,
                1e-3 * plain->conditioning().growth);
  }
}

// ||A|| ||inv(A)||, 1-norms, by solving for every unit vector.
double ConditionOf(const HostMatrix& matrix) {
  const int64_t rows = matrix.shape().rows();
  const std::vector<double> dense = AssembleDense(matrix.view());
  std::vector<double> unit(rows * rows, 0.0);
  for (int64_t i = 0; i < rows; ++i) unit[i * rows + i] = 1;
  const std::vector<double> inverse = SequentialCholesky(matrix.view()).Solve(unit);
  double norm = 0, inverse_norm = 0;
  for (int64_t j = 0; j < rows; ++j) {
    double sum = 0, inverse_sum = 0;
    for (int64_t i = 0; i < rows; ++i) {
      sum += std::abs(dense[j * rows + i]);
      inverse_sum += std::abs(inverse[j * rows + i]);
    }
    norm = std::max(norm, sum);
    inverse_norm = std::max(inverse_norm, inverse_sum);
  }
  return norm * inverse_norm;
}

TEST_P(AccuracyTest, EstimatesTheConditionNumberWhereAsked) {
  const std::vector<double> conditions = scalar() == Scalar::kFloat64
                                             ? std::vector<double>{2, 1e3, 1e6, 1e9}
                                             : std::vector<double>{2, 1e2, 1e3};
  for (const double condition : conditions) {
    for (const auto& [num_blocks, n] :
         {std::pair<int64_t, int64_t>{1, 1}, {1, 6}, {20, 1}, {9, 7}}) {
      const HostMatrix matrix(problems::RandomSpd(num_blocks, n, 11, condition), scalar());
      FactorItem item;
      item.matrix = matrix.view();
      item.estimate_condition = true;
      const auto outcomes = solver().Factor(solver().Plan(matrix.shape()).value(), {&item, 1});
      ASSERT_TRUE(outcomes[0].status.ok()) << outcomes[0].status;
      const auto estimate = outcomes[0].factorization->conditioning().condition_estimate;
      ASSERT_TRUE(estimate.has_value());
      const double exact = ConditionOf(matrix);
      EXPECT_LE(*estimate, 1.01 * exact);
      EXPECT_GE(*estimate, exact / 5) << ToString(matrix.shape()) << " " << condition;
      EXPECT_FALSE(outcomes[0].factorization->matrix());
    }
  }
  const auto plain = FactorAs(HostMatrix(problems::Poisson(4, 2), scalar()), Accuracy::kStandard);
  EXPECT_FALSE(plain->conditioning().condition_estimate.has_value());
}

TEST_P(AccuracyTest, AnEstimateCanBeCancelled) {
  const HostMatrix matrix(problems::Poisson(9, 3), scalar());
  const std::atomic<bool> cancelled = true;
  FactorItem item;
  item.matrix = matrix.view();
  item.estimate_condition = true;
  item.cancelled = &cancelled;
  const auto outcomes = solver().Factor(solver().Plan(matrix.shape()).value(), {&item, 1});
  EXPECT_EQ(outcomes[0].status.code(), absl::StatusCode::kCancelled);
}

// The residual of garbage is no good news.
TEST_P(AccuracyTest, AResidualOfGarbageSaysSo) {
  const HostMatrix matrix(problems::Poisson(6, 3), scalar());
  const auto factorization = FactorAs(matrix, Accuracy::kStandard, /*keep_matrix=*/true);
  const double largest = scalar() == Scalar::kFloat64 ? 1.7e308 : 3.4e38;
  for (const double garbage : {std::nan(""), kInfinity, -kInfinity, largest}) {
    for (const int32_t steps : {0, 2}) {
      std::vector<double> values = problems::RandomColumns(18, 3, 1);
      values[18 + 7] = garbage;                                               // of the second
      if (garbage == largest) std::fill_n(values.begin() + 18, 18, garbage);  // x overflows
      Columns rhs(values, scalar()), x = rhs;
      SolveItem item{.factorization = factorization, .rhs = rhs.data(), .solution = x.data()};
      item.num_rhs = 3;
      item.residual = true;
      item.max_refinements = steps;
      const SolveOutcome outcome = solver().Solve({&item, 1})[0];
      ASSERT_TRUE(outcome.status.ok()) << outcome.status;
      EXPECT_FALSE(std::isfinite(*outcome.backward_error)) << garbage;
      EXPECT_FALSE(std::isfinite(outcome.backward_error_bound)) << garbage;
      // The columns beside it are what they would have been.
      const std::vector<double> solution = x.values();
      const std::vector<double> first(solution.begin(), solution.begin() + 18);
      EXPECT_LE(BackwardError(matrix.view(), first, std::span(values).first(18)),
                ErrorBound(matrix.shape()));
    }
  }
}

TEST_P(AccuracyTest, NormsThatOverflowTogetherAreNoProblem) {
  const double scale = scalar() == Scalar::kFloat64 ? 1e200 : 1e25;
  problems::Problem problem = problems::Poisson(6, 3);
  for (double& entry : problem.diagonal) entry *= scale;
  for (double& entry : problem.coupling) entry *= scale;
  const HostMatrix matrix(problem, scalar());
  Columns rhs(std::vector<double>(18, scalar() == Scalar::kFloat64 ? 1e307 : 1e37), scalar());
  Columns x = rhs;
  SolveItem item{.factorization = FactorAs(matrix, Accuracy::kStandard, true),
                 .rhs = rhs.data(),
                 .solution = x.data()};
  item.residual = true;
  const SolveOutcome outcome = solver().Solve({&item, 1})[0];
  ASSERT_TRUE(outcome.status.ok()) << outcome.status;
  EXPECT_LE(*outcome.backward_error, ErrorBound(matrix.shape()));
}

// As many equal terms as these, added one by one, are off by a millionth of one.
TEST_P(AccuracyTest, SumsAMillionLogarithmsToTheirLastDigits) {
  constexpr int64_t kRows = 1'000'000;
  problems::Problem problem;
  problem.num_blocks = kRows;
  problem.block_size = 1;
  problem.diagonal.assign(kRows, 7.25);
  problem.coupling.assign(kRows - 1, 0.0);
  const auto factorization = FactorAs(HostMatrix(problem, scalar()), Accuracy::kStandard);
  const absl::StatusOr<double> found = solver().LogDeterminant(*factorization);
  ASSERT_TRUE(found.ok()) << found.status();
  // Each term is as good as 1 / sqrt(7.25) is in this scalar; a device may sum in parts.
  EXPECT_NEAR(*found, kRows * std::log(7.25), kRows * 2 * Epsilon(scalar()) + 1e-8);
}

// The Laplacian of N rows, whose determinant is N + 1.
TEST_P(AccuracyTest, ALogDeterminantIsThatOfAMatrixNearby) {
  for (const int64_t rows : {10, 100, 1000}) {
    const HostMatrix matrix(problems::Poisson(rows, 1), scalar());
    HostMatrix laplacian = matrix;
    for (int64_t i = 0; i < rows; ++i) laplacian.SetDiagonal(i, 0, 0, 2);
    const auto factorization = FactorAs(laplacian, Accuracy::kStandard);
    const auto size = static_cast<double>(rows);
    const double condition = (size + 1) * (size + 1) / 2;
    const double off = condition * factorization->backward_error_bound();
    ASSERT_LT(off, 1);
    EXPECT_NEAR(*solver().LogDeterminant(*factorization), std::log(size + 1),
                -size * std::log1p(-off));
  }
}

// Refined columns are what they are, whoever is beside them.
TEST_P(AccuracyTest, RefinementDoesNotDependOnCompany) {
  const int64_t n = 13;
  const std::vector<AdversarialCase> cases = AdversarialCases(scalar(), n);
  const auto worst = std::find_if(cases.begin(), cases.end(), [](const AdversarialCase& test) {
    return test.name == "small_pivot_n13_N4";
  });
  ASSERT_NE(worst, cases.end());
  const HostMatrix matrix(worst->problem, scalar());
  const int64_t rows = matrix.shape().rows();
  const auto factorization = FactorAs(matrix, Accuracy::kStandard, /*keep_matrix=*/true);
  std::vector<double> b = Multiply(matrix.view(), SmoothColumns(rows));
  std::fill_n(b.begin() + rows, rows, 0.0);  // a column that needs no step
  Columns rhs(b, scalar()), together(rows * kSmoothColumns, scalar());
  SolveItem item{.factorization = factorization, .rhs = rhs.data(), .solution = together.data()};
  item.num_rhs = kSmoothColumns;
  item.max_refinements = 3;
  const SolveOutcome all = solver().Solve({&item, 1})[0];
  ASSERT_TRUE(all.status.ok()) << all.status;
  const std::vector<double> x = together.values();
  int32_t most = 0;
  for (int64_t c = 0; c < kSmoothColumns; ++c) {
    Columns column({b.data() + c * rows, static_cast<size_t>(rows)}, scalar());
    Columns alone(rows, scalar());
    item.rhs = column.data();
    item.solution = alone.data();
    item.num_rhs = 1;
    const SolveOutcome outcome = solver().Solve({&item, 1})[0];
    most = std::max(most, outcome.refinements);
    EXPECT_LE(*outcome.backward_error, *all.backward_error);
    EXPECT_EQ(alone.values(),
              std::vector<double>(x.begin() + c * rows, x.begin() + (c + 1) * rows));
  }
  EXPECT_EQ(all.refinements, most);
  EXPECT_GE(most, 1);
}

// However many steps are asked for, the answer is the best one that was seen.
TEST_P(AccuracyTest, RefinementKeepsTheBestStep) {
  for (const AdversarialCase& test : Cases()) {
    if (test.problem.num_blocks == 9) continue;
    SCOPED_TRACE(test.name);
    const HostMatrix matrix(test.problem, scalar());
    const auto factorization = FactorAs(matrix, Accuracy::kStandard, /*keep_matrix=*/true);
    if (factorization == nullptr) continue;
    double last = kInfinity;
    for (const int32_t steps : {1, 2, 10}) {
      const Solved solved = SolveSmooth(matrix, factorization, steps);
      // Below the rounding of x itself one is as good as another.
      EXPECT_LE(*solved.outcome.backward_error, std::max(last, Epsilon(scalar()) / 2));
      // The reported error is the error of the returned solution.
      EXPECT_NEAR(*solved.outcome.backward_error, solved.error,
                  ErrorBound(matrix.shape()) + 0.1 * solved.error);
      last = *solved.outcome.backward_error;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(EveryTarget, AccuracyTest, ::testing::ValuesIn(Targets()), TargetName);

}  // namespace
}  // namespace blockd::test
