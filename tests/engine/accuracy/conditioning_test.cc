// Ill-conditioned systems, residuals and iterative refinement.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "tests/engine/solver_fixture.h"

namespace blockd::test {
namespace {

class ConditioningTest : public SolverTest {
 protected:
  // The largest condition number that leaves the matrix positive definite in this precision.
  double WorstCondition() const { return scalar() == Scalar::kFloat64 ? 1e12 : 1e4; }
};

TEST_P(ConditioningTest, KeepsTheBackwardErrorSmallForIllConditionedSystems) {
  for (const double condition : {1e2, 1e3, 1e4, 1e6, 1e8, 1e10, 1e12}) {
    if (condition > WorstCondition()) break;
    for (const int64_t n : {1, 2, 7, 16, 33, 64}) {
      for (const int64_t num_blocks : {2, 5, 40}) {
        const HostMatrix matrix(problems::RandomSpd(num_blocks, n, 17, condition), scalar());
        const Columns rhs(problems::RandomColumns(matrix.shape().rows(), 4, 2), scalar());
        std::vector<std::vector<int64_t>> plans = {{}};
        if (num_blocks >= 5) plans.insert(plans.end(), {{1}, {2}});
        if (num_blocks == 40) plans.insert(plans.end(), {{19, 9, 4, 1}, {6, 2}});
        for (size_t p = 0; p < plans.size(); ++p) {
          SCOPED_TRACE(testing::Message() << "condition " << condition << " n " << n << " N "
                                          << num_blocks << " plan " << p);
          const auto factorization = MustFactor(solver(), matrix, Cut(matrix.shape(), plans[p]));
          const Columns x = MustSolve(solver(), factorization, rhs, 4);
          EXPECT_LE(BackwardError(matrix.view(), x.values(), rhs.values()),
                    ErrorBound(matrix.shape()));
        }
      }
    }
  }
}

TEST_P(ConditioningTest, SolvesBadlyScaledControlProblems) {
  for (const int64_t n : {4, 12, 32}) {
    const HostMatrix matrix(problems::Mpc(200, n, 3), scalar());
    const Columns rhs(problems::RandomColumns(matrix.shape().rows(), 2, 2), scalar());
    const Columns x = MustSolve(solver(), MustFactor(solver(), matrix), rhs, 2);
    EXPECT_LE(BackwardError(matrix.view(), x.values(), rhs.values()), ErrorBound(matrix.shape()));
  }
}

TEST_P(ConditioningTest, RefinementImprovesTheSolution) {
  for (const int64_t n : {3, 16, 40}) {
    const HostMatrix matrix(problems::RandomSpd(30, n, 5, WorstCondition()), scalar());
    const SequentialCholesky reference(matrix.view());
    ASSERT_EQ(reference.minor(), 0);
    const auto factorization = MustFactor(solver(), matrix, nullptr, true);
    // Many columns: what rounding leaves of one column's error is a matter of luck.
    constexpr int kColumns = 32;
    Columns rhs(problems::RandomColumns(matrix.shape().rows(), kColumns, 6), scalar());
    const std::vector<double> exact = reference.Solve(rhs.values());
    Columns plain = rhs, refined = rhs;
    SolveItem item{.factorization = factorization, .rhs = rhs.data(), .solution = plain.data()};
    item.num_rhs = kColumns;
    item.residual = true;
    const std::vector<SolveOutcome> before = solver().Solve({&item, 1});
    item.solution = refined.data();
    item.max_refinements = 5;
    const std::vector<SolveOutcome> after = solver().Solve({&item, 1});
    ASSERT_TRUE(before[0].status.ok() && after[0].status.ok());
    EXPECT_EQ(before[0].refinements, 0);
    EXPECT_GE(after[0].refinements, 1);
    EXPECT_LE(after[0].refinements, 5);
    // Below half a rounding there is nothing to gain.
    EXPECT_LE(*after[0].backward_error, std::max(*before[0].backward_error, Epsilon(scalar()) / 2));
    const double plain_error = RelativeDifference(plain.values(), exact);
    const double refined_error = RelativeDifference(refined.values(), exact);
    if (scalar() == Scalar::kFloat32) {
      // The residual is summed in double, so that the error falls to the rounding of x itself.
      EXPECT_LT(refined_error, plain_error / 4);
    } else {
      EXPECT_LT(refined_error, 4 * plain_error);
    }
  }
}

TEST_P(ConditioningTest, RefinementStopsWhenNothingIsLeftToGain) {
  const HostMatrix matrix(problems::Poisson(10, 4), scalar());
  const auto factorization = MustFactor(solver(), matrix, nullptr, true);
  Columns rhs(std::vector<double>(40), scalar());
  SolveItem item{.factorization = factorization, .rhs = rhs.data(), .solution = rhs.data()};
  item.max_refinements = 1000;
  const std::vector<SolveOutcome> outcomes = solver().Solve({&item, 1});
  ASSERT_TRUE(outcomes[0].status.ok()) << outcomes[0].status;
  EXPECT_EQ(outcomes[0].refinements, 0);
  EXPECT_EQ(*outcomes[0].backward_error, 0);
  EXPECT_EQ(rhs, Columns(std::vector<double>(40), scalar()));
}

TEST_P(ConditioningTest, ResidualsNeedAKeptMatrix) {
  const HostMatrix matrix(problems::Poisson(10, 4), scalar());
  const auto factorization = MustFactor(solver(), matrix);
  Columns rhs(problems::RandomColumns(40, 1, 1), scalar());
  for (const bool residual : {true, false}) {
    SolveItem item{.factorization = factorization, .rhs = rhs.data(), .solution = rhs.data()};
    item.residual = residual;
    item.max_refinements = residual ? 0 : 1;
    EXPECT_EQ(solver().Solve({&item, 1})[0].status.code(), absl::StatusCode::kFailedPrecondition);
  }
}

TEST_P(ConditioningTest, KeepingTheMatrixChargesForIt) {
  const HostMatrix matrix(problems::Poisson(10, 4), scalar());
  const auto plain = MustFactor(solver(), matrix);
  const auto kept = MustFactor(solver(), matrix, nullptr, true);
  EXPECT_FALSE(plain->matrix());
  ASSERT_TRUE(kept->matrix());
  EXPECT_EQ(kept->bytes(), plain->bytes() + StagedMatrix::BufferBytes(matrix.form()));
  EXPECT_EQ(Pool().used_bytes, 2 * MemoryPool::Rounded(plain->bytes()) +
                                   MemoryPool::Rounded(StagedMatrix::BufferBytes(matrix.form())));
}

// With and without residuals, alone and together, in one call.
TEST_P(ConditioningTest, MixedItemsOfOneFactorizationKeepTheirOwnAnswers) {
  const HostMatrix matrix(problems::Poisson(25, 6), scalar());
  const auto factorization = MustFactor(solver(), matrix, nullptr, true);
  ASSERT_FALSE(factorization->refines());
  std::vector<Columns> rhs, x;
  std::vector<SolveItem> items(6);
  for (int64_t k = 0; k < 6; ++k) {
    rhs.emplace_back(problems::RandomColumns(150, k + 1, k), scalar());
    x.emplace_back(150 * (k + 1), scalar());
  }
  for (int64_t k = 0; k < 6; ++k) {
    items[k] = {.factorization = factorization, .rhs = rhs[k].data(), .solution = x[k].data()};
    items[k].num_rhs = k + 1;
    items[k].residual = k % 2 == 1;
    items[k].max_refinements = k == 5 ? 3 : 0;
  }
  const std::vector<SolveOutcome> outcomes = solver().Solve(items);
  for (int64_t k = 0; k < 6; ++k) {
    ASSERT_TRUE(outcomes[k].status.ok()) << outcomes[k].status;
    EXPECT_EQ(outcomes[k].backward_error.has_value(), k % 2 == 1);
    EXPECT_LE(BackwardError(matrix.view(), x[k].values(), rhs[k].values()),
              ErrorBound(matrix.shape()));
    if (k < 5) {
      EXPECT_EQ(x[k], MustSolve(solver(), factorization, rhs[k], k + 1));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(EveryTarget, ConditioningTest, ::testing::ValuesIn(Targets()), TargetName);

}  // namespace
}  // namespace blockd::test
