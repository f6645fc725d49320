// A matrix that is not positive definite is a result: which leading minor fails first, in the
// natural order, whatever the plan's order is; and it harms nobody else.
#include <gmock/gmock.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/engine/solver_fixture.h"

namespace blockd::test {
namespace {

using ::testing::HasSubstr;

class NotPositiveDefiniteTest : public SolverTest {
 protected:
  void ExpectMinor(const FactorOutcome& outcome, int64_t n, int64_t minor) const {
    EXPECT_EQ(outcome.status.code(), absl::StatusCode::kInvalidArgument) << outcome.status;
    EXPECT_EQ(outcome.factorization, nullptr);
    ASSERT_TRUE(outcome.not_positive_definite.has_value());
    const NotPositiveDefinite& where = *outcome.not_positive_definite;
    EXPECT_EQ(where.minor, minor);
    EXPECT_EQ(where.block, (minor - 1) / n);
    EXPECT_EQ(where.row, (minor - 1) % n);
    EXPECT_TRUE(where.natural_order);
    EXPECT_THAT(std::string(outcome.status.message()), HasSubstr(std::to_string(minor)));
  }
};

// Plans of a chain, from none to many levels.
std::vector<PlanPtr> PlansOf(const Shape& shape) {
  std::vector<PlanPtr> plans = {Cut(shape, {})};
  const int64_t most = (shape.num_blocks - 1) / 2;
  for (const int64_t separators : {int64_t{1}, int64_t{2}, most}) {
    if (separators >= 1 && separators <= most) plans.push_back(Cut(shape, {separators}));
  }
  std::vector<int64_t> halves;
  for (int64_t chain = shape.num_blocks; chain > 2; chain = halves.back()) {
    halves.push_back((chain - 1) / 2);
  }
  if (halves.size() > 1) plans.push_back(Cut(shape, halves));
  return plans;
}

TEST_P(NotPositiveDefiniteTest, NamesTheMinorOfLapackAtEveryBlockUnderEveryPlan) {
  for (const int64_t n : {1, 2, 7, 16, 33, 70, 130}) {
    for (const int64_t num_blocks : {1, 2, 3, 5, 12}) {
      if (n > 64 && num_blocks > 5) continue;  // the dense factorization would take long
      const problems::Problem problem = problems::RandomSpd(num_blocks, n, 3, 100);
      const Shape shape{num_blocks, n, scalar()};
      const std::vector<PlanPtr> plans = PlansOf(shape);
      for (int64_t block = 0; block < num_blocks; ++block) {
        for (const int64_t row : {int64_t{0}, n / 2, n - 1}) {
          HostMatrix matrix(problem, scalar());
          matrix.SetDiagonal(block, row, row, -1);
          const int64_t minor = DenseCholesky(matrix.view()).minor;
          ASSERT_EQ(minor, block * n + row + 1);
          for (size_t p = 0; p < plans.size(); ++p) {
            SCOPED_TRACE(absl::StrCat("n ", n, " N ", num_blocks, " block ", block, " row ", row,
                                      " plan ", p));
            ExpectMinor(FactorOne(solver(), matrix, plans[p]), n, minor);
            if (HasFailure()) return;
          }
        }
      }
    }
  }
}

TEST_P(NotPositiveDefiniteTest, NamesTheMinorInFewLargeBlocks) {
  const int64_t n = is_emulated() ? 140 : 200;
  std::vector<std::pair<int64_t, int64_t>> places = {{0, 130}, {3, n - 1}, {6, 130}};
  if (!is_emulated()) places.insert(places.end(), {{0, n - 1}, {3, 130}, {6, n - 1}});
  const problems::Problem problem = problems::Mpc(7, n, 3);
  const HostMatrix good(problem, scalar());
  for (const PlanPtr& plan : PlansOf(good.shape())) {
    for (const auto& [block, row] : places) {
      SCOPED_TRACE(absl::StrCat("block ", block, " row ", row));
      HostMatrix bad(problem, scalar());
      bad.SetDiagonal(block, row, row, -1);
      ExpectMinor(FactorOne(solver(), bad, plan), n, block * n + row + 1);
    }
    ASSERT_NE(MustFactor(solver(), good, plan), nullptr);
  }
}

TEST_P(NotPositiveDefiniteTest, NamesTheMinorThatACouplingBlockSpoils) {
  for (const int64_t n : {1, 4, 20}) {
    const Shape shape{11, n, scalar()};
    for (int64_t block = 0; block + 1 < shape.num_blocks; ++block) {
      for (const int64_t row : {int64_t{0}, n - 1}) {
        HostMatrix matrix(problems::Poisson(11, n), scalar());
        matrix.SetCoupling(block, row, n - 1, 100);
        const int64_t minor = DenseCholesky(matrix.view()).minor;
        ASSERT_EQ(minor, (block + 1) * n + row + 1);
        for (const PlanPtr& plan : PlansOf(shape)) {
          SCOPED_TRACE(absl::StrCat("n ", n, " block ", block, " row ", row));
          ExpectMinor(FactorOne(solver(), matrix, plan), n, minor);
        }
      }
    }
  }
}

TEST_P(NotPositiveDefiniteTest, NamesTheFirstOfSeveralFailuresInNaturalOrder) {
  const int64_t n = 6;
  HostMatrix matrix(problems::Mpc(20, n, 4), scalar());
  for (const int64_t block : {19, 13, 10, 5}) matrix.SetDiagonal(block, 3, 3, -10);
  for (const PlanPtr& plan : PlansOf(matrix.shape())) {
    ExpectMinor(FactorOne(solver(), matrix, plan), n, 5 * n + 3 + 1);
  }
}

TEST_P(NotPositiveDefiniteTest, NamesTheMinorInEveryForm) {
  const problems::Problem problem =
      problems::KalmanPalette({.states = 5, .observations = 8, .steps = 9});
  for (const bool palette : {false, true}) {
    for (const DiagonalForm diagonal : {DiagonalForm::kFull, DiagonalForm::kPackedLower}) {
      HostMatrix matrix(
          problem, scalar(),
          {.diagonal = diagonal, .coupling = CouplingForm::kSuperdiagonal, .palette = palette});
      // In the palette, this is the block of all interior steps.
      matrix.SetDiagonal(4, 2, 2, -1);
      const int64_t expected = palette ? 1 * 5 + 2 + 1 : 4 * 5 + 2 + 1;
      ASSERT_EQ(DenseCholesky(matrix.view()).minor, expected);
      ExpectMinor(FactorOne(solver(), matrix), 5, expected);
      ExpectMinor(FactorOne(solver(), matrix, Cut(matrix.shape(), {4, 1})), 5, expected);
    }
  }
}

// Every row of every block, in every form.
TEST_P(NotPositiveDefiniteTest, NamesEveryMinorInEveryForm) {
  const int64_t n = 3, num_blocks = 9;
  const problems::Problem problem = problems::Mpc(num_blocks, n, 5);
  for (const CouplingForm coupling : {CouplingForm::kSubdiagonal, CouplingForm::kSuperdiagonal}) {
    for (const DiagonalForm diagonal : {DiagonalForm::kFull, DiagonalForm::kPackedLower}) {
      for (int64_t minor = 1; minor <= num_blocks * n; ++minor) {
        HostMatrix matrix(problem, scalar(), {.diagonal = diagonal, .coupling = coupling});
        const int64_t block = (minor - 1) / n, row = (minor - 1) % n;
        matrix.SetDiagonal(block, row, row, -1);
        ASSERT_EQ(DenseCholesky(matrix.view()).minor, minor);
        for (const PlanPtr& plan : PlansOf(matrix.shape())) {
          ExpectMinor(FactorOne(solver(), matrix, plan), n, minor);
        }
      }
    }
  }
}

TEST_P(NotPositiveDefiniteTest, TakesZeroNegativeAndNanPivotsForFailures) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (const int64_t n : {1, 3, 16, 40}) {
    for (const double pivot : {0.0, -0.0, -1e-30, -1.0, nan}) {
      // Diagonal, so that the pivot itself is met.
      problems::Problem problem = problems::Poisson(7, n);
      std::fill(problem.coupling.begin(), problem.coupling.end(), 0.0);
      for (int64_t i = 0; i < 7 * n * n; ++i) problem.diagonal[i] = i % (n * n) % (n + 1) == 0;
      HostMatrix matrix(problem, scalar());
      matrix.SetDiagonal(4, n - 1, n - 1, pivot);
      for (const PlanPtr& plan : PlansOf(matrix.shape())) {
        SCOPED_TRACE(absl::StrCat("n ", n, " pivot ", pivot));
        ExpectMinor(FactorOne(solver(), matrix, plan), n, 5 * n);
      }
    }
  }
}

TEST_P(NotPositiveDefiniteTest, HarmsNoOtherSystemOfTheBatch) {
  const Shape shape{9, 10, scalar()};
  std::vector<HostMatrix> good;
  for (int64_t k = 0; k < 5; ++k) good.emplace_back(problems::Mpc(9, 10, 30 + k), scalar());
  const Columns rhs(problems::RandomColumns(shape.rows(), 3, 9), scalar());
  for (const PlanPtr& plan : PlansOf(shape)) {
    for (size_t bad = 0; bad < good.size(); ++bad) {
      std::vector<HostMatrix> matrices = good;
      matrices[bad].SetDiagonal(static_cast<int64_t>(bad) * 2, 5, 5, -3);
      std::vector<FactorItem> items(matrices.size());
      for (size_t k = 0; k < items.size(); ++k) items[k].matrix = matrices[k].view();
      const std::vector<FactorOutcome> outcomes = solver().Factor(plan, items);
      for (size_t k = 0; k < items.size(); ++k) {
        SCOPED_TRACE(absl::StrCat("bad ", bad, " system ", k));
        if (k == bad) {
          ExpectMinor(outcomes[k], 10, static_cast<int64_t>(bad) * 20 + 6);
          continue;
        }
        ASSERT_TRUE(outcomes[k].status.ok()) << outcomes[k].status;
        const auto alone = MustFactor(solver(), matrices[k], plan);
        EXPECT_EQ(MustSolve(solver(), outcomes[k].factorization, rhs, 3),
                  MustSolve(solver(), alone, rhs, 3));
      }
    }
  }
}

TEST_P(NotPositiveDefiniteTest, GivesTheMemoryBack) {
  HostMatrix matrix(problems::Mpc(30, 12, 4), scalar());
  matrix.SetDiagonal(29, 11, 11, -1);
  for (const bool keep : {false, true}) {
    EXPECT_FALSE(FactorOne(solver(), matrix, nullptr, keep).status.ok());
    EXPECT_EQ(Pool().used_bytes, 0);
  }
}

// On the edge of being singular, rounding decides; whatever it decides must be told in full.
TEST_P(NotPositiveDefiniteTest, IsConsistentWhereRoundingDecides) {
  int failures = 0;
  for (int64_t trial = 0; trial < 60; ++trial) {
    const int64_t n = 1 + trial % 9;
    const problems::Problem problem = problems::RandomSpd(9, n, 100 + trial, 1e3);
    HostMatrix matrix(problem, scalar());
    // Bisects for the largest shift of the diagonal that leaves it positive definite.
    double low = 0, high = 1e3;
    for (int step = 0; step < 60; ++step) {
      const double shift = (low + high) / 2;
      HostMatrix shifted = matrix;
      for (int64_t i = 0; i < 9 * n; ++i) {
        shifted.SetDiagonal(i / n, i % n, i % n, matrix.Diagonal(i / n, i % n, i % n) - shift);
      }
      (SequentialCholesky(shifted.view()).minor() == 0 ? low : high) = shift;
    }
    for (int64_t i = 0; i < 9 * n; ++i) {
      matrix.SetDiagonal(i / n, i % n, i % n, matrix.Diagonal(i / n, i % n, i % n) - low);
    }
    for (const PlanPtr& plan : PlansOf(matrix.shape())) {
      const FactorOutcome outcome = FactorOne(solver(), matrix, plan);
      ASSERT_EQ(outcome.status.ok(), !outcome.not_positive_definite.has_value()) << outcome.status;
      ASSERT_EQ(outcome.status.ok(), outcome.factorization != nullptr);
      if (outcome.status.ok()) continue;
      ++failures;
      const NotPositiveDefinite& where = *outcome.not_positive_definite;
      EXPECT_EQ(where.minor, where.block * n + where.row + 1);
      EXPECT_GE(where.block, 0);
      EXPECT_LT(where.block, 9);
      EXPECT_GE(where.row, 0);
      EXPECT_LT(where.row, n);
    }
  }
  EXPECT_GT(failures, 0);
}

INSTANTIATE_TEST_SUITE_P(EveryTarget, NotPositiveDefiniteTest, ::testing::ValuesIn(Targets()),
                         TargetName);

}  // namespace
}  // namespace blockd::test
