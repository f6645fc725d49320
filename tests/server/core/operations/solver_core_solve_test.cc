// Solve: answers, coalescing, the caller's own thread, what is refused.
#include <limits>
#include <thread>

#include "tests/server/core/core_fixture.h"

namespace blockd::test {
namespace {

using server::FactorParams;
using server::Handle;
using server::NotFoundReason;

class SolverCoreSolveTest : public CoreTest {
 protected:
  const TestSystem system_{12, 5};
  const Shape& shape() const { return system_.form.shape; }
};

TEST_F(SolverCoreSolveTest, SolvesOfOneHandleCoalesceIntoOne) {
  Start();
  const Handle handle = Held(system_);
  const TestSystem other(12, 5, 40);
  const Handle second = Held(other);
  PendingFactor holder = HoldDevice();
  PendingSolve a = Solve(handle, shape(), 1), b = Solve(handle, shape(), 3);
  PendingSolve c = Solve(second, shape(), 2);
  gate_->Open();
  ExpectSolves(system_, *a);
  ExpectSolves(system_, *b);
  ExpectSolves(other, *c);
  for (PendingSolve* solve : {&a, &b, &c}) {
    EXPECT_EQ((*solve)->Wait()->cost.batch_requests, 3);
    EXPECT_EQ((*solve)->Wait()->cost.batch_items, 6);
  }
  EXPECT_EQ(core_->Get("alice", handle)->times_solved, 2);
  EXPECT_EQ(core_->Get("alice", handle)->rhs_solved, 4);
}

TEST_F(SolverCoreSolveTest, BatchingNeverChangesAnAnswer) {
  Start();
  const Handle handle = Held(system_);
  const CallOptions alike = {.rhs_seed = 1};
  PendingSolve alone = Solve(handle, shape(), 1, alike);
  ASSERT_TRUE(alone->Wait().ok());
  PendingFactor holder = HoldDevice();
  PendingSolve first = Solve(handle, shape(), 7), shared = Solve(handle, shape(), 1, alike);
  gate_->Open();
  ASSERT_TRUE(first->Wait().ok());
  ASSERT_TRUE(shared->Wait().ok());
  EXPECT_EQ(shared->Wait()->cost.batch_requests, 2);
  EXPECT_EQ(shared->solution, alone->solution);
}

TEST_F(SolverCoreSolveTest, ASolveDoesNotWaitForAFactor) {
  Start({.solve_gate = true});
  const Handle handle = Held(system_);
  gate_->Close();
  PendingFactor held = Factor({system_});
  gate_->WaitForDevice();
  PendingSolve solve = Solve(handle, shape(), 3);
  ExpectSolves(system_, *solve);
  EXPECT_FALSE(held->answered());
  EXPECT_NE(solve->thread, std::this_thread::get_id());
  gate_->Open();
  EXPECT_TRUE(held->Wait().ok());
}

TEST_F(SolverCoreSolveTest, ManyCallersAtOnceAreAllAnswered) {
  Start();
  const Handle handle = Held(system_);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([this, &handle] {
      for (int i = 0; i < 100; ++i) {
        PendingSolve solve = Solve(handle, shape(), 1 + i % 3);
        ExpectSolves(system_, *solve);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(core_->Get("alice", handle)->times_solved, 400);
  EXPECT_EQ(Metric("blockd_batch_items_sum{kind=\"solve\"}"), 4 * (34 * 1 + 33 * 2 + 33 * 3));
}

TEST_F(SolverCoreSolveTest, ResidualsAndRefinementNeedTheMatrix) {
  Start();
  const Handle without = Held(system_);
  FactorParams params;
  params.keep_matrix = true;
  const Handle with = Held(system_, params);
  EXPECT_TRUE(core_->Get("alice", with)->matrix_kept);
  EXPECT_EQ(Solve(without, shape(), 1, {}, true)->Wait().status().code(),
            absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(Solve(without, shape(), 1, {}, false, 1)->Wait().status().code(),
            absl::StatusCode::kFailedPrecondition);
  PendingSolve plain = Solve(without, shape());
  PendingSolve measured = Solve(with, shape(), 2, {}, true, 2);
  ExpectSolves(system_, *plain);
  ExpectSolves(system_, *measured);
  EXPECT_FALSE(plain->Wait()->backward_error.has_value());
  ASSERT_TRUE(measured->Wait()->backward_error.has_value());
  EXPECT_LT(*measured->Wait()->backward_error, 1e-14);
  EXPECT_EQ(Metric("blockd_backward_error_count"), 1);
}

// A = L L' with a small pivot: inv(L) loses digits that a step of refinement brings back.
TEST_F(SolverCoreSolveTest, SaysHowManyStepsItTook) {
  Start();
  TestSystem hard(1, 3);
  const double l[3][3] = {{1, 0, 0}, {1.0 / 3, 1.2345e-2, 0}, {0.3, 0.9, 0.7}};
  std::vector<double> rhs(3, 0.0), solution(3);
  for (size_t r = 0; r < 3; ++r) {
    for (size_t c = 0; c < 3; ++c) {
      const double a = l[r][0] * l[c][0] + l[r][1] * l[c][1] + l[r][2] * l[c][2];
      if (r >= c) hard.diagonal[3 * c + r] = a;
      rhs[r] += a;
    }
  }
  FactorParams keeping;
  keeping.keep_matrix = true;
  server::SolveParams params;
  params.handle = Held(hard, keeping);
  params.num_rhs = 1;
  params.rhs = std::as_bytes(std::span(rhs));
  params.solution = std::as_writable_bytes(std::span(solution));
  params.residual = true;
  params.max_refinements = 3;
  Pending<Solved> pending;
  pending.context->caller = "alice";
  core_->Solve(pending.context, params, pending.Callback());
  ASSERT_TRUE(pending.Wait().ok()) << pending.Wait().status();
  EXPECT_GE(pending.Wait()->refinements, 1);
  EXPECT_LE(pending.Wait()->refinements, 3);
}

TEST_F(SolverCoreSolveTest, RefusesWhatDoesNotAgreeAndNamesTheField) {
  Start({.limits = {.max_rhs = 100}});
  const Handle handle = Held(system_);
  std::vector<double> rhs(static_cast<size_t>(shape().rows())), solution = rhs;
  server::SolveParams params;
  params.handle = handle;
  params.num_rhs = 1;
  params.rhs = std::as_bytes(std::span(rhs));
  params.solution = std::as_writable_bytes(std::span(solution));
  const auto field = [this](const server::SolveParams& changed) {
    Pending<Solved> pending;
    pending.context->caller = "alice";
    core_->Solve(pending.context, changed, pending.Callback());
    return FieldOf(pending.Wait().status());
  };
  server::SolveParams wrong = params;
  wrong.num_rhs = 0;
  EXPECT_EQ(field(wrong), "num_rhs");
  wrong.num_rhs = 101;
  EXPECT_EQ(field(wrong), "num_rhs");
  wrong.num_rhs = 2;
  EXPECT_EQ(field(wrong), "rhs");
  wrong = params;
  wrong.rhs = params.rhs.first(params.rhs.size() - 1);
  EXPECT_EQ(field(wrong), "rhs");
  wrong = params;
  wrong.max_refinements = 11;
  EXPECT_EQ(field(wrong), "options.max_refinements");
  wrong.max_refinements = -1;
  EXPECT_EQ(field(wrong), "options.max_refinements");
  wrong = params;
  wrong.solution = params.solution.first(params.solution.size() - 8);
  EXPECT_EQ(field(wrong), "solution");
  wrong = params;
  wrong.check_finite = true;
  rhs[7] = std::numeric_limits<double>::quiet_NaN();
  EXPECT_EQ(field(wrong), "rhs");
  EXPECT_EQ(core_->memory().evictable_bytes, Charge(shape()));  // none is in use any more
}

TEST_F(SolverCoreSolveTest, TheLimitsThemselvesAreAccepted) {
  Start({.limits = {.max_rhs = 100}});
  FactorParams keeping;
  keeping.keep_matrix = true;
  const Handle handle = Held(system_, keeping);
  PendingSolve solve = Solve(handle, shape(), 100, {}, true, 10);
  ExpectSolves(system_, *solve);
}

TEST_F(SolverCoreSolveTest, NotFoundSaysWhy) {
  Start();
  const Handle handle = Held(system_);
  Handle restarted = handle;
  restarted.bytes.back() ^= 1;
  EXPECT_EQ(ReasonOf(SolveStatus(restarted, shape())), NotFoundReason::kRestarted);
  Handle other = handle;
  other.bytes[Handle::kIdBytes] ^= 1;
  EXPECT_EQ(ReasonOf(SolveStatus(other, shape())), NotFoundReason::kOtherServer);
  EXPECT_EQ(ReasonOf(SolveStatus(Handle::Random(kServer.epoch), shape())),
            NotFoundReason::kNeverExisted);
  EXPECT_EQ(ReasonOf(Solve(handle, shape(), 1, {.caller = "bob"})->Wait().status()),
            NotFoundReason::kNeverExisted);
  EXPECT_EQ(ReasonOf(core_->ShapeOf("bob", handle).status()), NotFoundReason::kNeverExisted);
  clock_.Advance(absl::Seconds(5));
  EXPECT_EQ(*core_->ShapeOf("alice", handle), system_.form.bordered_shape());
  EXPECT_EQ(core_->Get("alice", handle)->idle, absl::Seconds(5));  // not a use
  ASSERT_TRUE(core_->Release("alice", {&handle, 1}).ok());
  EXPECT_EQ(ReasonOf(SolveStatus(handle, shape())), NotFoundReason::kReleased);
  EXPECT_EQ(FieldOf(core_->Release("alice", {}).status()), "handle");
}

TEST_F(SolverCoreSolveTest, AReleaseLetsQueuedSolvesFinish) {
  Start();
  const Handle handle = Held(system_);
  PendingFactor holder = HoldDevice();
  PendingSolve solve = Solve(handle, shape());
  ASSERT_TRUE(core_->Release("alice", {&handle, 1}).ok());
  EXPECT_EQ(ReasonOf(SolveStatus(handle, shape())), NotFoundReason::kReleased);
  gate_->Open();
  ExpectSolves(system_, *solve);
}

TEST_F(SolverCoreSolveTest, RecordsWhatItDid) {
  Start();
  const Handle handle = Held(system_);
  ASSERT_TRUE(SolveStatus(handle, shape()).ok());
  EXPECT_TRUE(absl::IsNotFound(SolveStatus(Handle::Random(kServer.epoch), shape())));
  EXPECT_EQ(Metric("blockd_cache_hits_total"), 1);
  EXPECT_EQ(Metric("blockd_cache_misses_total{reason=\"NEVER_EXISTED\"}"), 1);
  EXPECT_EQ(Metric("blockd_request_seconds_count{method=\"Solve\",phase=\"compute\"}"), 1);
  EXPECT_EQ(Metric("blockd_request_seconds_count{method=\"Factor\",phase=\"queue\"}"), 1);
  EXPECT_GT(Metric("blockd_flops_total{kind=\"factor\"}"), 0);
  EXPECT_GT(Metric("blockd_flops_total{kind=\"solve\"}"), 0);
}

}  // namespace
}  // namespace blockd::test
