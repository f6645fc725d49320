// Factors that wait for the key of another one: in the queue's count, with deadlines of their own,
// and next in line where the first one does not make it.
#include "tests/server/core/core_fixture.h"

namespace blockd::test {
namespace {

using server::FactorParams;
using server::Handle;

class SolverCoreKeyWaitersTest : public CoreTest {
 protected:
  SolverCoreKeyWaitersTest() { keyed_.idempotency_key = "content"; }
  // One for each HoldDevice is the holder's.
  double Factored() const {
    return Metric("blockd_batch_items_sum{kind=\"factor\"}") - static_cast<double>(holds());
  }

  FactorParams keyed_;
  const TestSystem system_{6, 3};
};

TEST_F(SolverCoreKeyWaitersTest, TheNextTakesOverFromACancelledFirst) {
  Start();
  PendingFactor holder = HoldDevice();
  PendingFactor first = Factor({system_}, keyed_);
  PendingFactor gone = Factor({system_}, keyed_);
  PendingFactor second = Factor({system_}, keyed_);
  PendingFactor third = Factor({system_}, keyed_);
  core_->Cancel(*first->context);
  core_->Cancel(*gone->context);
  gate_->Open();
  EXPECT_TRUE(absl::IsCancelled(first->Wait().status()));
  EXPECT_TRUE(absl::IsCancelled(gone->Wait().status()));
  ASSERT_TRUE(second->Wait().ok());
  ASSERT_TRUE(third->Wait().ok());
  EXPECT_FALSE(second->Wait()->found);
  EXPECT_TRUE(third->Wait()->found);
  EXPECT_EQ(second->Wait()->systems[0].handle, third->Wait()->systems[0].handle);
  EXPECT_EQ(Factored(), 2);
}

TEST_F(SolverCoreKeyWaitersTest, TheFirstOnesDeadlineIsItsOwn) {
  Start();
  PendingFactor holder = HoldDevice();
  PendingFactor first = Factor({system_}, keyed_, {.deadline = clock_.Now() + absl::Seconds(1)});
  PendingFactor second = Factor({system_}, keyed_);
  PendingFactor third = Factor({system_}, keyed_, {.deadline = clock_.Now() + absl::Hours(1)});
  clock_.Advance(absl::Seconds(1));
  EXPECT_TRUE(absl::IsDeadlineExceeded(first->Wait().status()));
  EXPECT_FALSE(second->answered());
  gate_->Open();
  ASSERT_TRUE(second->Wait().ok()) << second->Wait().status();
  ASSERT_TRUE(third->Wait().ok()) << third->Wait().status();
  EXPECT_NE(second->Wait()->found, third->Wait()->found);
}

TEST_F(SolverCoreKeyWaitersTest, AWaitingCallHasItsOwnDeadline) {
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

TEST_F(SolverCoreKeyWaitersTest, ACancellationOfOneThatWaitsIsSaidAtOnce) {
  Start();
  PendingFactor holder = HoldDevice();
  PendingFactor first = Factor({system_.Spoiled(1)}, keyed_);
  PendingFactor second = Factor({system_.Spoiled(1)}, keyed_);
  core_->Cancel(*second->context);
  gate_->Open();
  EXPECT_TRUE(server::NotSpdOf(first->Wait().status()).has_value());
  EXPECT_TRUE(absl::IsCancelled(second->Wait().status()));
  gate_->Close();
  PendingFactor third = Factor({system_}, keyed_), fourth = Factor({system_}, keyed_);
  core_->Cancel(*fourth->context);
  gate_->Open();
  EXPECT_TRUE(third->Wait().ok());
  EXPECT_TRUE(absl::IsCancelled(fourth->Wait().status()));
}

TEST_F(SolverCoreKeyWaitersTest, TheFailureOfAnotherBorderIsNotTheirs) {
  Start();
  const TestSystem bordered(6, 3, 0, 2);
  PendingFactor holder = HoldDevice();
  PendingFactor first = Factor({bordered.Spoiled(6)}, keyed_);
  PendingFactor second = Factor({system_}, keyed_);
  gate_->Open();
  EXPECT_TRUE(server::NotSpdOf(first->Wait().status()).has_value()) << first->Wait().status();
  EXPECT_TRUE(second->Wait().ok()) << second->Wait().status();
}

TEST_F(SolverCoreKeyWaitersTest, WaitersAreCountedAsQueued) {
  Start({.limits = {.max_queued_requests = 3}});
  const Handle handle = Held(system_);
  for (int round = 0; round < 2; ++round) {  // what was counted is uncounted
    PendingFactor holder = HoldDevice();
    PendingFactor first = Factor({system_}, keyed_), second = Factor({system_}, keyed_);
    PendingFactor third = Factor({system_}, keyed_, {.deadline = clock_.Now() + absl::Seconds(1)});
    EXPECT_TRUE(absl::IsUnavailable(SolveStatus(handle, system_.form.shape)));
    EXPECT_TRUE(absl::IsUnavailable(Factor({system_})->Wait().status()));
    clock_.Advance(absl::Seconds(1));
    EXPECT_TRUE(absl::IsDeadlineExceeded(third->Wait().status()));
    PendingSolve solve = Solve(handle, system_.form.shape);
    EXPECT_TRUE(absl::IsUnavailable(Factor({system_})->Wait().status()));
    gate_->Open();
    ASSERT_TRUE(first->Wait().ok());
    ASSERT_TRUE(second->Wait().ok());
    ExpectSolves(system_, *solve);
    holder->Wait();
    ASSERT_TRUE(core_->Release("alice", {&first->Wait()->systems[0].handle, 1}).ok());
  }
}

TEST_F(SolverCoreKeyWaitersTest, ThoseThatShareAFailureAreUncountedToo) {
  Start({.limits = {.max_queued_requests = 3}});
  const std::vector<TestSystem> bad = {system_.Spoiled(1)};
  for (int round = 0; round < 3; ++round) {
    PendingFactor holder = HoldDevice();
    PendingFactor first = Factor(bad, keyed_), second = Factor(bad, keyed_);
    PendingFactor third = Factor(bad, keyed_), fourth = Factor(bad, keyed_);
    gate_->Open();
    for (PendingFactor* factor : {&first, &second, &third}) {
      EXPECT_TRUE(server::NotSpdOf((*factor)->Wait().status()).has_value())
          << (*factor)->Wait().status();
    }
    EXPECT_TRUE(absl::IsUnavailable(fourth->Wait().status()));
    EXPECT_TRUE(holder->Wait().ok());
  }
}

TEST_F(SolverCoreKeyWaitersTest, WhoSharesAFailureDoesNotPayForIt) {
  Start();
  const std::vector<TestSystem> bad = {system_.Spoiled(1), system_.Spoiled(2)};
  PendingFactor holder = HoldDevice();
  PendingFactor first = Factor(bad, keyed_), second = Factor(bad, keyed_);
  clock_.Advance(absl::Seconds(3));
  gate_->Open();
  ASSERT_TRUE(first->Wait().ok());
  ASSERT_TRUE(second->Wait().ok());
  EXPECT_EQ(first->Wait()->cost.batch_requests, 1);
  EXPECT_EQ(second->Wait()->cost.batch_requests, 0);
  EXPECT_EQ(second->Wait()->cost.queue, absl::Seconds(3));
  for (const server::FactoredSystem& system : second->Wait()->systems) {
    EXPECT_TRUE(server::NotSpdOf(system.status).has_value());
  }
}

TEST_F(SolverCoreKeyWaitersTest, ARefusalOfTheFirstIsNotTheOthers) {
  // The first wants to keep its matrix, for which there is no room; the others do not.
  const TestSystem large(64, 16);
  Start();
  const int64_t charge = Charge(large.form.shape);
  Stop();
  Start({.memory_bytes = charge + charge / 2});
  FactorParams keeping = keyed_;
  keeping.keep_matrix = true;
  PendingFactor holder = HoldDevice();
  PendingFactor refused = Factor({large}, keeping);
  EXPECT_TRUE(absl::IsResourceExhausted(refused->Wait().status()));
  gate_->Open();
  PendingFactor second = Factor({large}, keyed_);
  ASSERT_TRUE(second->Wait().ok()) << second->Wait().status();
}

// Each of them takes over from the one before and is refused at once: not from within that one's
// answer, which would nest as deep as the line is long.
TEST_F(SolverCoreKeyWaitersTest, ALongLineOfLateComersEndsOneAfterAnother) {
  const TestSystem larger(12, 5);
  Start();
  const auto needs = [this](const MatrixForm& form) {
    return Charge(form.shape) + core_->Plan(form, 1, 1)->factor_workspace_bytes;
  };
  // The holders' solve still uses a factorization that is released.
  const int64_t room = needs(larger.form) + needs(TestSystem(3, 1).form) +
                       Charge(TestSystem(3, 1).form.shape) + MemoryPool::kAlignment * 2;
  Stop();
  Start({.memory_bytes = room, .limits = {.max_queued_requests = 30000}});
  FactorParams keeping = keyed_;
  keeping.keep_matrix = true;  // for which there is no room
  PendingFactor holder = HoldDevice();
  PendingFactor first = Factor({larger}, keyed_);
  std::vector<PendingFactor> calls;
  for (int i = 0; i < 20000; ++i) calls.push_back(Factor({larger}, keeping));
  EXPECT_FALSE(calls.back()->answered());
  core_->Cancel(*first->context);
  gate_->Open();
  EXPECT_TRUE(absl::IsCancelled(first->Wait().status()));
  for (PendingFactor& call : calls) {
    ASSERT_TRUE(absl::IsResourceExhausted(call->Wait().status())) << call->Wait().status();
  }
  PendingFactor last = Factor({larger}, keyed_);
  EXPECT_TRUE(last->Wait().ok()) << last->Wait().status();
}

TEST_F(SolverCoreKeyWaitersTest, AnUploadThatEndsWhileAnotherRunsFindsItsHandles) {
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

// The staged bytes of the upload are still there when its turn comes.
TEST_F(SolverCoreKeyWaitersTest, AnUploadTakesOverFromACancelledFirst) {
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
  core_->Cancel(*first->context);
  gate_->Open();
  EXPECT_TRUE(absl::IsCancelled(first->Wait().status()));
  ASSERT_TRUE(uploaded.Wait().ok()) << uploaded.Wait().status();
  EXPECT_FALSE(uploaded.Wait()->found);
  PendingSolve solve = Solve(uploaded.Wait()->systems[0].handle, system_.form.shape);
  ExpectSolves(system_, *solve);
}

}  // namespace
}  // namespace blockd::test
