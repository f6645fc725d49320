// Factor with handles: refactors in place, with memory of their own or over the old factors.
#include "tests/server/core/core_fixture.h"

namespace blockd::test {
namespace {

using server::FactorParams;
using server::Handle;
using server::NotFoundReason;

class SolverCoreRefactorTest : public CoreTest {
 protected:
  static FactorParams Refactor(std::vector<Handle> handles, bool overwrite) {
    FactorParams params;
    params.handles = std::move(handles);
    params.overwrite = overwrite;
    return params;
  }
};

TEST_F(SolverCoreRefactorTest, ARefactorKeepsTheHandleAndChangesTheAnswers) {
  Start();
  const TestSystem before(8, 4, 0), after(8, 4, 50);
  const Handle handle = Held(before);
  FactorParams params;
  params.handles = {handle};
  EXPECT_EQ(Held(after, params), handle);
  PendingSolve solve = Solve(handle, after.form.shape);
  ExpectSolves(after, *solve);
  EXPECT_EQ(core_->Get("alice", handle)->times_refactored, 1);
  EXPECT_EQ(Metric("blockd_factorizations"), 1);
}

TEST_F(SolverCoreRefactorTest, AFailedRefactorLeavesTheOldOneInForce) {
  Start();
  const TestSystem system(8, 4);
  const Handle handle = Held(system);
  FactorParams params;
  params.handles = {handle};
  PendingFactor factor = Factor({system.Spoiled(3)}, params);
  EXPECT_TRUE(server::NotSpdOf(factor->Wait().status()).has_value());
  PendingSolve solve = Solve(handle, system.form.shape);
  ExpectSolves(system, *solve);
}

TEST_F(SolverCoreRefactorTest, AnOverwriteHoldsOneFactorOnly) {
  const TestSystem before(64, 16, 0), after(64, 16, 50);
  // Room for one factor and the work, but not for two factors.
  Start();
  const int64_t charge = Charge(before.form.shape);
  Stop();
  Start({.memory_bytes = charge + charge / 2, .limits = {}});
  const Handle handle = Held(before);
  FactorParams params;
  params.handles = {handle};
  EXPECT_TRUE(absl::IsResourceExhausted(Factor({after}, params)->Wait().status()));
  params.overwrite = true;
  EXPECT_EQ(Held(after, params), handle);
  PendingSolve solve = Solve(handle, after.form.shape);
  ExpectSolves(after, *solve);
}

TEST_F(SolverCoreRefactorTest, AFailedOverwriteLosesItsHandle) {
  Start();
  const TestSystem system(8, 4);
  const Handle handle = Held(system);
  FactorParams params;
  params.handles = {handle};
  params.overwrite = true;
  PendingFactor factor = Factor({system.Spoiled(3)}, params);
  EXPECT_TRUE(server::NotSpdOf(factor->Wait().status()).has_value());
  EXPECT_EQ(ReasonOf(SolveStatus(handle, system.form.shape)), NotFoundReason::kFailedRefactor);
  EXPECT_EQ(Reserved(), 0);
}

TEST_F(SolverCoreRefactorTest, AnOverwriteOfWhatIsInUseTakesItsOwnMemory) {
  Start();
  const TestSystem before(8, 4, 0), after(8, 4, 50);
  const Handle handle = Held(before);
  PendingFactor holder = HoldDevice();
  FactorParams params;
  params.handles = {handle};
  params.overwrite = true;
  PendingFactor factor = Factor({after}, params);
  PendingSolve old = Solve(handle, before.form.shape);  // asked before the refactor was done
  gate_->Open();
  ASSERT_TRUE(factor->Wait().ok()) << factor->Wait().status();
  ExpectSolves(before, *old);
  PendingSolve fresh = Solve(handle, after.form.shape);
  ExpectSolves(after, *fresh);
}

TEST_F(SolverCoreRefactorTest, OverwritesAFactorOfAnotherPlan) {
  Start();
  const TestSystem system(40, 2);
  PendingFactor several = Factor({system, system, system, system});
  ASSERT_TRUE(several->Wait().ok());
  const TestSystem after(40, 2, 9);
  FactorParams params;
  params.handles = {several->Wait()->systems[2].handle};
  params.overwrite = true;
  const Handle handle = Held(after, params);
  PendingSolve solve = Solve(handle, after.form.shape);
  ExpectSolves(after, *solve);
}

TEST_F(SolverCoreRefactorTest, ARefactorOfAReleasedHandleSaysSo) {
  Start();
  const TestSystem system(8, 4);
  const Handle handle = Held(system);
  FactorParams params;
  params.handles = {handle};
  PendingFactor holder = HoldDevice();
  PendingFactor factor = Factor({system}, params);
  ASSERT_TRUE(core_->Release("alice", {&handle, 1}).ok());
  gate_->Open();
  EXPECT_EQ(ReasonOf(factor->Wait().status()), NotFoundReason::kReleased);
  EXPECT_EQ(ReasonOf(Factor({system}, params)->Wait().status()), NotFoundReason::kReleased);
}

// The old factors of those that fail stay, unless they were to be overwritten: then just these end.
TEST_F(SolverCoreRefactorTest, OfSeveralOnlyThoseThatFailAreHarmed) {
  const std::vector<TestSystem> before = {{8, 4, 1}, {8, 4, 2}, {8, 4, 3}};
  const std::vector<TestSystem> after = {{8, 4, 4}, {8, 4, 5}, {8, 4, 6}};
  const Shape shape = before[0].form.shape;
  for (const bool overwrite : {false, true}) {
    for (size_t bad = 0; bad < 3; ++bad) {
      SCOPED_TRACE(testing::Message() << "overwrite " << overwrite << ", bad " << bad);
      Start();
      std::vector<Handle> handles;
      for (const TestSystem& system : before) handles.push_back(Held(system));
      std::vector<TestSystem> systems = after;
      systems[bad] = systems[bad].Spoiled(3);
      PendingFactor factor = Factor(systems, Refactor(handles, overwrite));
      ASSERT_TRUE(factor->Wait().ok()) << factor->Wait().status();
      for (size_t i = 0; i < 3; ++i) {
        EXPECT_EQ(factor->Wait()->systems[i].status.ok(), i != bad);
        if (i == bad && overwrite) {
          EXPECT_EQ(ReasonOf(SolveStatus(handles[i], shape)), NotFoundReason::kFailedRefactor);
          continue;
        }
        if (i != bad) {
          EXPECT_EQ(factor->Wait()->systems[i].handle, handles[i]);
        }
        PendingSolve solve = Solve(handles[i], shape);
        ExpectSolves(i == bad ? before[i] : after[i], *solve);
      }
      EXPECT_EQ(Metric("blockd_evictions_total{reason=\"failed_refactor\"}"), overwrite ? 1 : 0);
      Stop();
    }
  }
}

TEST_F(SolverCoreRefactorTest, LeaseAndPinStayUnlessItBringsItsOwn) {
  const TestSystem system(8, 4);
  for (const bool overwrite : {false, true}) {
    Start();
    FactorParams leased;
    leased.lease = absl::Minutes(1);
    const Handle handle = Held(system, leased);
    clock_.Advance(absl::Seconds(30));
    FactorParams params = Refactor({handle}, overwrite);
    Held(system, params);
    EXPECT_EQ(core_->Get("alice", handle)->lease_left, absl::Minutes(1));
    EXPECT_FALSE(core_->Get("alice", handle)->pinned);
    params.lease = absl::Minutes(3);
    params.pin = true;
    Held(system, params);
    EXPECT_EQ(core_->Get("alice", handle)->lease_left, absl::Minutes(3));
    EXPECT_TRUE(core_->Get("alice", handle)->pinned);
    Held(system, Refactor({handle}, overwrite));
    EXPECT_TRUE(core_->Get("alice", handle)->pinned);
    EXPECT_EQ(core_->Get("alice", handle)->times_refactored, 3);
    EXPECT_EQ(Metric("blockd_pinned_factorizations"), 1);
    EXPECT_EQ(core_->memory().evictable_bytes, 0);
    Stop();
  }
}

TEST_F(SolverCoreRefactorTest, ItMayKeepAMatrixOrLoseOne) {
  const TestSystem before(8, 4, 0), after(8, 4, 1);
  for (const bool overwrite : {false, true}) {
    for (const bool kept : {false, true}) {
      Start();
      FactorParams first;
      first.keep_matrix = kept;
      const Handle handle = Held(before, first);
      FactorParams second = Refactor({handle}, overwrite);
      second.keep_matrix = !kept;
      Held(after, second);
      EXPECT_EQ(core_->Get("alice", handle)->matrix_kept, !kept);
      PendingSolve solve = Solve(handle, after.form.shape, 2, {}, /*residual=*/!kept);
      ExpectSolves(after, *solve);
      Stop();  // what is reserved is what is held
    }
  }
}

TEST_F(SolverCoreRefactorTest, AnOverwriteOfWhatIsInUseWithoutRoomForTwoIsRefused) {
  const TestSystem before(64, 16, 0), after(64, 16, 1);
  Start();
  const int64_t charge = Charge(before.form.shape);
  Stop();
  Start({.memory_bytes = charge + charge / 2, .solve_gate = true});
  const Handle handle = Held(before);
  solve_gate_->Close();
  PendingSolve old = Solve(handle, before.form.shape);
  solve_gate_->WaitForDevice();
  PendingFactor factor = Factor({after}, Refactor({handle}, true));
  EXPECT_TRUE(absl::IsResourceExhausted(factor->Wait().status())) << factor->Wait().status();
  solve_gate_->Open();
  ExpectSolves(before, *old);
  PendingSolve again = Solve(handle, before.form.shape);
  ExpectSolves(before, *again);
}

// The pool has room for a second factor, but that is promised to an upload.
TEST_F(SolverCoreRefactorTest, AnOverwriteOfWhatIsInUseTakesNothingThatIsPromised) {
  const TestSystem before(64, 16, 0), after(64, 16, 1);
  Start();
  const int64_t charge = Charge(before.form.shape);
  const int64_t matrix = MemoryPool::Rounded(StagedMatrix::BufferBytes(before.form));
  Stop();
  Start({.memory_bytes = 2 * charge + matrix + charge / 2, .solve_gate = true});
  const Handle handle = Held(before);
  FactorParams params;
  params.form = before.form;
  params.num_systems = 1;
  auto begun = core_->BeginUpload(std::make_shared<server::RequestContext>(), params, {}, {});
  ASSERT_TRUE(begun.ok()) << begun.status();
  auto& upload = *std::get<std::unique_ptr<server::FactorUpload>>(*begun);
  ASSERT_TRUE(upload.Write(FirstPart(upload)).ok());
  solve_gate_->Close();
  PendingSolve old = Solve(handle, before.form.shape);
  solve_gate_->WaitForDevice();
  PendingFactor factor = Factor({after}, Refactor({handle}, true));
  EXPECT_TRUE(server::InsufficientMemoryOf(factor->Wait().status()).has_value())
      << factor->Wait().status();
  solve_gate_->Open();
  ExpectSolves(before, *old);
}

TEST_F(SolverCoreRefactorTest, WhatIsToBeRefactoredIsNotEvictedMeanwhile) {
  Start();
  const TestSystem system(8, 4);
  const Handle handle = Held(system);
  PendingFactor holder = HoldDevice();
  EXPECT_EQ(core_->memory().evictable_bytes, Charge(system.form.shape));
  PendingFactor factor = Factor({system}, Refactor({handle}, false));
  EXPECT_EQ(core_->memory().evictable_bytes, 0);
  gate_->Open();
  EXPECT_TRUE(factor->Wait().ok());
}

TEST_F(SolverCoreRefactorTest, AHandleOfAnotherCallerIsNotFound) {
  Start();
  const TestSystem system(8, 4);
  const Handle handle = Held(system);
  PendingFactor factor = Factor({system}, Refactor({handle}, false), {.caller = "bob"});
  EXPECT_EQ(ReasonOf(factor->Wait().status()), NotFoundReason::kNeverExisted);
  EXPECT_EQ(core_->Get("alice", handle)->times_refactored, 0);
}

}  // namespace
}  // namespace blockd::test
