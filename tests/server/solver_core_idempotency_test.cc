// A Factor that arrives twice with its key factors once.
#include "tests/server/core_fixture.h"

namespace blockd::test {
namespace {

using server::FactorParams;
using server::Handle;

class SolverCoreIdempotencyTest : public CoreTest {
 protected:
  SolverCoreIdempotencyTest() {
    keyed_.idempotency_key = "content";
    keyed_.log_determinant = true;
  }
  double Factored() const { return Metric("blockd_batch_items_sum{kind=\"factor\"}"); }

  FactorParams keyed_;
  const TestSystem system_{6, 3};
};

TEST_F(SolverCoreIdempotencyTest, ARepetitionFindsTheHandles) {
  Start();
  PendingFactor first = Factor({system_, system_}, keyed_);
  ASSERT_TRUE(first->Wait().ok());
  PendingFactor again = Factor({system_, system_}, keyed_);
  const auto& reply = again->Wait();
  ASSERT_TRUE(reply.ok()) << reply.status();
  EXPECT_TRUE(reply->found);
  ASSERT_EQ(reply->systems.size(), 2u);
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(reply->systems[i].handle, first->Wait()->systems[i].handle);
    EXPECT_EQ(reply->systems[i].log_determinant, first->Wait()->systems[i].log_determinant);
  }
  EXPECT_EQ(reply->factor_bytes, first->Wait()->factor_bytes);
  EXPECT_EQ(Factored(), 2);
}

TEST_F(SolverCoreIdempotencyTest, TheKeyIsTheCallersOwn) {
  Start();
  PendingFactor alice = Factor({system_}, keyed_);
  PendingFactor bob = Factor({system_}, keyed_, {.caller = "bob"});
  ASSERT_TRUE(alice->Wait().ok());
  ASSERT_TRUE(bob->Wait().ok());
  EXPECT_NE(alice->Wait()->systems[0].handle, bob->Wait()->systems[0].handle);
}

TEST_F(SolverCoreIdempotencyTest, ASecondCallWaitsForTheFirstAndSharesItsAnswer) {
  Start();
  PendingFactor holder = HoldDevice();
  PendingFactor first = Factor({system_}, keyed_);
  PendingFactor second = Factor({system_}, keyed_);
  EXPECT_FALSE(second->answered());
  gate_->Open();
  ASSERT_TRUE(first->Wait().ok());
  ASSERT_TRUE(second->Wait().ok());
  EXPECT_TRUE(second->Wait()->found);
  EXPECT_EQ(first->Wait()->systems[0].handle, second->Wait()->systems[0].handle);
  EXPECT_EQ(Metric("blockd_factorizations"), 2);  // that, and the holder's
}

TEST_F(SolverCoreIdempotencyTest, ASecondCallSharesAFailureThatTheMatrixHas) {
  Start();
  PendingFactor holder = HoldDevice();
  PendingFactor first = Factor({system_.Spoiled(1)}, keyed_);
  PendingFactor second = Factor({system_.Spoiled(1)}, keyed_);
  gate_->Open();
  EXPECT_TRUE(server::NotSpdOf(first->Wait().status()).has_value());
  EXPECT_TRUE(server::NotSpdOf(second->Wait().status()).has_value());
  EXPECT_EQ(Factored(), 2);                             // that, and the holder's
  EXPECT_TRUE(Factor({system_}, keyed_)->Wait().ok());  // the key is free again
}

TEST_F(SolverCoreIdempotencyTest, ASecondCallTakesOverFromACancelledFirst) {
  Start();
  PendingFactor holder = HoldDevice();
  PendingFactor first = Factor({system_}, keyed_);
  PendingFactor gone = Factor({system_}, keyed_);
  PendingFactor second = Factor({system_}, keyed_);
  PendingFactor third = Factor({system_}, keyed_);
  first->context->cancelled = true;
  gone->context->cancelled = true;
  gate_->Open();
  EXPECT_TRUE(absl::IsCancelled(first->Wait().status()));
  ASSERT_TRUE(second->Wait().ok());
  ASSERT_TRUE(third->Wait().ok());
  EXPECT_FALSE(second->Wait()->found);
  EXPECT_TRUE(third->Wait()->found);
  EXPECT_EQ(second->Wait()->systems[0].handle, third->Wait()->systems[0].handle);
  gone->Wait();
}

TEST_F(SolverCoreIdempotencyTest, AWaitingCallHasItsOwnDeadline) {
  Start();
  PendingFactor holder = HoldDevice();
  PendingFactor first = Factor({system_}, keyed_);
  PendingFactor second = Factor({system_}, keyed_, {.deadline = clock_.Now() + absl::Seconds(1)});
  clock_.Advance(absl::Seconds(1));
  EXPECT_TRUE(absl::IsDeadlineExceeded(second->Wait().status()));
  EXPECT_FALSE(first->answered());
  gate_->Open();
  EXPECT_TRUE(first->Wait().ok());
}

TEST_F(SolverCoreIdempotencyTest, AKeyOfOtherContentIsRefused) {
  Start();
  ASSERT_TRUE(Factor({system_}, keyed_)->Wait().ok());
  EXPECT_EQ(FieldOf(Factor({TestSystem(7, 3)}, keyed_)->Wait().status()),
            "options.idempotency_key");
  EXPECT_EQ(FieldOf(Factor({system_, system_}, keyed_)->Wait().status()),
            "options.idempotency_key");
}

TEST_F(SolverCoreIdempotencyTest, AReleasedHandleFreesItsKey) {
  Start();
  const Handle first = Held(system_, keyed_);
  ASSERT_TRUE(core_->Release("alice", {&first, 1}).ok());
  const Handle second = Held(system_, keyed_);
  EXPECT_NE(first, second);
}

TEST_F(SolverCoreIdempotencyTest, APartialFailureIsNotRemembered) {
  Start();
  PendingFactor first = Factor({system_, system_.Spoiled(0)}, keyed_);
  ASSERT_TRUE(first->Wait().ok());
  PendingFactor second = Factor({system_, system_}, keyed_);
  ASSERT_TRUE(second->Wait().ok());
  EXPECT_FALSE(second->Wait()->found);
}

TEST_F(SolverCoreIdempotencyTest, AnUploadFindsHeldFactorizations) {
  Start();
  const Handle handle = Held(system_, keyed_);
  FactorParams params = keyed_;
  params.form = system_.form;
  params.num_systems = 1;
  auto context = std::make_shared<server::RequestContext>();
  context->caller = "alice";
  auto begun = core_->BeginUpload(context, params, {}, {});
  ASSERT_TRUE(begun.ok()) << begun.status();
  ASSERT_TRUE(std::holds_alternative<server::FactorReply>(*begun));
  EXPECT_EQ(std::get<server::FactorReply>(*begun).systems[0].handle, handle);
}

TEST_F(SolverCoreIdempotencyTest, AnUploadThatEndsWhileAnotherRunsSharesItsAnswer) {
  Start();
  FactorParams params = keyed_;
  params.form = system_.form;
  params.num_systems = 1;
  Pending<server::FactorReply> uploaded;
  uploaded.context->caller = "alice";
  auto begun = core_->BeginUpload(uploaded.context, params, {}, {});
  ASSERT_TRUE(begun.ok()) << begun.status();
  auto upload = std::get<std::unique_ptr<server::FactorUpload>>(*std::move(begun));
  ASSERT_TRUE(upload->Write(system_.bytes()).ok());
  PendingFactor holder = HoldDevice();
  PendingFactor first = Factor({system_}, keyed_);
  core_->FinishUpload(std::move(upload), uploaded.Callback());
  gate_->Open();
  ASSERT_TRUE(first->Wait().ok());
  ASSERT_TRUE(uploaded.Wait().ok());
  EXPECT_TRUE(uploaded.Wait()->found);
  EXPECT_EQ(uploaded.Wait()->systems[0].handle, first->Wait()->systems[0].handle);
}

}  // namespace
}  // namespace blockd::test
