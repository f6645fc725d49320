#include "tests/engine/solver_fixture.h"

#include <utility>

namespace blockd::test {

std::vector<Target> Targets() {
  std::vector<Target> targets;
  for (const std::string& backend : TestBackends()) {
    targets.push_back({backend, Scalar::kFloat64});
    targets.push_back({backend, Scalar::kFloat32});
  }
  return targets;
}

std::vector<Target> GpuTargets() {
  std::vector<Target> targets = Targets();
  std::erase_if(targets, [](const Target& target) { return target.backend == "cpu"; });
  return targets;
}

std::string ToString(const Target& target) {
  return target.backend + (target.scalar == Scalar::kFloat64 ? "_float64" : "_float32");
}

std::string TargetName(const ::testing::TestParamInfo<Target>& info) {
  return ToString(info.param);
}

PlanPtr Cut(const Shape& shape, const std::vector<int64_t>& separators) {
  absl::StatusOr<EliminationPlan> plan = EliminationPlan::MakeWithSeparators(shape, separators);
  EXPECT_TRUE(plan.ok()) << plan.status();
  return plan.ok() ? std::make_shared<const EliminationPlan>(*std::move(plan)) : nullptr;
}

FactorOutcome FactorOne(Solver& solver, const HostMatrix& matrix, PlanPtr plan, bool keep_matrix) {
  if (plan == nullptr) {
    absl::StatusOr<PlanPtr> made = solver.Plan(matrix.shape());
    if (!made.ok()) {
      FactorOutcome refused;
      refused.status = made.status();
      return refused;
    }
    plan = *std::move(made);
  }
  FactorItem item;
  item.matrix = matrix.view();
  item.keep_matrix = keep_matrix;
  std::vector<FactorOutcome> outcomes = solver.Factor(plan, {&item, 1});
  EXPECT_EQ(outcomes.size(), 1u);
  return std::move(outcomes.at(0));
}

std::shared_ptr<Factorization> MustFactor(Solver& solver, const HostMatrix& matrix, PlanPtr plan,
                                          bool keep_matrix) {
  FactorOutcome outcome = FactorOne(solver, matrix, std::move(plan), keep_matrix);
  EXPECT_TRUE(outcome.status.ok()) << outcome.status;
  EXPECT_NE(outcome.factorization, nullptr);
  EXPECT_FALSE(outcome.not_positive_definite.has_value());
  return std::move(outcome.factorization);
}

Columns MustSolve(Solver& solver, std::shared_ptr<const Factorization> factorization, Columns rhs,
                  int64_t num_rhs) {
  SolveItem item;
  item.factorization = std::move(factorization);
  item.rhs = item.solution = rhs.data();
  item.num_rhs = num_rhs;
  if (item.factorization == nullptr) return rhs;
  const std::vector<SolveOutcome> outcomes = solver.Solve({&item, 1});
  EXPECT_EQ(outcomes.size(), 1u);
  EXPECT_TRUE(outcomes.at(0).status.ok()) << outcomes.at(0).status;
  return rhs;
}

double ErrorBound(const Shape& shape) {
  return 4 * static_cast<double>(shape.block_size) * Epsilon(shape.scalar);
}

}  // namespace blockd::test
