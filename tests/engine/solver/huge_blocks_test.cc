// Blocks above 1024 rows, which the CPU takes by another way than all others, through the Solver:
// the matrix in each form, the chains of upper levels, and where a minor fails.
#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include "tests/engine/solver_fixture.h"

namespace blockd::test {
namespace {

constexpr int64_t kRows = 1030;  // no multiple of a panel

// Random blocks, positive definite by their diagonal, whose couplings count as much as they.
problems::Problem Draw(int64_t num_blocks) {
  problems::Problem problem;
  problem.num_blocks = num_blocks;
  problem.block_size = kRows;
  problem.diagonal.resize(num_blocks * kRows * kRows);
  problem.coupling.resize((num_blocks - 1) * kRows * kRows);
  std::minstd_rand random(7);
  const auto entry = [&random] {
    return static_cast<double>(random()) / std::minstd_rand::max() - 0.5;
  };
  for (double& value : problem.coupling) value = entry();
  for (int64_t i = 0; i < num_blocks; ++i) {
    double* const block = problem.diagonal.data() + i * kRows * kRows;
    for (int64_t c = 0; c < kRows; ++c) {
      for (int64_t r = 0; r < c; ++r) block[c * kRows + r] = block[r * kRows + c] = entry();
      block[c * kRows + c] = 2.2 * std::sqrt(static_cast<double>(kRows)) + entry();
    }
  }
  return problem;
}

class HugeBlocksTest : public SolverTest {
 protected:
  void ExpectSolves(const HostMatrix& matrix, const std::vector<int64_t>& separators) const {
    constexpr int64_t kColumns = 2;
    const auto factorization =
        MustFactor(solver(), matrix, Cut(matrix.shape(), separators), /*keep_matrix=*/true);
    ASSERT_NE(factorization, nullptr);
    Columns rhs(problems::RandomColumns(matrix.shape().rows(), kColumns, 3), scalar());
    Columns x = rhs;
    SolveItem item{.factorization = factorization, .rhs = rhs.data(), .solution = x.data()};
    item.num_rhs = kColumns;
    item.residual = true;
    const std::vector<SolveOutcome> outcomes = solver().Solve({&item, 1});
    ASSERT_TRUE(outcomes[0].status.ok()) << outcomes[0].status;
    const double error = BackwardError(matrix.view(), x.values(), rhs.values());
    EXPECT_LE(error, 32 * Epsilon(scalar()));
    EXPECT_NEAR(*outcomes[0].backward_error, error, Epsilon(scalar()));
  }
};

TEST_P(HugeBlocksTest, AreSolvedThroughUpperLevels) {
  ExpectSolves(HostMatrix(Draw(7), scalar()), {3, 1});
}

TEST_P(HugeBlocksTest, AreReadInTheOtherForms) {
  const FormOptions form = {.diagonal = DiagonalForm::kPackedLower,
                            .coupling = CouplingForm::kSuperdiagonal};
  ExpectSolves(HostMatrix(Draw(5), scalar(), form), {2});
}

TEST_P(HugeBlocksTest, NameTheMinorThatFails) {
  HostMatrix matrix(Draw(5), scalar());
  const int64_t row = 1027;
  matrix.SetDiagonal(4, row, row, -1);
  for (const std::vector<int64_t>& separators : std::vector<std::vector<int64_t>>{{}, {2}}) {
    const FactorOutcome outcome = FactorOne(solver(), matrix, Cut(matrix.shape(), separators));
    ASSERT_TRUE(outcome.not_positive_definite.has_value()) << outcome.status;
    EXPECT_EQ(outcome.not_positive_definite->minor, 4 * kRows + row + 1);
    EXPECT_TRUE(outcome.not_positive_definite->natural_order);
  }
}

INSTANTIATE_TEST_SUITE_P(EveryTarget, HugeBlocksTest, ::testing::ValuesIn(Targets()), TargetName);

}  // namespace
}  // namespace blockd::test
