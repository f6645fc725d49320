// FactorSolve: each of a batch by itself, what is looked at, what is answered.
#include <cmath>
#include <limits>

#include "tests/server/core/core_fixture.h"

namespace blockd::test {
namespace {

using server::FactorParams;
using server::Handle;

class SolverCoreFactorSolveTest : public CoreTest {
 protected:
  // The answer to a FactorSolve with these flags and right-hand sides.
  absl::StatusOr<Solved> Run(const TestSystem& system, std::vector<double> rhs,
                             OneFactorSolve params) {
    Pending<Solved> pending;
    pending.rhs = std::move(rhs);
    pending.solution.assign(pending.rhs.size(), 0);
    params.matrix = system.view();
    params.num_rhs = static_cast<int64_t>(pending.rhs.size()) / system.form.shape.rows();
    params.rhs = std::as_bytes(std::span(pending.rhs));
    params.solution = std::as_writable_bytes(std::span(pending.solution));
    AskOne(*core_, pending.context, params, pending.Callback());
    return pending.Wait();
  }
  std::vector<double> Rhs(int64_t num_rhs) const { return TestRhs(shape(), num_rhs, 0); }
  const Shape& shape() const { return system_.form.shape; }

  const TestSystem system_{12, 5}, other_{12, 5, 1}, third_{12, 5, 2};
};

TEST_F(SolverCoreFactorSolveTest, OfABatchEachGetsItsOwnAnswer) {
  for (int bad = 0; bad < 3; ++bad) {
    Start();
    std::vector<TestSystem> systems = {system_, other_, third_};
    systems[static_cast<size_t>(bad)] = systems[static_cast<size_t>(bad)].Spoiled(7);
    PendingFactor holder = HoldDevice();
    std::vector<PendingSolve> solves;
    for (size_t i = 0; i < 3; ++i) {  // the second one asks for less
      solves.push_back(FactorSolve(systems[i], 2, {}, /*residual=*/i != 1));
    }
    gate_->Open();
    for (int i = 0; i < 3; ++i) {
      const size_t at = static_cast<size_t>(i);
      if (i == bad) {
        const auto detail = server::NotSpdOf(solves[at]->Wait().status());
        ASSERT_TRUE(detail.has_value());
        EXPECT_EQ(detail->system, 0);  // of its own request
        EXPECT_EQ(detail->where.block, 7);
        continue;
      }
      ExpectSolves(systems[at], *solves[at]);
      EXPECT_EQ(solves[at]->Wait()->backward_error.has_value(), i != 1);
      EXPECT_EQ(solves[at]->Wait()->log_determinant.has_value(), i != 1);
      if (i != 1) {
        EXPECT_NEAR(solves[at]->Wait()->log_determinant.value_or(0), systems[at].LogDeterminant(),
                    1e-10);
        EXPECT_LT(solves[at]->Wait()->backward_error.value_or(1), 1e-14);
      }
      EXPECT_EQ(solves[at]->Wait()->cost.batch_requests, 3);
      EXPECT_EQ(solves[at]->Wait()->cost.batch_items, 3);
    }
    EXPECT_EQ(Metric("blockd_backward_error_count"), bad == 1 ? 2 : 1);
    EXPECT_EQ(Metric("blockd_factorizations"), 1);  // the holder's
    Stop();
  }
}

TEST_F(SolverCoreFactorSolveTest, SaysOnlyWhatWasAskedFor) {
  Start();
  const auto plain = Run(system_, Rhs(1), {});
  ASSERT_TRUE(plain.ok());
  EXPECT_FALSE(plain->log_determinant.has_value());
  EXPECT_FALSE(plain->backward_error.has_value());
  OneFactorSolve params;
  params.log_determinant = true;
  EXPECT_TRUE(Run(system_, Rhs(1), params)->log_determinant.has_value());
  EXPECT_EQ(Metric("blockd_backward_error_count"), 0);
  params = {};
  params.max_refinements = 1;
  const auto refined = Run(system_, Rhs(1), params);
  ASSERT_TRUE(refined.ok());
  EXPECT_TRUE(refined->backward_error.has_value());  // measured, and so told
}

TEST_F(SolverCoreFactorSolveTest, ALogDeterminantOfZeroIsSaid) {
  Start();
  TestSystem identity(3, 1);
  identity.diagonal = {1, 1, 1};
  identity.coupling = {0, 0};
  OneFactorSolve params;
  params.log_determinant = true;
  const auto reply = Run(identity, TestRhs(identity.form.shape, 1, 0), params);
  ASSERT_TRUE(reply.ok());
  EXPECT_EQ(reply->log_determinant, 0.0);
}

TEST_F(SolverCoreFactorSolveTest, LooksForNanWhereItIsAskedTo) {
  Start();
  TestSystem bad = system_;
  bad.coupling[7] = std::nan("");
  std::vector<double> bad_rhs = Rhs(2);
  bad_rhs[61] = std::numeric_limits<double>::infinity();
  OneFactorSolve matrix, rhs;
  matrix.check_finite = true;
  rhs.check_finite_rhs = true;
  EXPECT_EQ(FieldOf(Run(bad, Rhs(1), matrix).status()), "system[0].coupling");
  EXPECT_EQ(FieldOf(Run(system_, bad_rhs, rhs).status()), "rhs");
  EXPECT_TRUE(server::NotSpdOf(Run(bad, Rhs(1), rhs).status()).has_value());
  EXPECT_TRUE(Run(system_, bad_rhs, matrix).ok());
}

TEST_F(SolverCoreFactorSolveTest, RefusesWhatDoesNotAgreeAndNamesTheField) {
  Start();
  TestSystem odd = system_;
  odd.form.shape.num_blocks = 0;
  EXPECT_EQ(FieldOf(FactorSolve(odd)->Wait().status()), "spec.num_blocks");
  std::vector<double> shorter = Rhs(1);
  shorter.pop_back();
  EXPECT_EQ(FieldOf(Run(system_, shorter, {}).status()), "num_rhs");
  OneFactorSolve params;
  params.max_refinements = 11;
  EXPECT_EQ(FieldOf(Run(system_, Rhs(1), params).status()), "options.max_refinements");
  EXPECT_EQ(Reserved(), 0);
}

// The error of a column of garbage must not look like a small one.
TEST_F(SolverCoreFactorSolveTest, TheErrorOfGarbageIsNotFinite) {
  Start();
  FactorParams keeping;
  keeping.keep_matrix = true;
  const Handle handle = Held(system_, keeping);
  for (const double garbage : {std::nan(""), std::numeric_limits<double>::infinity()}) {
    for (const size_t place : {size_t{3}, size_t{60 + 3}}) {
      for (const int32_t refinements : {0, 2}) {
        std::vector<double> rhs = Rhs(2);
        rhs[place] = garbage;
        OneFactorSolve params;
        params.residual = true;
        params.max_refinements = refinements;
        const auto reply = Run(system_, rhs, params);
        ASSERT_TRUE(reply.ok()) << reply.status();
        EXPECT_FALSE(std::isfinite(reply->backward_error.value_or(0)));

        Pending<Solved> pending;
        pending.context->caller = "alice";
        pending.solution = rhs;
        server::SolveParams solve;
        solve.handle = handle;
        solve.num_rhs = 2;
        solve.residual = true;
        solve.max_refinements = refinements;
        solve.rhs = std::as_bytes(std::span(rhs));
        solve.solution = std::as_writable_bytes(std::span(pending.solution));
        core_->Solve(pending.context, solve, pending.Callback());
        ASSERT_TRUE(pending.Wait().ok());
        EXPECT_FALSE(std::isfinite(pending.Wait()->backward_error.value_or(0)));
      }
    }
  }
  EXPECT_TRUE(std::isfinite(Metric("blockd_backward_error_sum")));
}

}  // namespace
}  // namespace blockd::test
