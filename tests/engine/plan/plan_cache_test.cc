// Plans as the Solver makes, remembers and compares them: what they do decides, not which object
// says it.
#include <cstdint>
#include <vector>

#include "tests/engine/solver_fixture.h"

namespace blockd::test {
namespace {

class PlanCacheTest : public SolverTest {
 protected:
  PlanPtr PlanOf(const Shape& shape, int64_t systems) const {
    absl::StatusOr<PlanPtr> plan = solver().Plan(shape, systems);
    EXPECT_TRUE(plan.ok()) << plan.status();
    return plan.ok() ? *plan : nullptr;
  }
  // Asks for more plans than are remembered.
  void ForgetAll() const {
    for (int64_t n = 1; n <= 4200; ++n) PlanOf({1, n, scalar()}, 1);
  }
};

TEST_P(PlanCacheTest, MakesThePlanOfAShapeOnce) {
  const Shape shape{64, 8, scalar()};
  EXPECT_EQ(PlanOf(shape, 2), PlanOf(shape, 2));
  EXPECT_NE(PlanOf(shape, 2), PlanOf({64, 9, scalar()}, 2));
}

TEST_P(PlanCacheTest, BatchesGrowInSteps) {
  const Shape shape{64, 8, scalar()};
  const int64_t steps[][2] = {{3, 4}, {5, 8}, {7, 8}, {9, 16}, {1000, 1024}};
  for (const auto& [systems, planned] : steps) {
    EXPECT_EQ(PlanOf(shape, systems), PlanOf(shape, planned)) << systems;
  }
  EXPECT_NE(PlanOf(shape, 4), PlanOf(shape, 8));
  // A batch that fills any device, and more.
  EXPECT_EQ(PlanOf(shape, int64_t{1} << 40), PlanOf(shape, int64_t{1} << 62));
  // The plan is one for the batch that it grew to.
  const auto made = EliminationPlan::Make(shape, 1024, solver().backend().costs(shape));
  ASSERT_TRUE(made.ok());
  EXPECT_EQ(*PlanOf(shape, 513), *made);
  for (const int64_t systems : {int64_t{0}, int64_t{-1}}) {
    EXPECT_EQ(solver().Plan(shape, systems).status().code(), absl::StatusCode::kInvalidArgument);
  }
}

TEST_P(PlanCacheTest, AForgottenPlanIsMadeAgainAndEqual) {
  const Shape shape{64, 8, scalar()};
  const PlanPtr before = PlanOf(shape, 4);
  ForgetAll();
  const PlanPtr after = PlanOf(shape, 4);
  EXPECT_NE(before, after) << "the cache has no bound";
  EXPECT_EQ(*before, *after);
}

// Factored with other objects, and for other batches, that happen to do the same.
TEST_P(PlanCacheTest, FactorizationsOfEqualPlansAreSolvedTogether) {
  const Shape shape{40, 6, scalar()};
  std::vector<HostMatrix> matrices;
  std::vector<SolveItem> items(4);
  std::vector<Columns> x;
  for (int64_t k = 0; k < 4; ++k) {
    matrices.emplace_back(problems::Mpc(40, 6, 10 + k), scalar());
    x.emplace_back(problems::RandomColumns(shape.rows(), 2, k), scalar());
  }
  const std::vector<Columns> rhs = x;
  for (int64_t k = 0; k < 4; ++k) {
    items[k] = {.factorization = MustFactor(solver(), matrices[k], Cut(shape, {9, 3})),
                .rhs = x[k].data(),
                .solution = x[k].data(),
                .num_rhs = 2};
  }
  const std::vector<SolveOutcome> outcomes = solver().Solve(items);
  for (int64_t k = 0; k < 4; ++k) {
    ASSERT_TRUE(outcomes[k].status.ok()) << outcomes[k].status;
    EXPECT_EQ(x[k], MustSolve(solver(), items[k].factorization, rhs[k], 2));
    EXPECT_LE(BackwardError(matrices[k].view(), x[k].values(), rhs[k].values()), ErrorBound(shape));
  }
}

TEST_P(PlanCacheTest, FactorizationsFromBeforeThePlansWereForgottenAreSolvedWithNewOnes) {
  const HostMatrix matrix(problems::Mpc(40, 6, 1), scalar());
  const auto old = MustFactor(solver(), matrix);
  ForgetAll();
  const auto young = MustFactor(solver(), matrix);
  ASSERT_NE(&old->plan(), &young->plan());
  const Columns rhs(problems::RandomColumns(240, 1, 1), scalar());
  std::vector<Columns> x(2, rhs);
  std::vector<SolveItem> items(2);
  for (size_t k = 0; k < 2; ++k) {
    items[k] = {.factorization = k == 0 ? old : young, .rhs = x[k].data(), .solution = x[k].data()};
  }
  for (const SolveOutcome& outcome : solver().Solve(items)) {
    EXPECT_TRUE(outcome.status.ok()) << outcome.status;
  }
  EXPECT_EQ(x[0], x[1]);
  EXPECT_EQ(x[0], MustSolve(solver(), old, rhs, 1));
}

// The first item says which plan it is, and those of others are refused alone.
TEST_P(PlanCacheTest, FactorizationsOfOtherPlansAreNot) {
  const HostMatrix matrix(problems::Mpc(40, 6, 1), scalar());
  const Columns rhs(problems::RandomColumns(240, 1, 1), scalar());
  std::vector<Columns> x(3, rhs);
  std::vector<SolveItem> items(3);
  for (size_t k = 0; k < 3; ++k) {
    items[k] = {.factorization =
                    MustFactor(solver(), matrix, Cut(matrix.shape(), {k == 1 ? int64_t{8} : 9})),
                .rhs = x[k].data(),
                .solution = x[k].data()};
  }
  const std::vector<SolveOutcome> outcomes = solver().Solve(items);
  EXPECT_TRUE(outcomes[0].status.ok()) << outcomes[0].status;
  EXPECT_EQ(outcomes[1].status.code(), absl::StatusCode::kInvalidArgument) << outcomes[1].status;
  EXPECT_TRUE(outcomes[2].status.ok()) << outcomes[2].status;
  EXPECT_EQ(x[1], rhs);
  EXPECT_EQ(x[2], MustSolve(solver(), items[0].factorization, rhs, 1));
}

INSTANTIATE_TEST_SUITE_P(EveryTarget, PlanCacheTest, ::testing::ValuesIn(Targets()), TargetName);

}  // namespace
}  // namespace blockd::test
