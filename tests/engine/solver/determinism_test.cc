// Bitwise the same: from run to run, for any number of threads, alone or in company.
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <vector>

#include "tests/engine/solver_fixture.h"

namespace blockd::test {
namespace {

class DeterminismTest : public SolverTest {};

struct Size {
  int64_t num_blocks, n;
};
const std::vector<Size>& Sizes() {
  static const std::vector<Size> sizes = {{1, 5},   {2, 33},  {40, 1},  {64, 8},
                                          {50, 16}, {33, 17}, {20, 40}, {12, 70},
                                          {9, 130}, {9, 132}, {5, 200}, {200, 4}};
  return sizes;
}

std::vector<std::vector<int64_t>> Cuts(int64_t num_blocks) {
  std::vector<std::vector<int64_t>> cuts = {{}};
  if (num_blocks >= 3) cuts.push_back({1});
  if (num_blocks >= 9) cuts.push_back({4, 1});
  if (num_blocks >= 40) cuts.push_back({12, 3});
  return cuts;
}

TEST_P(DeterminismTest, SameFromRunToRun) {
  for (const auto& [num_blocks, n] : Sizes()) {
    const HostMatrix matrix(problems::Mpc(num_blocks, n, 1), scalar());
    const Columns rhs(problems::RandomColumns(num_blocks * n, 7, 1), scalar());
    for (const std::vector<int64_t>& cut : Cuts(num_blocks)) {
      const PlanPtr plan = Cut(matrix.shape(), cut);
      const Columns first = MustSolve(solver(), MustFactor(solver(), matrix, plan), rhs, 7);
      for (int run = 0; run < 3; ++run) {
        EXPECT_EQ(first, MustSolve(solver(), MustFactor(solver(), matrix, plan), rhs, 7))
            << num_blocks << " " << n;
      }
    }
  }
}

TEST_P(DeterminismTest, SameForAnyNumberOfThreads) {
  std::vector<std::unique_ptr<Solver>> solvers;
  for (const int32_t threads : {1, 2, 3}) {
    solvers.push_back(MakeSolver(GetParam().backend, {.cpu_threads = threads, .cpu_lanes = 2}));
  }
  for (const auto& [num_blocks, n] : Sizes()) {
    std::vector<HostMatrix> matrices;
    for (int64_t k = 0; k < 3; ++k)
      matrices.emplace_back(problems::Mpc(num_blocks, n, k), scalar());
    const Columns rhs(problems::RandomColumns(num_blocks * n, 20, 1), scalar());
    for (const std::vector<int64_t>& cut : Cuts(num_blocks)) {
      const PlanPtr plan = Cut(matrices[0].shape(), cut);
      std::vector<Columns> answers;
      for (const auto& each : solvers) {
        std::vector<FactorItem> items(matrices.size());
        for (size_t k = 0; k < items.size(); ++k) items[k].matrix = matrices[k].view();
        const std::vector<FactorOutcome> outcomes = each->Factor(plan, items);
        for (const FactorOutcome& outcome : outcomes) {
          ASSERT_TRUE(outcome.status.ok()) << outcome.status;
          answers.push_back(MustSolve(*each, outcome.factorization, rhs, 20));
        }
      }
      for (size_t k = 0; k < answers.size(); ++k) {
        EXPECT_EQ(answers[k], answers[k % 3]) << num_blocks << " " << n << ", answer " << k;
      }
    }
  }
}

TEST_P(DeterminismTest, TheCostModelsPlanDoesNotDependOnThreads) {
  const auto one = MakeSolver(GetParam().backend, {.cpu_threads = 1, .cpu_lanes = 2});
  const auto three = MakeSolver(GetParam().backend, {.cpu_threads = 3, .cpu_lanes = 2});
  for (const auto& [num_blocks, n] : Sizes()) {
    const auto a = one->Plan({num_blocks, n, scalar()}), b = three->Plan({num_blocks, n, scalar()});
    ASSERT_TRUE(a.ok() && b.ok());
    EXPECT_EQ((*a)->DebugString(), (*b)->DebugString());
  }
}

TEST_P(DeterminismTest, AColumnIsTheSameAloneAndAmongManyRightHandSides) {
  for (const auto& [num_blocks, n] : Sizes()) {
    const HostMatrix matrix(problems::Mpc(num_blocks, n, 1), scalar());
    const int64_t rows = matrix.shape().rows(), most = 67;
    const std::vector<double> values = problems::RandomColumns(rows, most, 2);
    const std::span<const double> all(values);
    for (const std::vector<int64_t>& cut : Cuts(num_blocks)) {
      const auto factorization = MustFactor(solver(), matrix, Cut(matrix.shape(), cut));
      std::vector<Columns> alone;
      for (int64_t c = 0; c < most; ++c) {
        const Columns rhs(all.subspan(c * rows, rows), scalar());
        alone.push_back(MustSolve(solver(), factorization, rhs, 1));
      }
      for (const int64_t num_rhs : {int64_t{2}, int64_t{3}, int64_t{4}, int64_t{5}, int64_t{8},
                                    int64_t{16}, int64_t{17}, int64_t{33}, most}) {
        const Columns rhs(all.first(rows * num_rhs), scalar());
        const Columns together = MustSolve(solver(), factorization, rhs, num_rhs);
        const size_t bytes = rows * ScalarBytes(scalar());
        for (int64_t c = 0; c < num_rhs; ++c) {
          ASSERT_EQ(
              std::memcmp(alone[c].bytes().data(), together.bytes().data() + c * bytes, bytes), 0)
              << "N " << num_blocks << " n " << n << " cut " << cut.size() << " column " << c
              << " of " << num_rhs;
        }
      }
    }
  }
}

TEST_P(DeterminismTest, AnItemIsTheSameAloneAndAmongOthers) {
  for (const auto& [num_blocks, n] : Sizes()) {
    const Shape shape{num_blocks, n, scalar()};
    for (const std::vector<int64_t>& cut : Cuts(num_blocks)) {
      const PlanPtr plan = Cut(shape, cut);
      std::vector<HostMatrix> matrices;
      for (int64_t k = 0; k < 3; ++k)
        matrices.emplace_back(problems::Mpc(num_blocks, n, k), scalar());
      std::vector<FactorItem> factor_items(3);
      for (size_t k = 0; k < 3; ++k) factor_items[k].matrix = matrices[k].view();
      const std::vector<FactorOutcome> outcomes = solver().Factor(plan, factor_items);
      // Seven items: factorizations 0 1 2 0 1 2 0, each with its own number of columns.
      std::vector<Columns> rhs, x;
      for (int64_t k = 0; k < 7; ++k) {
        rhs.emplace_back(problems::RandomColumns(shape.rows(), 1 + k * 2 % 5, k), scalar());
        x.emplace_back(shape.rows() * (1 + k * 2 % 5), scalar());
      }
      std::vector<SolveItem> items(7);
      for (int64_t k = 0; k < 7; ++k) {
        ASSERT_TRUE(outcomes[k % 3].status.ok()) << outcomes[k % 3].status;
        items[k] = {.factorization = outcomes[k % 3].factorization,
                    .rhs = rhs[k].data(),
                    .solution = x[k].data(),
                    .num_rhs = 1 + k * 2 % 5};
      }
      for (const SolveOutcome& outcome : solver().Solve(items)) {
        ASSERT_TRUE(outcome.status.ok()) << outcome.status;
      }
      for (int64_t k = 0; k < 7; ++k) {
        const auto alone = MustFactor(solver(), matrices[k % 3], plan);
        EXPECT_EQ(x[k], MustSolve(solver(), alone, rhs[k], items[k].num_rhs))
            << "N " << num_blocks << " n " << n << " item " << k;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(EveryTarget, DeterminismTest, ::testing::ValuesIn(Targets()), TargetName);

}  // namespace
}  // namespace blockd::test
