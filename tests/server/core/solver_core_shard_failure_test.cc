// A device of several fails: what it held and what waited before it is answered, the others go on.
#include <limits>

#include "server/core/common/errors.h"
#include "tests/server/core/shards_fixture.h"

namespace blockd::test {
namespace {

using server::FactorParams;
using server::Handle;
using server::NotFoundReason;
using server::Resource;

class SolverCoreShardFailureTest : public TwoDevicesTest {};

TEST_F(SolverCoreShardFailureTest, ADeviceThatFailsIsOutOfServiceAndTheOtherGoesOn) {
  for (size_t failing = 0; failing < 2; ++failing) {
    StartTwo();
    std::vector<server::DeviceFailure> said;
    core_->OnDeviceFailure([&](const server::DeviceFailure& one) { said.push_back(one); });
    const std::vector<Handle> handles = HoldOnBothAndFail(failing);
    ASSERT_EQ(said.size(), 1u);
    EXPECT_EQ(said[0].device, failing);
    EXPECT_TRUE(absl::IsInternal(said[0].status));
    EXPECT_TRUE(core_->healthy());
    EXPECT_EQ(Metric("blockd_healthy"), 1);
    for (size_t device = 0; device < 2; ++device) {
      EXPECT_EQ(Metric("blockd_shard_healthy{device=\"" + std::to_string(device) + "\"}"),
                device == failing ? 0 : 1);
    }
    EXPECT_EQ(ReasonOf(SolveStatus(handles[failing], shape_)), NotFoundReason::kDeviceFailed);
    EXPECT_EQ(ReasonOf(core_->Get("alice", handles[failing]).status()),
              NotFoundReason::kDeviceFailed);
    EXPECT_EQ(ReasonOf(core_->Release("alice", {&handles[failing], 1}).status()),
              NotFoundReason::kDeviceFailed);
    // The metric counts the one factorization that was held there, and no others.
    EXPECT_EQ(Metric("blockd_evictions_total{reason=\"device_failed\"}"), 1);
    ExpectSolves(system_, *Solve(handles[1 - failing], shape_));
    for (int i = 0; i < 4; ++i) {
      EXPECT_EQ(core_->shards().IndexOf(Held(system_)), 1 - failing);
      ExpectSolves(system_, *FactorSolve(system_));
    }
    EXPECT_EQ(core_->memory().factorizations, 5);
    EXPECT_EQ(core_->List("alice", std::nullopt, 100).size(), 5u);
    // Its handles and its memory count for nobody any more.
    EXPECT_EQ(Used(Resource::kHandles), 5);
    EXPECT_EQ(Used(Resource::kDeviceBytes), 5 * Charge(shape_));
    Stop();
    GateOf(failing).FailAfter(std::numeric_limits<int64_t>::max());
  }
}

TEST_F(SolverCoreShardFailureTest, TheLastDeviceStaysInServiceAndSaysWhatItIs) {
  StartTwo();
  std::vector<server::DeviceFailure> said;
  core_->OnDeviceFailure([&](const server::DeviceFailure& one) { said.push_back(one); });
  const std::vector<Handle> handles = HoldOnBothAndFail(1);
  GateOf(0).FailAfter(0);
  EXPECT_TRUE(absl::IsInternal(SolveStatus(handles[0], shape_)));
  EXPECT_FALSE(core_->healthy());
  healthy_ = false;
  EXPECT_EQ(Metric("blockd_healthy"), 0);
  ASSERT_EQ(said.size(), 2u);
  EXPECT_EQ(said[1].device, 0u);
  EXPECT_TRUE(absl::IsInternal(SolveStatus(handles[0], shape_)));
  EXPECT_EQ(ReasonOf(SolveStatus(handles[1], shape_)), NotFoundReason::kDeviceFailed);
  EXPECT_TRUE(absl::IsInternal(Factor({system_})->Wait().status()));
  EXPECT_TRUE(absl::IsInternal(FactorSolve(system_)->Wait().status()));
  EXPECT_TRUE(core_->Release("alice", {&handles[0], 1}).ok());
  EXPECT_EQ(said.size(), 2u);
  // Who comes later is told of both.
  said.clear();
  core_->OnDeviceFailure([&](const server::DeviceFailure& one) { said.push_back(one); });
  EXPECT_EQ(said.size(), 2u);
}

// So that their callers factor again.
TEST_F(SolverCoreShardFailureTest, SolvesThatWaitBeforeADeviceThatFailsAreToldThatItIsGone) {
  StartTwo();
  const std::vector<Handle> handles = {HeldOnDevice(0), HeldOnDevice(1)};
  gate_->Close();
  PendingSolve runs = Solve(handles[0], shape_);
  gate_->WaitForDevice();
  std::vector<PendingSolve> wait;
  for (int i = 0; i < 3; ++i) wait.push_back(Solve(handles[0], shape_, 1 + i));
  gate_->FailAfter(0);
  gate_->Open();
  EXPECT_TRUE(absl::IsInternal(runs->Wait().status()));
  for (const PendingSolve& solve : wait) {  // some may be on the device already
    const absl::Status status = solve->Wait().status();
    if (!absl::IsInternal(status)) {
      EXPECT_EQ(ReasonOf(status), NotFoundReason::kDeviceFailed);
    }
  }
  EXPECT_EQ(ReasonOf(SolveStatus(handles[0], shape_)), NotFoundReason::kDeviceFailed);
  ExpectSolves(system_, *Solve(handles[1], shape_));
}

// Since another device takes them.
TEST_F(SolverCoreShardFailureTest, FactorsThatWaitBeforeADeviceThatFailsAreToldToTryAgain) {
  StartTwo();
  FactorParams refactor;
  refactor.handles = {HeldOnDevice(0)};
  gate_->Close();
  PendingFactor runs = Factor({system_}, refactor);
  gate_->WaitForDevice();
  PendingFactor waits = Factor({system_}, refactor);
  gate_->FailAfter(0);
  gate_->Open();
  EXPECT_TRUE(absl::IsInternal(runs->Wait().status()));
  const absl::Status status = waits->Wait().status();
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_TRUE(server::RetryAfterOf(status).has_value());
  EXPECT_EQ(ReasonOf(Factor({system_}, refactor)->Wait().status()), NotFoundReason::kDeviceFailed);
  EXPECT_EQ(core_->shards().IndexOf(Held(system_)), 1u);
}

TEST_F(SolverCoreShardFailureTest, AKeyOfADeviceThatFailedIsFree) {
  StartTwo();
  FactorParams params;
  params.idempotency_key = "a key";
  const Handle lost = HeldOnDevice(1, params);
  GateOf(1).FailAfter(0);
  EXPECT_TRUE(absl::IsInternal(SolveStatus(lost, shape_)));
  PendingFactor again = Factor({system_}, params);
  ASSERT_TRUE(again->Wait().ok());
  EXPECT_FALSE(again->Wait()->found);
  EXPECT_EQ(core_->shards().IndexOf(again->Wait()->systems[0].handle), 0u);
  EXPECT_TRUE(Factor({system_}, params)->Wait()->found);
}

}  // namespace
}  // namespace blockd::test
