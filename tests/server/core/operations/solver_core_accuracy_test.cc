// The service's statements about accuracy, and its means to reach it: growth, bounds, guaranteed
// accuracy, condition estimates.
#include <cmath>

#include "server/core/common/errors.h"
#include "tests/server/core/core_fixture.h"

namespace blockd::test {
namespace {

using server::FactorParams;

constexpr double kEpsilon = 0x1p-52;

class SolverCoreAccuracyTest : public CoreTest {
 protected:
  // Blocks [1 r; r 1] have a growth of 1 / sqrt(1 - r^2).
  static TestSystem WithGrowth(double growth) {
    TestSystem system(3, 2);
    const double r = std::sqrt(1 - 1 / (growth * growth));
    for (size_t i = 0; i < 3; ++i) {
      system.diagonal[4 * i] = system.diagonal[4 * i + 3] = 1;
      system.diagonal[4 * i + 1] = r;
    }
    std::fill(system.coupling.begin(), system.coupling.end(), 0.0);
    return system;
  }
  static FactorParams Guaranteed() {
    FactorParams params;
    params.accuracy = Accuracy::kGuaranteed;
    return params;
  }

  const TestSystem kind_ = WithGrowth(2);
  const TestSystem grown_ = WithGrowth(1000);
  const double goal_ = 4 * 2 * kEpsilon;
};

TEST_F(SolverCoreAccuracyTest, AFactorSaysItsGrowthAndWhatThatPromises) {
  Start();
  const auto reply = Factor({kind_, grown_})->Wait();
  ASSERT_TRUE(reply.ok()) << reply.status();
  EXPECT_NEAR(reply->systems[0].conditioning.growth, 2, 1e-9);
  EXPECT_NEAR(reply->systems[1].conditioning.growth, 1000, 1e-3);
  EXPECT_DOUBLE_EQ(reply->systems[0].backward_error_bound, goal_);
  // As of a growth of 100: blocks beyond that are substituted with.
  EXPECT_NEAR(reply->systems[1].backward_error_bound, 25 * goal_, 1e-3 * goal_);
  for (const server::FactoredSystem& system : reply->systems) {
    EXPECT_FALSE(system.matrix_kept);
    EXPECT_FALSE(system.conditioning.condition_estimate.has_value());
    const auto stats = core_->Get("alice", system.handle);
    ASSERT_TRUE(stats.ok());
    EXPECT_EQ(stats->conditioning.growth, system.conditioning.growth);
    EXPECT_EQ(stats->backward_error_bound, system.backward_error_bound);
    const auto solved = Solve(system.handle, grown_.form.shape)->Wait();
    ASSERT_TRUE(solved.ok());
    EXPECT_FALSE(solved->backward_error.has_value());
    EXPECT_EQ(solved->backward_error_bound, system.backward_error_bound);
    EXPECT_EQ(solved->refinements, 0);
  }
}

TEST_F(SolverCoreAccuracyTest, GuaranteedKeepsTheMatrixOfWhoNeedsIt) {
  Start();
  const int64_t matrix = MemoryPool::Rounded(StagedMatrix::BufferBytes(kind_.form));
  const int64_t plain = Charge(kind_.form.shape);
  const auto reply = Factor({kind_, grown_}, Guaranteed())->Wait();
  ASSERT_TRUE(reply.ok()) << reply.status();
  EXPECT_FALSE(reply->systems[0].matrix_kept);
  EXPECT_TRUE(reply->systems[1].matrix_kept);
  // Only what is kept is charged, and the most of them is what is said.
  EXPECT_EQ(Reserved(), 2 * plain + matrix);
  EXPECT_EQ(core_->Get("alice", reply->systems[1].handle)->held_bytes, reply->factor_bytes);
  EXPECT_LT(core_->Get("alice", reply->systems[0].handle)->held_bytes, reply->factor_bytes);

  const auto measured = Solve(reply->systems[1].handle, kind_.form.shape, 3)->Wait();
  ASSERT_TRUE(measured.ok());
  ASSERT_TRUE(measured->backward_error.has_value());
  EXPECT_LE(*measured->backward_error, goal_);
  EXPECT_LE(measured->backward_error_bound, goal_);
  EXPECT_EQ(Metric("blockd_backward_error_count"), 1);
}

TEST_F(SolverCoreAccuracyTest, GuaranteedFactorSolvesReachTheGoal) {
  Start();
  for (const TestSystem* system : {&kind_, &grown_}) {
    OneFactorSolve params;
    params.matrix = system->view();
    params.num_rhs = 1;
    params.accuracy = Accuracy::kGuaranteed;
    std::vector<double> x = TestRhs(system->form.shape, 1, 3);
    params.rhs = std::as_bytes(std::span(x));
    std::vector<double> solution(x.size());
    params.solution = std::as_writable_bytes(std::span(solution));
    Pending<Solved> pending;
    AskOne(*core_, pending.context, params, pending.Callback());
    const auto& reply = pending.Wait();
    ASSERT_TRUE(reply.ok()) << reply.status();
    EXPECT_LE(reply->backward_error_bound, goal_);
    EXPECT_EQ(reply->backward_error.has_value(), system == &grown_);
    EXPECT_NEAR(reply->growth, system == &grown_ ? 1000 : 2, 1e-3);
  }
  EXPECT_EQ(Reserved(), 0);
}

TEST_F(SolverCoreAccuracyTest, EstimatesTheConditionNumberWhereAsked) {
  Start();
  FactorParams params;
  params.condition_estimate = true;
  const auto reply = Factor({grown_}, params)->Wait();
  ASSERT_TRUE(reply.ok()) << reply.status();
  const auto estimate = reply->systems[0].conditioning.condition_estimate;
  ASSERT_TRUE(estimate.has_value());
  const double r = grown_.diagonal[1];
  EXPECT_NEAR(*estimate, (1 + r) / (1 - r), 1e-3 * *estimate);
  EXPECT_EQ(core_->Get("alice", reply->systems[0].handle)->conditioning.condition_estimate,
            estimate);
}

// A second call with a key gets what it asked for, or is told that it does not.
TEST_F(SolverCoreAccuracyTest, AKeyDoesNotStandForMoreThanIsHeld) {
  Start();
  FactorParams params;
  params.idempotency_key = "content";
  const auto first = Factor({grown_}, params)->Wait();
  ASSERT_TRUE(first.ok());
  const auto again = Factor({grown_}, params)->Wait();
  ASSERT_TRUE(again.ok());
  EXPECT_TRUE(again->found);
  EXPECT_EQ(again->systems[0].conditioning.growth, first->systems[0].conditioning.growth);
  EXPECT_EQ(again->systems[0].backward_error_bound, first->systems[0].backward_error_bound);

  FactorParams guaranteed = params, estimated = params;
  guaranteed.accuracy = Accuracy::kGuaranteed;
  estimated.condition_estimate = true;
  EXPECT_EQ(FieldOf(Factor({grown_}, guaranteed)->Wait().status()), "options.accuracy");
  EXPECT_EQ(FieldOf(Factor({grown_}, estimated)->Wait().status()), "options.condition_estimate");

  // Where the growth is small there is nothing to keep.
  params.idempotency_key = guaranteed.idempotency_key = "kind";
  ASSERT_TRUE(Factor({kind_}, params)->Wait().ok());
  const auto found = Factor({kind_}, guaranteed)->Wait();
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_TRUE(found->found);
}

// One of them keeps its matrix; a second call is told the same of both.
TEST_F(SolverCoreAccuracyTest, AKeyStandsForSystemsOfWhichSomeKeepTheirMatrix) {
  Start();
  FactorParams params;
  params.idempotency_key = "both";
  params.accuracy = Accuracy::kGuaranteed;
  const auto first = Factor({grown_, kind_}, params)->Wait();
  ASSERT_TRUE(first.ok()) << first.status();
  const auto again = Factor({grown_, kind_}, params)->Wait();
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_TRUE(again->found);
  EXPECT_EQ(again->factor_bytes, first->factor_bytes);
  for (const size_t i : {0u, 1u}) {
    EXPECT_EQ(again->systems[i].handle, first->systems[i].handle);
    EXPECT_EQ(again->systems[i].matrix_kept, i == 0);
  }
}

}  // namespace
}  // namespace blockd::test
