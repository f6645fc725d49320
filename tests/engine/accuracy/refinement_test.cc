// Iterative refinement, on a backend whose solves are wrong by as much as a test says: how many
// steps are taken, when they stop, and that the best of them is the answer.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "tests/engine/solver_fixture.h"
#include "tests/support/hooked_backend.h"

namespace blockd::test {
namespace {

// The k-th solve's x is 1 + error(k) times what it should be; later ones as the last.
class SkewedBackend : public HookedBackend {
 public:
  SkewedBackend(std::unique_ptr<Backend> inner, std::vector<double> errors)
      : HookedBackend(std::move(inner), CostModel(), std::make_shared<Gate>()),
        errors_(std::move(errors)) {}

  absl::Status Solve(Track track, const SolveBatch& batch,
                     absl::FunctionRef<bool()> wanted) override {
    absl::Status status = HookedBackend::Solve(track, batch, wanted);
    if (!status.ok()) return status;
    const double scale = 1 + errors_[std::min(solves_, errors_.size() - 1)];
    ++solves_;
    for (const SolveSystem& system : batch.systems) {
      auto* const x = static_cast<double*>(system.x);
      for (int64_t i = 0; i < batch.plan->shape().rows() * system.num_rhs; ++i) x[i] *= scale;
    }
    return status;
  }

 private:
  const std::vector<double> errors_;
  size_t solves_ = 0;
};

constexpr int64_t kColumns = 3;

struct Answer {
  SolveOutcome outcome;
  double backward_error = 0;  // as the oracle sees it
};

// No growth to speak of: refined only if asked.
HostMatrix Tame() { return HostMatrix(problems::Poisson(12, 9), Scalar::kFloat64); }
// Refined until it reaches the goal.
HostMatrix Grown() { return HostMatrix(problems::RandomSpd(12, 9, 5, 1e4), Scalar::kFloat64); }

// `errors`: of the first solve and of each step's.
Answer Refine(const std::vector<double>& errors, int32_t max_refinements,
              const HostMatrix& matrix = Tame(), bool refines = false) {
  absl::StatusOr<std::unique_ptr<Backend>> backend =
      CreateBackend("cpu", {.memory_bytes = 64 << 20, .cpu_threads = 2});
  EXPECT_TRUE(backend.ok()) << backend.status();
  Solver solver(std::make_unique<SkewedBackend>(*std::move(backend), errors));
  Columns rhs(problems::RandomColumns(matrix.shape().rows(), kColumns, 6), Scalar::kFloat64);
  Columns x = rhs;
  const auto factorization = MustFactor(solver, matrix, nullptr, true);
  EXPECT_EQ(factorization->refines(), refines);
  SolveItem item{.factorization = factorization, .rhs = rhs.data(), .solution = x.data()};
  item.num_rhs = kColumns;
  item.residual = true;
  item.max_refinements = max_refinements;
  Answer answer;
  answer.outcome = solver.Solve({&item, 1})[0];
  // A goal that is not reached fails the solve.
  const bool reached =
      !refines || answer.outcome.backward_error_bound <= 1.0001 * BackwardErrorGoal(matrix.shape());
  EXPECT_EQ(answer.outcome.status.code(),
            reached ? absl::StatusCode::kOk : absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(answer.outcome.backward_error.has_value());
  answer.backward_error = BackwardError(matrix.view(), x.values(), rhs.values());
  // The reported error is the true error of the solution.
  EXPECT_NEAR(answer.outcome.backward_error.value_or(-1), answer.backward_error,
              1e-3 * answer.backward_error + 1e-15);
  return answer;
}

TEST(RefinementTest, TakesAsManyStepsAsItMayWhileTheyHelp) {
  const double before = Refine({1e-2}, 0).backward_error;
  EXPECT_GT(before, 1e-7);
  for (const int32_t steps : {1, 2, 3}) {
    SCOPED_TRACE(steps);
    const Answer answer = Refine({1e-2}, steps);
    EXPECT_EQ(answer.outcome.refinements, steps);
    EXPECT_LT(answer.backward_error, before * std::pow(1e-2, steps) * 2);
    EXPECT_GT(answer.backward_error, before * std::pow(1e-2, steps) / 100);
  }
}

TEST(RefinementTest, StopsWhenNothingIsGained) {
  const Answer answer = Refine({1e-2}, 1000);
  EXPECT_GE(answer.outcome.refinements, 5);
  EXPECT_LE(answer.outcome.refinements, 12);
  EXPECT_LE(answer.backward_error, 0x1p-52);
}

// A step that makes it worse is not kept.
TEST(RefinementTest, KeepsTheBestStep) {
  const double before = Refine({1e-2}, 0).backward_error;
  const double after_one = Refine({1e-2}, 1).backward_error;
  // The first step already is worse by far.
  EXPECT_LE(Refine({1e-2, 50.0}, 3).backward_error, before * 1.001);
  // So is the second one.
  EXPECT_LE(Refine({1e-2, 1e-2, 50.0}, 3).backward_error, after_one * 1.001);
  // And one whose answer is no number.
  EXPECT_LE(Refine({1e-2, std::nan("")}, 2).backward_error, before * 1.001);
}

// A goal that is not asked for is reached, and no step is taken beyond it.
TEST(RefinementTest, StopsAtTheGoalWhereTheGrowthAsksForIt) {
  const HostMatrix matrix = Grown();
  const Answer answer = Refine({1e-2}, 0, matrix, true);
  EXPECT_GE(answer.outcome.refinements, 4);
  EXPECT_LE(answer.outcome.refinements, kMaxRefinements);
  EXPECT_LE(answer.backward_error, ErrorBound(matrix.shape()));
  // Three digits a step, from a start that is there already, near, or farther off.
  EXPECT_EQ(Refine({0.0}, 0, matrix, true).outcome.refinements, 0);
  EXPECT_EQ(Refine({1e-10, 1e-3}, 0, matrix, true).outcome.refinements, 1);
  EXPECT_EQ(Refine({1e-7, 1e-3}, 0, matrix, true).outcome.refinements, 2);
  // It goes on while a step helps at all, and ends.
  EXPECT_EQ(Refine({1e-2, 0.6}, 0, matrix, true).outcome.refinements, kMaxRefinements);
  EXPECT_LE(Refine({1e-2, 1.5}, 0, matrix, true).outcome.refinements, 1);
  // The promised bound leaves room for the rounding of the measured error.
  EXPECT_GT(answer.outcome.backward_error_bound, *answer.outcome.backward_error);
}

}  // namespace
}  // namespace blockd::test
