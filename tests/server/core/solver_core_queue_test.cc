// The queue: full, deadlines, cancellation, delay, drain, health.
#include <thread>

#include "tests/server/core/core_fixture.h"

namespace blockd::test {
namespace {

using server::Handle;

class SolverCoreQueueTest : public CoreTest {
 protected:
  const TestSystem system_{6, 3};
  const Shape& shape() const { return system_.form.shape; }
};

TEST_F(SolverCoreQueueTest, AFullQueueIsUnavailableWithADelay) {
  Start({.limits = {.max_queued_requests = 2, .retry_delay = absl::Milliseconds(70)}});
  const Handle handle = Held(system_);
  PendingFactor holder = HoldDevice();
  PendingSolve first = Solve(handle, shape()), second = Solve(handle, shape());
  PendingSolve third = Solve(handle, shape());
  PendingFactor factor = Factor({system_});
  EXPECT_EQ(server::RetryAfterOf(third->Wait().status()), absl::Milliseconds(70));
  EXPECT_TRUE(absl::IsUnavailable(factor->Wait().status()));
  EXPECT_EQ(Metric("blockd_queue_requests{kind=\"solve\"}"), 2);
  gate_->Open();
  ExpectSolves(system_, *first);
  ExpectSolves(system_, *second);
}

TEST_F(SolverCoreQueueTest, CancelledRequestsMakeRoomInAFullQueue) {
  Start({.limits = {.max_queued_requests = 1}});
  const Handle handle = Held(system_);
  PendingFactor holder = HoldDevice();
  PendingSolve first = Solve(handle, shape());
  core_->Cancel(*first->context);
  EXPECT_TRUE(first->answered());  // before its turn comes
  PendingSolve second = Solve(handle, shape());
  EXPECT_TRUE(absl::IsCancelled(first->Wait().status()));
  gate_->Open();
  ExpectSolves(system_, *second);
}

TEST_F(SolverCoreQueueTest, ADeadlineEndsARequestInTheQueueWhileTheDeviceIsBusy) {
  Start();
  const Handle handle = Held(system_);
  PendingFactor holder = HoldDevice();
  const absl::Time deadline = clock_.Now() + absl::Seconds(1);
  PendingSolve late = Solve(handle, shape(), 1, {.deadline = deadline});
  PendingFactor later = Factor({system_}, {}, {.deadline = deadline + absl::Seconds(1)});
  PendingSolve patient = Solve(handle, shape());
  clock_.Advance(absl::Seconds(1));
  EXPECT_TRUE(absl::IsDeadlineExceeded(late->Wait().status()));
  EXPECT_FALSE(later->answered());
  clock_.Advance(absl::Seconds(1));
  EXPECT_TRUE(absl::IsDeadlineExceeded(later->Wait().status()));
  gate_->Open();
  ExpectSolves(system_, *patient);
}

// The lane refuses only work that the fastest pace of late would miss, however slow most were.
TEST_F(SolverCoreQueueTest, ADeadlineIsRefusedOnlyWhereTheFastestWouldMissIt) {
  Start({.solve_gate = true});
  const Handle handle = Held(system_);
  const double predicted = core_->Plan(system_.form, 1, 1)->solve_seconds;
  const auto solve_within = [&](double times) {
    solve_gate_->Close();
    PendingSolve solve = Solve(handle, shape());
    solve_gate_->WaitForDevice();
    clock_.Advance(times * absl::Seconds(predicted));
    solve_gate_->Open();
    ExpectSolves(system_, *solve);
  };
  solve_within(0.2);
  for (int i = 0; i < 20; ++i) solve_within(5);
  const auto status = [&](double times) {
    const absl::Time deadline = clock_.Now() + times * absl::Seconds(predicted);
    return Solve(handle, shape(), 1, {.deadline = deadline})->Wait().status();
  };
  EXPECT_TRUE(server::DeadlineUnreachableOf(status(0.5)).has_value());
  EXPECT_TRUE(status(1.5).ok());
}

// As one whose clock is set back while it waits.
TEST_F(SolverCoreQueueTest, WhoeverOversleptIsWoken) {
  const auto oversleep = [this] {
    clock_.JumpAtLook(1, absl::Seconds(2));
    clock_.Now();
    core_->shards().WakeOverdue();
  };
  Start({.limits = {.max_batch_delay = absl::Seconds(1)}});
  PendingFactor waits = Factor({system_});
  oversleep();
  EXPECT_TRUE(waits->Wait().ok());
  Stop();
  Start();
  const Handle handle = Held(system_);
  PendingFactor holder = HoldDevice();
  PendingSolve late = Solve(handle, shape(), 1, {.deadline = clock_.Now() + absl::Seconds(1)});
  oversleep();
  EXPECT_TRUE(absl::IsDeadlineExceeded(late->Wait().status()));
  gate_->Open();
}

TEST_F(SolverCoreQueueTest, ACancelledRequestDoesNotRun) {
  Start();
  const Handle handle = Held(system_);
  PendingFactor holder = HoldDevice();
  PendingSolve cancelled = Solve(handle, shape()), kept = Solve(handle, shape());
  PendingFactor factor = Factor({system_});
  PendingSolve both = FactorSolve(system_);
  for (const auto& context : {cancelled->context, factor->context, both->context}) {
    core_->Cancel(*context);
  }
  EXPECT_TRUE(cancelled->answered() && factor->answered() && both->answered());
  gate_->Open();
  EXPECT_TRUE(absl::IsCancelled(cancelled->Wait().status()));
  EXPECT_TRUE(absl::IsCancelled(factor->Wait().status()));
  EXPECT_TRUE(absl::IsCancelled(both->Wait().status()));
  ExpectSolves(system_, *kept);
  EXPECT_EQ(kept->Wait()->cost.batch_requests, 1);
}

TEST_F(SolverCoreQueueTest, ARequestThatIsOverAtItsArrivalIsNotAccepted) {
  Start();
  const Handle handle = Held(system_);
  const CallOptions late = {.deadline = clock_.Now()};
  EXPECT_TRUE(absl::IsDeadlineExceeded(Solve(handle, shape(), 1, late)->Wait().status()));
  EXPECT_TRUE(absl::IsDeadlineExceeded(Factor({system_}, {}, late)->Wait().status()));
  EXPECT_TRUE(absl::IsDeadlineExceeded(FactorSolve(system_, 1, late)->Wait().status()));
  Pending<server::FactorReply> gone;
  core_->Cancel(*gone.context);
  server::FactorParams params;
  params.form = system_.form;
  params.num_systems = 1;
  EXPECT_TRUE(absl::IsCancelled(core_->BeginUpload(gone.context, params, {}, {}).status()));
  core_->Factor(gone.context, params, {system_.view()}, gone.Callback());
  EXPECT_TRUE(absl::IsCancelled(gone.Wait().status()));
  Pending<Solved> solve;
  core_->Cancel(*solve.context);
  server::SolveParams no_data;
  no_data.handle = handle;
  core_->Solve(solve.context, no_data, solve.Callback());
  EXPECT_TRUE(absl::IsCancelled(solve.Wait().status()));
  EXPECT_EQ(core_->Get("alice", handle)->times_solved, 0);
}

TEST_F(SolverCoreQueueTest, AnUploadIsRefusedWhereTheQueueIsFull) {
  Start({.limits = {.max_queued_requests = 1}});
  PendingFactor holder = HoldDevice();
  PendingFactor queued = Factor({system_});
  server::FactorParams params;
  params.form = system_.form;
  params.num_systems = 1;
  const auto context = std::make_shared<server::RequestContext>();
  EXPECT_TRUE(absl::IsUnavailable(core_->BeginUpload(context, params, {}, {}).status()));
  EXPECT_TRUE(absl::IsUnavailable(FactorSolve(system_)->Wait().status()));
  gate_->Open();
  EXPECT_TRUE(queued->Wait().ok());
}

// It has its place in the queue from its beginning on.
TEST_F(SolverCoreQueueTest, AnUploadThatHasBegunIsNeverRefusedForAFullQueue) {
  Start({.limits = {.max_queued_requests = 2}});
  server::FactorParams params;
  params.form = system_.form;
  params.num_systems = 1;
  Pending<server::FactorReply> uploaded;
  auto begun = core_->BeginUpload(uploaded.context, params, {}, {});
  ASSERT_TRUE(begun.ok());
  auto upload = std::get<std::unique_ptr<server::FactorUpload>>(*std::move(begun));
  ASSERT_TRUE(upload->Write(system_.bytes()).ok());
  PendingFactor holder = HoldDevice();
  PendingFactor queued = Factor({system_});
  EXPECT_TRUE(absl::IsUnavailable(Factor({system_})->Wait().status()));
  core_->FinishUpload(std::move(upload), uploaded.Callback());
  EXPECT_FALSE(uploaded.answered());
  gate_->Open();
  EXPECT_TRUE(queued->Wait().ok());
  EXPECT_TRUE(uploaded.Wait().ok());
}

TEST_F(SolverCoreQueueTest, AFailedSolveIsNotCounted) {
  Start();
  const Handle handle = Held(system_);
  gate_->Close();
  PendingSolve running = Solve(handle, shape());
  gate_->WaitForDevice();
  core_->Cancel(*running->context);
  gate_->Open();
  EXPECT_TRUE(absl::IsCancelled(running->Wait().status()));
  EXPECT_EQ(core_->Get("alice", handle)->times_solved, 0);
  EXPECT_EQ(core_->Get("alice", handle)->rhs_solved, 0);
  EXPECT_EQ(core_->memory().evictable_bytes, Charge(shape()));
}

// Cancelled in the middle of a batch of its own: none of its systems is kept, since nobody would
// learn their handles.
TEST_F(SolverCoreQueueTest, ACancelledFactorKeepsNothing) {
  Start();
  gate_->Close();
  PendingFactor factor = Factor({system_, system_.Spoiled(1), system_});
  gate_->WaitForDevice();
  core_->Cancel(*factor->context);
  gate_->Open();
  EXPECT_TRUE(absl::IsCancelled(factor->Wait().status()));
  EXPECT_EQ(core_->memory().factorizations, 0);
  EXPECT_EQ(Reserved(), 0);
}

TEST_F(SolverCoreQueueTest, ADeadlineStopsWorkUnderWay) {
  Start();
  gate_->Close();
  PendingFactor factor = Factor({system_}, {}, {.deadline = clock_.Now() + absl::Seconds(1)});
  gate_->WaitForDevice();
  clock_.Advance(absl::Seconds(1));
  // The watch thread sets the flag that the solver looks at between two levels.
  RepeatUntil([&] { return factor->context->cancelled.load(); }, [] {});
  gate_->Open();
  EXPECT_TRUE(absl::IsDeadlineExceeded(factor->Wait().status())) << factor->Wait().status();
  EXPECT_EQ(Reserved(), 0);
}

TEST_F(SolverCoreQueueTest, ACancellationStopsWorkUnderWayAndHarmsNobody) {
  Start();
  const Handle handle = Held(system_);
  PendingFactor holder = HoldDevice();
  PendingSolve first = Solve(handle, shape()), second = Solve(handle, shape(), 4);
  gate_->Open();
  holder->Wait();
  first->Wait();
  second->Wait();
  gate_->Close();
  PendingSolve running = Solve(handle, shape());
  gate_->WaitForDevice();
  core_->Cancel(*running->context);
  gate_->Open();
  EXPECT_TRUE(absl::IsCancelled(running->Wait().status()));
  PendingSolve next = Solve(handle, shape());
  ExpectSolves(system_, *next);
}

// Where others have asked of late, a long Solve runs some columns at a time, with the bits that it
// has otherwise.
TEST_F(SolverCoreQueueTest, OthersGoBetweenThePartsOfALongSolve) {
  Start({.limits = {.max_shared_batch = absl::Nanoseconds(1)}, .solve_gate = true});
  constexpr int64_t kColumns = 64;
  const TestSystem system(200, 16);  // of which so many columns take much longer than one
  const Shape& shape = system.form.shape;
  const Handle handle = Held(system);
  PendingFactor factor = Factor({system}, {}, {.caller = "bob"});
  const Handle bobs = factor->Wait()->systems[0].handle;
  const CallOptions as_bob = {.caller = "bob"}, alike = {.rhs_seed = 7};
  PendingSolve alone = Solve(handle, shape, kColumns, alike);
  ExpectSolves(system, *alone);
  Solve(bobs, shape, 1, as_bob)->Wait();
  solve_gate_->Close();
  PendingSolve large = Solve(handle, shape, kColumns, alike);
  solve_gate_->WaitForDevice();
  PendingSolve small = Solve(bobs, shape, 1, as_bob);
  std::string order;
  large->at_answer = [&] { order += "large "; };
  small->at_answer = [&] { order += "small "; };
  solve_gate_->Open();
  ExpectSolves(system, *large);
  ExpectSolves(system, *small);
  EXPECT_EQ(order, "small large ");
  EXPECT_EQ(large->solution, alone->solution);
  EXPECT_EQ(large->Wait()->cost.batch_items, kColumns);
  EXPECT_EQ(core_->Get("alice", handle)->times_solved, 2);

  solve_gate_->Close();
  PendingSolve gone = Solve(handle, shape, kColumns);
  solve_gate_->WaitForDevice();
  core_->Cancel(*gone->context);
  solve_gate_->Open();
  EXPECT_TRUE(absl::IsCancelled(gone->Wait().status()));
}

TEST_F(SolverCoreQueueTest, ABatchWaitsForCompanyUntilTheDelayIsOver) {
  Start({.limits = {.max_batch_delay = absl::Milliseconds(5)}});
  PendingFactor factor = Factor({system_});
  EXPECT_FALSE(factor->answered());
  const auto advance = [this] { clock_.Advance(absl::Milliseconds(5)); };
  RepeatUntil([&] { return factor->answered(); }, advance);
  ASSERT_TRUE(factor->Wait().ok());
  const Handle handle = factor->Wait()->systems[0].handle;
  PendingSolve first = Solve(handle, shape()), second = Solve(handle, shape(), 3);
  RepeatUntil([&] { return second->answered(); }, advance);
  ExpectSolves(system_, *first);
  ExpectSolves(system_, *second);
  EXPECT_EQ(first->Wait()->cost.batch_requests, 2);
  EXPECT_EQ(second->Wait()->cost.batch_items, 4);
}

TEST_F(SolverCoreQueueTest, ABatchThatIsFullDoesNotWait) {
  Start({.limits = {.max_batch_requests = 2, .max_batch_delay = absl::Hours(1)}});
  PendingFactor first = Factor({system_}), second = Factor({system_});
  EXPECT_TRUE(first->Wait().ok());
  EXPECT_TRUE(second->Wait().ok());
}

TEST_F(SolverCoreQueueTest, ADrainFinishesWhatWasAcceptedAndRefusesTheRest) {
  Start({.limits = {.max_batch_delay = absl::Hours(1)}});
  PendingFactor queued = Factor({system_});  // waits for company that does not come
  core_->Drain();
  EXPECT_TRUE(queued->answered());
  ASSERT_TRUE(queued->Wait().ok());
  const Handle handle = queued->Wait()->systems[0].handle;
  EXPECT_TRUE(server::RetryAfterOf(SolveStatus(handle, shape())).has_value());
  EXPECT_TRUE(server::RetryAfterOf(Factor({system_})->Wait().status()).has_value());
  EXPECT_TRUE(server::RetryAfterOf(FactorSolve(system_)->Wait().status()).has_value());
  EXPECT_TRUE(core_->Release("alice", {&handle, 1}).ok());
}

TEST_F(SolverCoreQueueTest, ADrainWaitsForUploads) {
  Start();
  server::FactorParams params;
  params.form = system_.form;
  params.num_systems = 1;
  Pending<server::FactorReply> uploaded;
  auto begun = core_->BeginUpload(uploaded.context, params, {}, {});
  ASSERT_TRUE(begun.ok());
  auto upload = std::get<std::unique_ptr<server::FactorUpload>>(*std::move(begun));
  absl::Notification drained;
  std::thread drain([this, &drained] {
    core_->Drain();
    drained.Notify();
  });
  // Refused from the moment when the drain has begun.
  RepeatUntil([&] { return absl::IsUnavailable(FactorSolve(system_)->Wait().status()); }, [] {});
  EXPECT_FALSE(drained.HasBeenNotified());
  ASSERT_TRUE(upload->Write(system_.bytes()).ok());
  core_->FinishUpload(std::move(upload), uploaded.Callback());
  EXPECT_TRUE(uploaded.Wait().ok());
  drain.join();
}

}  // namespace
}  // namespace blockd::test
