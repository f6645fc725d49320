// The device fails: at whichever step of whichever call, the call says INTERNAL, the core is
// unhealthy, and the memory is back.
#include <functional>
#include <limits>

#include "tests/server/core_fixture.h"

namespace blockd::test {
namespace {

using server::FactorParams;
using server::Handle;

class SolverCoreFailureTest : public CoreTest {
 protected:
  static FactorParams Keeping() {
    FactorParams params;
    params.keep_matrix = true;
    params.log_determinant = true;
    return params;
  }
  absl::Status UploadStatus() {
    FactorParams params = Keeping();
    // A palette, whose positions are written before the blocks come.
    const std::vector<uint32_t> diagonal = {0, 0, 0, 0};
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

  // Lets each step of `call` in turn be the one that fails, each time on a device that was whole.
  // `prepare` is what comes before it.
  void FailEveryStep(const std::function<void()>& prepare,
                     const std::function<absl::Status()>& call) {
    bool failed = true;
    for (int64_t step = 0; failed; ++step) {
      SCOPED_TRACE(step);
      Start();
      absl::Status failure;
      core_->OnUnhealthy([&failure](const absl::Status& status) { failure = status; });
      prepare();
      gate_->FailAfter(step);
      const absl::Status status = call();
      failed = gate_->failed();
      gate_->FailAfter(std::numeric_limits<int64_t>::max());
      EXPECT_EQ(absl::IsInternal(status), failed) << status;
      EXPECT_EQ(core_->healthy(), !failed) << status;
      EXPECT_EQ(failure, failed ? status : absl::OkStatus());
      Stop();  // what is reserved is what is held
      ASSERT_LT(step, 1000);
    }
  }

  const TestSystem system_{64, 8};
  const Shape shape_ = system_.form.shape;
};

TEST_F(SolverCoreFailureTest, IsSaidOnceAndToWhoComesLater) {
  Start();
  const Handle handle = Held(system_);
  std::vector<absl::Status> said;
  core_->OnUnhealthy([&said](const absl::Status& status) { said.push_back(status); });
  EXPECT_TRUE(core_->healthy());
  gate_->FailAfter(0);
  EXPECT_TRUE(absl::IsInternal(SolveStatus(handle, shape_)));
  EXPECT_TRUE(absl::IsInternal(Factor({system_})->Wait().status()));
  EXPECT_TRUE(absl::IsInternal(FactorSolve(system_)->Wait().status()));
  EXPECT_FALSE(core_->healthy());
  ASSERT_EQ(said.size(), 1u);
  EXPECT_EQ(Metric("blockd_healthy"), 0);
  core_->OnUnhealthy([&said](const absl::Status& status) { said.push_back(status); });
  ASSERT_EQ(said.size(), 2u);
  EXPECT_EQ(said[0], said[1]);
}

TEST_F(SolverCoreFailureTest, AtEveryStepOfAFactor) {
  FailEveryStep([] {}, [&] { return Factor({system_}, Keeping())->Wait().status(); });
}

TEST_F(SolverCoreFailureTest, AtEveryStepOfAFactorThatIsThereAlready) {
  FactorParams params;
  params.idempotency_key = "a key";
  FailEveryStep([&] { ASSERT_TRUE(Factor({system_}, params)->Wait().ok()); },
                [&] {
                  FactorParams again = params;
                  again.log_determinant = true;
                  return Factor({system_}, again)->Wait().status();
                });
}

TEST_F(SolverCoreFailureTest, AtEveryStepOfAFactorThatIsNotPositiveDefinite) {
  bool failed = true;
  for (int64_t step = 0; failed; ++step) {
    Start();
    gate_->FailAfter(step);
    const absl::Status status = Factor({system_.Spoiled(9)})->Wait().status();
    failed = gate_->failed();
    EXPECT_EQ(server::NotSpdOf(status).has_value(), !failed) << status;
    EXPECT_EQ(core_->healthy(), !failed);
    Stop();
  }
}

TEST_F(SolverCoreFailureTest, AtEveryStepOfAnUpload) {
  FailEveryStep([] {}, [&] { return UploadStatus(); });
}

TEST_F(SolverCoreFailureTest, AtEveryStepOfASolve) {
  Handle handle;
  FailEveryStep([&] { handle = Held(system_); },
                [&] { return Solve(handle, shape_, 3)->Wait().status(); });
}

TEST_F(SolverCoreFailureTest, AtEveryStepOfASolveWithRefinement) {
  Handle handle;
  FailEveryStep([&] { handle = Held(system_, Keeping()); },
                [&] { return Solve(handle, shape_, 2, {}, true, 2)->Wait().status(); });
}

TEST_F(SolverCoreFailureTest, AtEveryStepOfAFactorSolve) {
  FailEveryStep([] {}, [&] { return FactorSolve(system_, 2, {}, true)->Wait().status(); });
}

// The old factor is in force wherever the refactor fails, unless it was to be overwritten.
TEST_F(SolverCoreFailureTest, AtEveryStepOfARefactor) {
  for (const bool overwrite : {false, true}) {
    Handle handle;
    FailEveryStep([&] { handle = Held(system_, Keeping()); },
                  [&] {
                    FactorParams params = Keeping();
                    params.handles = {handle};
                    params.overwrite = overwrite;
                    const absl::Status status = Factor({system_}, params)->Wait().status();
                    EXPECT_EQ(core_->Get("alice", handle).ok(), status.ok() || !overwrite);
                    return status;
                  });
  }
}

}  // namespace
}  // namespace blockd::test
