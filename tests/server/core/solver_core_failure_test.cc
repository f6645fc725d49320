// The device fails, or has no memory: at whichever step of whichever call, the call says so, and
// the memory is back. After a failure the core is unhealthy.
#include <set>
#include <string>

#include "tests/server/core/failure_fixture.h"

namespace blockd::test {
namespace {

using server::FactorParams;
using server::Handle;

class SolverCoreFailureTest : public FailingCoreTest {
 protected:
  static FactorParams Keeping() {
    FactorParams params;
    params.keep_matrix = true;
    params.log_determinant = true;
    return params;
  }
  absl::Status UploadStatus(const std::string& key = "") {
    FactorParams params = Keeping();
    params.idempotency_key = key;
    // A palette, whose positions are written before the blocks come.
    const std::vector<uint32_t> diagonal = {0, 1, 1, 0};
    const std::vector<uint32_t> coupling = {0, 0, 0};
    const TestSystem blocks(2, 4);
    params.form = blocks.form;
    params.form.shape.num_blocks = 4;
    params.form.diagonal_palette = 2;
    params.form.coupling_palette = 1;
    params.num_systems = 1;
    auto context = std::make_shared<server::RequestContext>();
    auto begun = core_->BeginUpload(context, params, diagonal, coupling);
    if (!begun.ok()) return begun.status();
    auto upload = std::get<std::unique_ptr<server::FactorUpload>>(*std::move(begun));
    absl::Status status = upload->Write(blocks.bytes());
    if (!status.ok()) return status;
    Pending<server::FactorReply> pending;
    core_->FinishUpload(std::move(upload), pending.Callback());
    return pending.Wait().status();
  }

  absl::Status RefactorSolveStatus(const Handle& handle, bool overwrite) {
    Pending<Solved> pending;
    pending.context->caller = "alice";
    pending.rhs = TestRhs(shape_, 2, 1);
    pending.solution.assign(pending.rhs.size(), 0);
    OneFactorSolve params;
    params.handle = handle;
    params.overwrite = overwrite;
    params.keep_matrix = params.residual = params.log_determinant = true;
    params.matrix = system_.view();
    params.num_rhs = 2;
    params.rhs = std::as_bytes(std::span(pending.rhs));
    params.solution = std::as_writable_bytes(std::span(pending.solution));
    AskOne(*core_, pending.context, params, pending.Callback());
    return pending.Wait().status();
  }
};

TEST_F(SolverCoreFailureTest, IsSaidOnceAndToWhoComesLater) {
  Start();
  const Handle handle = Held(system_);
  std::vector<absl::Status> said;
  core_->OnDeviceFailure(
      [&said](const server::DeviceFailure& failed) { said.push_back(failed.status); });
  EXPECT_TRUE(core_->healthy());
  gate_->FailAfter(0);
  EXPECT_TRUE(absl::IsInternal(SolveStatus(handle, shape_)));
  EXPECT_TRUE(absl::IsInternal(Factor({system_})->Wait().status()));
  EXPECT_TRUE(absl::IsInternal(FactorSolve(system_)->Wait().status()));
  EXPECT_FALSE(core_->healthy());
  ASSERT_EQ(said.size(), 1u);
  EXPECT_EQ(Metric("blockd_healthy"), 0);
  core_->OnDeviceFailure(
      [&said](const server::DeviceFailure& failed) { said.push_back(failed.status); });
  ASSERT_EQ(said.size(), 2u);
  EXPECT_EQ(said[0], said[1]);
  healthy_ = false;
}

TEST_F(SolverCoreFailureTest, AtEveryStepOfAFactor) {
  ExpectAmong(FailEveryStep([] {}, [&] { return Factor({system_}, Keeping())->Wait().status(); }),
              {"Upload", "Factor", "LogDeterminant"});
}

// A Factor that failed leaves nothing behind its key.
TEST_F(SolverCoreFailureTest, AtEveryStepOfAFactorWithAKey) {
  FactorParams params = Keeping();
  params.idempotency_key = "a key";
  const auto factor = [&] {
    const absl::Status status = Factor({system_}, params)->Wait().status();
    EXPECT_EQ(core_->memory().factorizations, status.ok() ? 1 : 0);
    EXPECT_EQ(core_->List("alice", std::nullopt, 2).size(), status.ok() ? 1u : 0u);
    return status;
  };
  ExpectAmong(FailEveryStep([] {}, factor), {"Upload", "Factor", "LogDeterminant"});
}

// It asks the device nothing.
TEST_F(SolverCoreFailureTest, AFactorThatIsThereAlreadyNeedsNoDevice) {
  FactorParams params;
  params.idempotency_key = "a key";
  EXPECT_TRUE(FailEveryStep([&] { ASSERT_TRUE(Factor({system_}, params)->Wait().ok()); },
                            [&] {
                              FactorParams again = params;
                              again.log_determinant = true;
                              return Factor({system_}, again)->Wait().status();
                            })
                  .empty());
}

TEST_F(SolverCoreFailureTest, AtEveryStepOfAFactorThatIsNotPositiveDefinite) {
  std::set<std::string> steps;
  bool failed = true;
  int64_t step = 0;
  for (; failed; ++step) {
    Start();
    gate_->FailAfter(step);
    const absl::Status status = Factor({system_.Spoiled(9)})->Wait().status();
    failed = gate_->failed();
    EXPECT_EQ(server::NotSpdOf(status).has_value(), !failed) << status;
    EXPECT_EQ(core_->healthy(), !failed);
    if (failed) steps.insert(StepOf(status));
    healthy_ = !failed;
    Stop();
  }
  ExpectAmong(steps, {"Factor"});
  EXPECT_GE(step, 2);
}

TEST_F(SolverCoreFailureTest, AtEveryStepOfAnUpload) {
  ExpectAmong(FailEveryStep([] {}, [&] { return UploadStatus(); }),
              {"Upload", "Factor", "LogDeterminant"});
}

TEST_F(SolverCoreFailureTest, AtEveryStepOfAnUploadWithAKey) {
  const auto upload = [&] {
    const absl::Status status = UploadStatus("a key");
    EXPECT_EQ(
        core_->List("alice", std::nullopt, 2).size() + core_->List("", std::nullopt, 2).size(),
        status.ok() ? 1u : 0u);
    return status;
  };
  ExpectAmong(FailEveryStep([] {}, upload), {"Upload", "Factor", "LogDeterminant"});
}

TEST_F(SolverCoreFailureTest, AtEveryStepOfASolve) {
  Handle handle;
  ExpectAmong(FailEveryStep([&] { handle = Held(system_); },
                            [&] { return Solve(handle, shape_, 3, kAlike)->Wait().status(); }),
              {"PackColumns", "Solve", "UnpackColumns", "Mark", "Await"});
}

TEST_F(SolverCoreFailureTest, AtEveryStepOfASolveWithRefinement) {
  Handle handle;
  ExpectAmong(
      FailEveryStep([&] { handle = Held(system_, Keeping()); },
                    [&] { return Solve(handle, shape_, 2, kAlike, true, 2)->Wait().status(); }),
      {"PackColumns", "Solve", "Residual", "UnpackColumns"});
}

TEST_F(SolverCoreFailureTest, AtEveryStepOfAFactorSolve) {
  ExpectAmong(
      FailEveryStep([] {}, [&] { return FactorSolve(system_, 2, kAlike, true)->Wait().status(); }),
      {"Factor", "Solve", "Residual", "LogDeterminant", "UnpackColumns"});
}

// The old factor is in force wherever the refactor fails, unless it was to be overwritten.
TEST_F(SolverCoreFailureTest, AtEveryStepOfARefactor) {
  for (const bool overwrite : {false, true}) {
    Handle handle;
    const auto refactor = [&] {
      FactorParams params = Keeping();
      params.handles = {handle};
      params.overwrite = overwrite;
      const absl::Status status = Factor({system_}, params)->Wait().status();
      EXPECT_EQ(core_->Get("alice", handle).ok(), status.ok() || !overwrite);
      return status;
    };
    ExpectAmong(FailEveryStep([&] { handle = Held(system_, Keeping()); }, refactor),
                {"Upload", "Factor", "LogDeterminant"});
  }
}

TEST_F(SolverCoreFailureTest, AtEveryStepOfARefactorWithASolve) {
  for (const bool overwrite : {false, true}) {
    Handle handle;
    const auto both = [&] {
      const absl::Status status = RefactorSolveStatus(handle, overwrite);
      EXPECT_EQ(core_->Get("alice", handle).ok(), status.ok() || !overwrite);
      if (!status.ok() && !overwrite) {
        EXPECT_EQ(core_->Get("alice", handle)->times_refactored, 0);
      }
      return status;
    };
    ExpectAmong(FailEveryStep([&] { handle = Held(system_, Keeping()); }, both),
                {"Upload", "Factor", "Solve", "Residual", "LogDeterminant", "UnpackColumns"});
  }
}

// ------------------------------------------------------------------- the device has no memory left

// Once: the server makes room, or does it in parts. Again and again: the call is refused.
TEST_F(SolverCoreFailureTest, NoMemoryForAFactor) {
  const auto factor = [&] { return Factor({system_}, Keeping())->Wait().status(); };
  EXPECT_EQ(EmptyPoolAtEach(
                1, [] {}, factor),
            0);
  EXPECT_GT(EmptyPoolAtEach(
                100, [] {}, factor),
            1);
}

TEST_F(SolverCoreFailureTest, NoMemoryForAnUpload) {
  const auto upload = [&] { return UploadStatus(); };
  EXPECT_EQ(EmptyPoolAtEach(
                1, [] {}, upload),
            0);
  EXPECT_GT(EmptyPoolAtEach(
                100, [] {}, upload),
            1);
}

TEST_F(SolverCoreFailureTest, NoMemoryForASolve) {
  for (const int32_t refinements : {0, 2}) {
    Handle handle;
    const auto prepare = [&] { handle = Held(system_, Keeping()); };
    const auto solve = [&] {
      return Solve(handle, shape_, 1, kAlike, refinements > 0, refinements)->Wait().status();
    };
    EXPECT_EQ(EmptyPoolAtEach(1, prepare, solve), 0);
    EXPECT_GT(EmptyPoolAtEach(100, prepare, solve), 0);
  }
}

TEST_F(SolverCoreFailureTest, NoMemoryForARefactorWithASolve) {
  for (const bool overwrite : {false, true}) {
    Handle handle;
    const auto prepare = [&] { handle = Held(system_); };
    const auto both = [&] { return RefactorSolveStatus(handle, overwrite); };
    EXPECT_EQ(EmptyPoolAtEach(1, prepare, both), 0);
    EXPECT_GT(EmptyPoolAtEach(100, prepare, both), 0);
  }
}

TEST_F(SolverCoreFailureTest, NoMemoryForAFactorSolve) {
  const auto both = [&] { return FactorSolve(system_, 1, kAlike, true)->Wait().status(); };
  EXPECT_EQ(EmptyPoolAtEach(
                1, [] {}, both),
            0);
  EXPECT_GT(EmptyPoolAtEach(
                100, [] {}, both),
            1);
}

}  // namespace
}  // namespace blockd::test
