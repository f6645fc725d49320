// Whatever the order of elimination and the form of the matrix, the answer is right.
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "tests/engine/solver_fixture.h"

namespace blockd::test {
namespace {

class PlansTest : public SolverTest {};
class FormsTest : public SolverTest {};

// With one factorization, for each number of columns.
void ExpectSolves(Solver& solver, const HostMatrix& matrix, PlanPtr plan,
                  std::initializer_list<int64_t> columns) {
  const auto factorization = MustFactor(solver, matrix, plan);
  for (const int64_t num_rhs : columns) {
    SCOPED_TRACE(testing::Message() << num_rhs << " columns");
    const Columns rhs(problems::RandomColumns(matrix.shape().rows(), num_rhs, 3),
                      matrix.shape().scalar);
    const Columns x = MustSolve(solver, factorization, rhs, num_rhs);
    EXPECT_LE(BackwardError(matrix.view(), x.values(), rhs.values()), ErrorBound(matrix.shape()));
  }
}

TEST_P(PlansTest, SolveWithEveryNumberOfSeparators) {
  for (const int64_t n : {1, 5, 16, 40}) {
    for (int64_t num_blocks = 1; num_blocks <= 13; ++num_blocks) {
      const HostMatrix matrix(problems::RandomSpd(num_blocks, n, 5, 100), scalar());
      for (int64_t separators = 1; 2 * separators + 1 <= num_blocks; ++separators) {
        SCOPED_TRACE(testing::Message()
                     << "n " << n << " N " << num_blocks << " cut " << separators);
        ExpectSolves(solver(), matrix, Cut(matrix.shape(), {separators}), {1 + separators});
      }
    }
  }
}

TEST_P(PlansTest, SolveThroughManyLevels) {
  const std::vector<std::vector<int64_t>> plans = {
      {},          {1},        {2},     {3, 1},           {7, 2}, {50, 24, 11, 5, 2},
      {49, 20, 1}, {10, 4, 1}, {50, 1}, {33, 16, 7, 3, 1}};
  for (const int64_t n : {1, 3, 8, 16, 33, 65}) {
    const HostMatrix matrix(problems::Mpc(101, n, 11), scalar());
    for (size_t p = 0; p < plans.size(); ++p) {
      SCOPED_TRACE(testing::Message() << "n " << n << ", plan " << p);
      ExpectSolves(solver(), matrix, Cut(matrix.shape(), plans[p]), {1, 4, 19});
    }
  }
}

TEST_P(PlansTest, SolveFewLargeBlocksThroughManyLevels) {
  struct Cuts {
    int64_t num_blocks, n;
    std::vector<int64_t> separators;
  };
  const std::vector<Cuts> all = {{19, 132, {}},        {19, 132, {1}}, {19, 200, {5, 2}},
                                 {19, 256, {7, 3, 1}}, {5, 197, {2}},  {4, 300, {1}},
                                 {3, 385, {1}}};
  for (const auto& [num_blocks, n, separators] : all) {
    const HostMatrix matrix(problems::Mpc(num_blocks, n, 11), scalar());
    SCOPED_TRACE(testing::Message() << "n " << n);
    ExpectSolves(solver(), matrix, Cut(matrix.shape(), separators), {1, 7, 19});
  }
}

TEST_P(PlansTest, GiveTheSameLogDeterminant) {
  const HostMatrix matrix(problems::RandomSpd(40, 6, 2, 50), scalar());
  const double expected = DenseCholesky(matrix.view()).LogDeterminant();
  for (const std::vector<int64_t>& separators :
       std::vector<std::vector<int64_t>>{{}, {1}, {2}, {19, 9, 4}, {5, 2}}) {
    const auto factorization = MustFactor(solver(), matrix, Cut(matrix.shape(), separators));
    ASSERT_NE(factorization, nullptr);
    const auto value = solver().LogDeterminant(*factorization);
    ASSERT_TRUE(value.ok()) << value.status();
    EXPECT_NEAR(*value, expected, 240 * 50 * Epsilon(scalar()));
  }
}

TEST_P(PlansTest, FactorBatchesWithManySeparators) {
  const Shape shape{25, 12, scalar()};
  std::vector<HostMatrix> matrices;
  for (int64_t k = 0; k < 7; ++k) matrices.emplace_back(problems::Mpc(25, 12, 70 + k), scalar());
  for (const std::vector<int64_t>& separators :
       std::vector<std::vector<int64_t>>{{1}, {12, 5, 2}, {4, 1}}) {
    std::vector<FactorItem> items(matrices.size());
    for (size_t k = 0; k < items.size(); ++k) items[k].matrix = matrices[k].view();
    const std::vector<FactorOutcome> outcomes = solver().Factor(Cut(shape, separators), items);
    for (size_t k = 0; k < items.size(); ++k) {
      ASSERT_TRUE(outcomes[k].status.ok()) << outcomes[k].status;
      const Columns rhs(problems::RandomColumns(shape.rows(), 2, k), scalar());
      const Columns x = MustSolve(solver(), outcomes[k].factorization, rhs, 2);
      EXPECT_LE(BackwardError(matrices[k].view(), x.values(), rhs.values()), ErrorBound(shape));
    }
  }
}

TEST_P(PlansTest, ChargeExactlyTheirFactorBytes) {
  const HostMatrix matrix(problems::Poisson(30, 9), scalar());
  const PlanPtr plan = Cut(matrix.shape(), {7, 3});
  const auto factorization = MustFactor(solver(), matrix, plan);
  ASSERT_NE(factorization, nullptr);
  EXPECT_EQ(factorization->bytes(), plan->factor_bytes());
  EXPECT_EQ(Pool().used_bytes, MemoryPool::Rounded(plan->factor_bytes()));
  EXPECT_EQ(Pool().pieces, 1);
}

std::vector<FormOptions> Forms(bool palette) {
  std::vector<FormOptions> forms;
  for (const DiagonalForm diagonal : {DiagonalForm::kFull, DiagonalForm::kPackedLower}) {
    for (const CouplingForm coupling : {CouplingForm::kSubdiagonal, CouplingForm::kSuperdiagonal}) {
      forms.push_back({.diagonal = diagonal, .coupling = coupling, .palette = palette});
    }
  }
  return forms;
}

TEST_P(FormsTest, AreAllTheSameMatrix) {
  const int64_t most = is_emulated() ? 130 : 200;
  for (const int64_t n : {1, 2, 7, 16, 33, 64, 70, 130, 200}) {
    if (n > most) continue;
    const problems::Problem problem =
        problems::KalmanPalette({.states = n, .observations = n, .steps = 12});
    for (const bool palette : {false, true}) {
      for (const FormOptions& form : Forms(palette)) {
        const HostMatrix matrix(problem, scalar(), form);
        SCOPED_TRACE(testing::Message()
                     << "n " << n << ", packed " << (form.diagonal == DiagonalForm::kPackedLower)
                     << ", super " << (form.coupling == CouplingForm::kSuperdiagonal)
                     << ", palette " << palette);
        ExpectSolves(solver(), matrix, nullptr, {3});
        ExpectSolves(solver(), matrix, Cut(matrix.shape(), {4, 1}), {1});
      }
    }
  }
}

// Matrices of unlike forms are not in one launch.
TEST_P(FormsTest, AreFactoredInOneBatch) {
  const int64_t few = GetParam().backend == "cpu" ? 12 : 40;  // of large blocks
  for (const auto& [num_blocks, n] :
       std::vector<std::pair<int64_t, int64_t>>{{6, 40}, {few, 200}}) {
    const problems::Problem problem = problems::Mpc(num_blocks, n, 4);
    std::vector<HostMatrix> matrices;
    for (const FormOptions& form : Forms(false)) matrices.emplace_back(problem, scalar(), form);
    const Shape& shape = matrices[0].shape();
    const PlanPtr plan = Cut(shape, {2});
    std::vector<FactorItem> items(11);
    for (size_t k = 0; k < items.size(); ++k) items[k].matrix = matrices[k / 2 % 4].view();
    const Columns rhs(problems::RandomColumns(shape.rows(), 1, 3), scalar());
    for (const FactorOutcome& outcome : solver().Factor(plan, items)) {
      ASSERT_TRUE(outcome.status.ok()) << outcome.status;
      const Columns x = MustSolve(solver(), outcome.factorization, rhs, 1);
      EXPECT_LE(BackwardError(matrices[0].view(), x.values(), rhs.values()), ErrorBound(shape));
    }
  }
}

TEST_P(FormsTest, AllGiveResiduals) {
  const problems::Problem problem =
      problems::KalmanPalette({.states = 18, .observations = 30, .steps = 6});
  for (const bool palette : {false, true}) {
    for (const FormOptions& form : Forms(palette)) {
      const HostMatrix matrix(problem, scalar(), form);
      const auto factorization = MustFactor(solver(), matrix, nullptr, true);
      Columns rhs(problems::RandomColumns(matrix.shape().rows(), 5, 8), scalar());
      Columns x = rhs;
      SolveItem item{.factorization = factorization, .rhs = rhs.data(), .solution = x.data()};
      item.num_rhs = 5;
      item.residual = true;
      const std::vector<SolveOutcome> outcomes = solver().Solve({&item, 1});
      ASSERT_TRUE(outcomes[0].status.ok()) << outcomes[0].status;
      ASSERT_TRUE(outcomes[0].backward_error.has_value());
      const double expected = BackwardError(matrix.view(), x.values(), rhs.values());
      EXPECT_LE(expected, ErrorBound(matrix.shape()));
      // The device computes it in double, so that for float64 it carries rounding of its own.
      EXPECT_NEAR(*outcomes[0].backward_error, expected,
                  scalar() == Scalar::kFloat64 ? 18 * 0x1p-52 : 1e-3 * expected);
    }
  }
}

TEST_P(FormsTest, AreFactoredFromTheDeviceToo) {
  const problems::Problem problem =
      problems::KalmanPalette({.states = 10, .observations = 10, .steps = 9});
  for (const bool palette : {false, true}) {
    for (const FormOptions& form : Forms(palette)) {
      const HostMatrix matrix(problem, scalar(), form);
      absl::StatusOr<StagedMatrix> staged = solver().Stage(matrix.form());
      ASSERT_TRUE(staged.ok()) << staged.status();
      const BlockTridiagonalView view = matrix.view();
      const auto write = [&](int64_t offset, const void* data, int64_t bytes) {
        // Two pieces, as a stream would bring them.
        const std::span<const std::byte> all(static_cast<const std::byte*>(data), bytes);
        EXPECT_TRUE(solver().Write(*staged, offset, all.first(bytes / 3)).ok());
        EXPECT_TRUE(solver().Write(*staged, offset + bytes / 3, all.subspan(bytes / 3)).ok());
      };
      write(0, view.diagonal, view.form.diagonal_bytes());
      write(StagedMatrix::Offset(view.form, MatrixPart::kCoupling), view.coupling,
            view.form.coupling_bytes());
      if (palette) {
        write(StagedMatrix::DiagonalIndexOffset(view.form), view.diagonal_index, 9 * 4);
        write(StagedMatrix::CouplingIndexOffset(view.form), view.coupling_index, 8 * 4);
      }
      FactorItem item;
      item.staged = &*staged;
      item.keep_matrix = true;
      const auto plan = solver().Plan(matrix.shape());
      ASSERT_TRUE(plan.ok());
      std::vector<FactorOutcome> outcomes = solver().Factor(*plan, {&item, 1});
      ASSERT_TRUE(outcomes[0].status.ok()) << outcomes[0].status;
      const Columns rhs(problems::RandomColumns(matrix.shape().rows(), 2, 1), scalar());
      const auto direct = MustFactor(solver(), matrix);
      EXPECT_EQ(MustSolve(solver(), outcomes[0].factorization, rhs, 2),
                MustSolve(solver(), direct, rhs, 2));
    }
  }
}

TEST_P(FormsTest, RefuseWritesOutsideTheStagedMatrix) {
  const HostMatrix matrix(problems::Poisson(4, 3), scalar());
  absl::StatusOr<StagedMatrix> staged = solver().Stage(matrix.form());
  ASSERT_TRUE(staged.ok()) << staged.status();
  const std::vector<std::byte> bytes(64);
  const int64_t end = StagedMatrix::BufferBytes(matrix.form());
  EXPECT_FALSE(solver().Write(*staged, -1, bytes).ok());
  EXPECT_FALSE(solver().Write(*staged, end - 63, bytes).ok());
  EXPECT_FALSE(solver().Write(*staged, std::numeric_limits<int64_t>::max() - 3, bytes).ok());
  EXPECT_TRUE(solver().Write(*staged, end - 64, bytes).ok());
}

INSTANTIATE_TEST_SUITE_P(EveryTarget, PlansTest, ::testing::ValuesIn(Targets()), TargetName);
INSTANTIATE_TEST_SUITE_P(EveryTarget, FormsTest, ::testing::ValuesIn(Targets()), TargetName);

}  // namespace
}  // namespace blockd::test
