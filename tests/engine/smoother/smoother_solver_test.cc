// A program that links the engine alone smooths: the smoother makes A and b, a Solver of each
// backend factors, solves and inverts, and the classical smoother in 80-bit arithmetic is the
// oracle.
#include <cstdint>
#include <vector>

#include "blockd/engine/smoother.h"
#include "tests/engine/solver_fixture.h"
#include "tests/support/classical_smoother.h"
#include "tests/support/smooth_model.h"

namespace blockd::test {
namespace {

class SmootherSolverTest : public SolverTest {};

INSTANTIATE_TEST_SUITE_P(Backends, SmootherSolverTest, ::testing::ValuesIn([] {
                           std::vector<Target> targets = Targets();
                           std::erase_if(targets, [](const Target& target) {
                             return target.scalar != Scalar::kFloat64;
                           });
                           return targets;
                         }()),
                         TargetName);

void ExpectNear(std::span<const double> values, std::span<const long double> expected) {
  ASSERT_EQ(values.size(), expected.size());
  for (size_t i = 0; i < values.size(); ++i) {
    EXPECT_NEAR(values[i], static_cast<double>(expected[i]), 1e-9) << i;
  }
}

TEST_P(SmootherSolverTest, MeansCovariancesAndLikelihoodAreThoseOfTheFilter) {
  const SmoothModel model({.steps = 30, .states = 4, .observations = 3, .series = 2});
  const int64_t n = 4, steps = 30;
  StepPool pool(2);
  const auto measured = MeasureSmooth(model.params, {.threads = pool.threads()});
  ASSERT_TRUE(measured.ok()) << measured.status();
  const auto smoother = Smoother::Make(*measured, {&pool, [] { return absl::OkStatus(); }});
  ASSERT_TRUE(smoother.ok()) << smoother.status();
  for (int64_t k = 0; k < 2; ++k) {
    const size_t system = (*smoother)->patterns().system_of_series[k];
    SystemMatrix matrix;
    ASSERT_TRUE((*smoother)->Assemble(system, &matrix).ok());
    std::vector<double> x(static_cast<size_t>(2 * n * steps)), blocks(n * n * steps);
    ASSERT_TRUE((*smoother)->RightHandSides(std::vector{k}, x.data()).ok());
    double* const mean = x.data() + k * n * steps;

    const auto plan = solver().Plan(matrix.form.shape);
    ASSERT_TRUE(plan.ok()) << plan.status();
    std::vector<FactorItem> items(1);
    items[0].matrix = matrix.view();
    std::vector<FactorOutcome> factored = solver().Factor(*plan, items);
    ASSERT_TRUE(factored[0].status.ok()) << factored[0].status;
    const std::shared_ptr<const Factorization> factor = std::move(factored[0].factorization);
    SolveItem solve{.factorization = factor, .rhs = mean, .solution = mean};
    ASSERT_TRUE(solver().Solve({&solve, 1})[0].status.ok());
    const InverseItem inverse{.factorization = factor, .num_blocks = steps};
    ASSERT_TRUE(solver().SelectedInverse(inverse, {.diagonal = blocks.data()}).ok());
    const auto log_determinant = solver().LogDeterminant(*factor);
    ASSERT_TRUE(log_determinant.ok()) << log_determinant.status();
    double likelihoods[2] = {};
    (*smoother)->LogLikelihoods(std::vector{k}, x.data(), *log_determinant, likelihoods);

    const ClassicalSmoother classical(model.params, k);
    ExpectNear({mean, static_cast<size_t>(n * steps)}, classical.means);
    ExpectNear(blocks, classical.covariances);
    EXPECT_NEAR(likelihoods[k], static_cast<double>(classical.log_likelihood), 1e-8);
  }
}

}  // namespace
}  // namespace blockd::test
