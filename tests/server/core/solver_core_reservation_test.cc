// Work reserves all that it may need when it is accepted, until its answer is given. The fixture's
// backend checks at every step that nothing more is used.
#include "tests/server/core/core_fixture.h"

namespace blockd::test {
namespace {

using server::FactorParams;
using server::Handle;

class SolverCoreReservationTest : public CoreTest {
 protected:
  int64_t FactorWorkspace(int64_t systems) {
    return core_->Plan(system_.form, systems, 1)->factor_workspace_bytes;
  }
  int64_t SolveWorkspace(int64_t num_rhs) {
    return core_->Plan(system_.form, 1, num_rhs)->solve_workspace_bytes;
  }
  // The bytes for residuals and refinement beside x: b, r, and the x that is tried.
  int64_t Refining(int64_t num_rhs) const {
    return 3 * MemoryPool::Rounded(system_.form.shape.rows() * num_rhs * 8);
  }
  int64_t MatrixCharge() const {
    return MemoryPool::Rounded(StagedMatrix::BufferBytes(system_.form));
  }
  int64_t Charge() { return CoreTest::Charge(system_.form.shape); }

  const TestSystem system_{40, 6}, other_{40, 6, 1};
  int64_t at_answer_ = -1;
};

TEST_F(SolverCoreReservationTest, AFactorReservesFactorsAndWorkspaceUntilItIsAnswered) {
  for (const bool keep : {false, true}) {
    Start();
    gate_->Close();
    FactorParams params;
    params.keep_matrix = keep;
    PendingFactor factor = Factor({system_, other_}, params);
    const int64_t held = 2 * (Charge() + (keep ? MatrixCharge() : 0));
    EXPECT_EQ(Reserved(), held + FactorWorkspace(2));
    factor->at_answer = [&] { at_answer_ = Reserved(); };
    gate_->WaitForDevice();
    EXPECT_EQ(Reserved(), held + FactorWorkspace(2));
    gate_->Open();
    ASSERT_TRUE(factor->Wait().ok());
    EXPECT_EQ(at_answer_, held);
    EXPECT_EQ(factor->Wait()->factor_bytes,
              core_->Get("alice", factor->Wait()->systems[0].handle)->held_bytes);
    EXPECT_GE(held, 2 * factor->Wait()->factor_bytes);
    Stop();
  }
}

TEST_F(SolverCoreReservationTest, AnUploadReservesAllThatItWillNeed) {
  Start();
  FactorParams params;
  params.form = system_.form;
  params.num_systems = 2;
  Pending<server::FactorReply> pending;
  auto begun = core_->BeginUpload(pending.context, params, {}, {});
  ASSERT_TRUE(begun.ok()) << begun.status();
  auto upload = std::get<std::unique_ptr<server::FactorUpload>>(*std::move(begun));
  ASSERT_TRUE(upload->Write(system_.bytes()).ok());
  EXPECT_EQ(Reserved(), 0);  // the first part is not whole
  ASSERT_TRUE(upload->Write(other_.bytes()).ok());
  EXPECT_EQ(Reserved(), 2 * Charge() + 2 * MatrixCharge() + FactorWorkspace(2));
  EXPECT_EQ(core_->memory().pool.used_bytes, 2 * MatrixCharge());
  int64_t used_at_answer = -1;
  pending.at_answer = [&] {
    at_answer_ = Reserved();
    used_at_answer = core_->memory().pool.used_bytes;
  };
  core_->FinishUpload(std::move(upload), pending.Callback());
  ASSERT_TRUE(pending.Wait().ok());
  EXPECT_EQ(at_answer_, 2 * Charge());
  EXPECT_EQ(used_at_answer, 2 * Charge());
}

TEST_F(SolverCoreReservationTest, AnOverwriteReservesNoSecondFactor) {
  Start();
  FactorParams params;
  params.handles = {Held(system_)};
  params.overwrite = true;
  gate_->Close();
  PendingFactor factor = Factor({other_}, params);
  EXPECT_EQ(Reserved(), Charge() + FactorWorkspace(1));
  gate_->WaitForDevice();
  EXPECT_EQ(Reserved(), Charge() + FactorWorkspace(1));
  gate_->Open();
  ASSERT_TRUE(factor->Wait().ok());
}

TEST_F(SolverCoreReservationTest, ASolveReservesItsWorkspaceWhileItRuns) {
  for (const bool residual : {false, true}) {
    Start();
    FactorParams params;
    params.keep_matrix = residual;
    const Handle handle = Held(system_, params);
    const int64_t held = Reserved();
    gate_->Close();
    PendingSolve solve = Solve(handle, system_.form.shape, 9, {}, residual);
    solve->at_answer = [&] { at_answer_ = Reserved(); };
    gate_->WaitForDevice();
    EXPECT_EQ(Reserved() - held, SolveWorkspace(9) + (residual ? Refining(9) : 0));
    gate_->Open();
    ExpectSolves(system_, *solve);
    EXPECT_EQ(at_answer_, held);
    Stop();
  }
}

TEST_F(SolverCoreReservationTest, ARefinementWithoutAResidualReservesForBoth) {
  Start();
  FactorParams params;
  params.keep_matrix = true;
  const Handle handle = Held(system_, params);
  const int64_t held = Reserved();
  gate_->Close();
  PendingSolve solve = Solve(handle, system_.form.shape, 2, {}, false, /*refinements=*/2);
  gate_->WaitForDevice();
  EXPECT_EQ(Reserved() - held, SolveWorkspace(2) + Refining(2));
  gate_->Open();
  ExpectSolves(system_, *solve);
  EXPECT_LT(solve->Wait()->backward_error.value_or(1), 1e-14);  // measured, and so said
}

TEST_F(SolverCoreReservationTest, AFactorSolveReservesForBothUntilItIsAnswered) {
  for (const bool residual : {false, true}) {
    Start();
    gate_->Close();
    PendingSolve solve = FactorSolve(system_, 30, {}, residual);
    const int64_t expected = Charge() + FactorWorkspace(1) + SolveWorkspace(30) +
                             (residual ? MatrixCharge() + Refining(30) : 0);
    EXPECT_EQ(Reserved(), expected);
    gate_->WaitForDevice();
    EXPECT_EQ(Reserved(), expected);
    int64_t used_at_answer = -1;
    solve->at_answer = [&] {
      at_answer_ = Reserved();
      used_at_answer = core_->memory().pool.used_bytes;
    };
    gate_->Open();
    ExpectSolves(system_, *solve);
    EXPECT_EQ(at_answer_, 0);
    EXPECT_EQ(used_at_answer, 0);
    Stop();
  }
}

// A request that ends in the queue gives its memory back before its caller learns of the end.
TEST_F(SolverCoreReservationTest, WhatEndsInTheQueueGivesBackBeforeItIsAnswered) {
  Start();
  FactorParams refactor;
  const Handle handle = Held(system_);
  refactor.handles = {handle};
  PendingFactor holder = HoldDevice();
  const int64_t before = Reserved();
  const CallOptions late = {.deadline = clock_.Now() + absl::Seconds(1)};
  int64_t reserved = -1, evictable = -1;
  const auto look = [&] {
    reserved = Reserved();
    evictable = core_->memory().evictable_bytes;
  };
  const auto expect_back = [&] {
    EXPECT_EQ(reserved, before);
    EXPECT_EQ(evictable, Charge());
  };
  CallOptions soon = late;
  {
    PendingFactor factor = Factor({other_}, refactor, soon);
    factor->at_answer = look;
    EXPECT_GT(Reserved(), before);
    clock_.Advance(absl::Seconds(1));
    EXPECT_TRUE(absl::IsDeadlineExceeded(factor->Wait().status()));
    expect_back();
  }
  soon.deadline += absl::Seconds(1);
  {
    PendingSolve both = FactorSolve(other_, 1, soon);
    both->at_answer = look;
    EXPECT_GT(Reserved(), before);
    clock_.Advance(absl::Seconds(1));
    EXPECT_TRUE(absl::IsDeadlineExceeded(both->Wait().status()));
    expect_back();
  }
  soon.deadline += absl::Seconds(1);
  {
    PendingSolve solve = Solve(handle, system_.form.shape, 1, soon);
    solve->at_answer = look;
    EXPECT_EQ(core_->memory().evictable_bytes, 0);
    clock_.Advance(absl::Seconds(1));
    EXPECT_TRUE(absl::IsDeadlineExceeded(solve->Wait().status()));
    expect_back();
  }
  gate_->Open();
  EXPECT_TRUE(holder->Wait().ok());
}

}  // namespace
}  // namespace blockd::test
