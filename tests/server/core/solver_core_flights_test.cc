// Batches in flight: given to the device, and not done yet.
#include <limits>
#include <thread>
#include <vector>

#include "server/core/shard/lane.h"
#include "tests/server/core/core_fixture.h"
#include "tests/support/eventually.h"

namespace blockd::test {
namespace {

using server::Handle;

class SolverCoreFlightsTest : public CoreTest {
 protected:
  // With handles that stay, and what is given to the device from now on in flight.
  void StartFlying(Setup setup = {}) {
    setup.flies = true;
    Start(setup);
    for (int i = 0; i < kHandles; ++i) {
      systems_.push_back(TestSystem(6, 3, i));
      handles_.push_back(Held(systems_.back(), Pinned()));
    }
    landing_->Close();
  }
  static server::FactorParams Pinned() {
    server::FactorParams params;
    params.pin = true;
    return params;
  }
  PendingSolve SolveWith(int i, int64_t num_rhs = 1) {
    return Solve(handles_[i], shape(), num_rhs);
  }
  // Until so many requests wait for the device.
  void AwaitQueue(double requests) {
    RepeatUntil([&] { return Metric("blockd_queue_requests{kind=\"solve\"}") == requests; }, [] {});
  }
  const Shape& shape() const { return systems_[0].form.shape; }

  static constexpr int kHandles = 6;
  std::vector<TestSystem> systems_;
  std::vector<Handle> handles_;
};

TEST_F(SolverCoreFlightsTest, ASecondBatchIsGivenWhileTheFirstIsInFlight) {
  StartFlying();
  PendingSolve first = SolveWith(0);
  landing_->WaitForDevice();
  PendingSolve second = SolveWith(1);
  AwaitQueue(0);
  EXPECT_FALSE(first->answered());
  EXPECT_FALSE(second->answered());
  landing_->Open();
  ExpectSolves(systems_[0], *first);
  ExpectSolves(systems_[1], *second);
  EXPECT_EQ(first->Wait()->cost.batch_requests, 1);
  EXPECT_EQ(second->Wait()->cost.batch_requests, 1);
}

TEST_F(SolverCoreFlightsTest, WorkIsFoundByAThreadThatLooksAndByOneThatSleeps) {
  StartFlying({.limits = {.poll = absl::Seconds(1)}});
  landing_->Open();
  for (int i = 0; i < kHandles; ++i) {
    ExpectSolves(systems_[i], *SolveWith(i));  // the time stands still: it goes on looking
    if (i % 2 == 1) clock_.Advance(absl::Seconds(2));
  }
}

TEST_F(SolverCoreFlightsTest, TheDeviceKnowsHowManySolvesAreQueuedOrRun) {
  StartFlying();
  EXPECT_EQ(gate_->pending_solves(), 0);
  PendingSolve first = SolveWith(0);
  landing_->WaitForDevice();
  PendingSolve second = SolveWith(1);
  EXPECT_EQ(gate_->pending_solves(), 2);
  landing_->Open();
  ExpectSolves(systems_[0], *first);
  ExpectSolves(systems_[1], *second);
  EXPECT_TRUE(Eventually([&] { return gate_->pending_solves() == 0; }));
}

class InlineTest : public CoreTest {
 protected:
  void StartInline(absl::Duration limit, absl::Duration delay = absl::ZeroDuration()) {
    Start({.limits = {.max_batch_delay = delay, .max_inline_solve = limit}});
    server::FactorParams params;
    params.pin = true;
    const PendingFactor factor = Factor({system_}, params);
    clock_.Advance(delay);
    ASSERT_TRUE(factor->Wait().ok());
    handle_ = factor->Wait()->systems[0].handle;
  }
  PendingSolve SolveOne() { return Solve(handle_, system_.form.shape, 1); }
  PendingSolve SolveHere() { return Solve(handle_, system_.form.shape, 1, {.may_run_here = true}); }
  // True if a Solve that is asked for now is answered before the call returns.
  bool IsInline() {
    const PendingSolve solve = SolveHere();
    const bool answered = solve->answered();
    clock_.Advance(absl::Milliseconds(1));
    ExpectSolves(system_, *solve);
    return answered;
  }

  // Once the lane has noticed that it has nothing to do.
  bool IsInlineSoon() {
    return Eventually([this] { return IsInline(); });
  }

  const TestSystem system_{6, 3};
  Handle handle_;
};

TEST_F(InlineTest, AShortSolveIsDoneByWhoBringsItAndHasNothingElseToDo) {
  StartInline(absl::Milliseconds(1));
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(IsInlineSoon());
  // Solves that follow without a pause run in a batch.
  gate_->Close();
  std::thread first([this] { ExpectSolves(system_, *SolveHere()); });
  gate_->WaitForDevice();
  const PendingSolve second = SolveHere(), third = SolveOne();  // behind the first
  EXPECT_FALSE(second->answered());
  EXPECT_FALSE(third->answered());
  gate_->Open();
  first.join();
  ExpectSolves(system_, *second);
  ExpectSolves(system_, *third);
  EXPECT_EQ(third->Wait()->cost.batch_requests, 2);
  EXPECT_TRUE(IsInlineSoon());
}

TEST_F(InlineTest, AShortFactorToo) {
  StartInline(absl::Milliseconds(1));
  EXPECT_TRUE(Eventually([&] {
    const PendingFactor factor = Factor({system_}, {}, {.may_run_here = true});
    const bool answered = factor->answered();
    EXPECT_TRUE(factor->Wait().ok());
    return answered;
  }));
}

TEST_F(InlineTest, ALongOneIsNot) {
  StartInline(absl::Nanoseconds(1));
  gate_->Close();
  const PendingSolve solve = SolveHere();
  gate_->WaitForDevice();
  gate_->Open();
  ExpectSolves(system_, *solve);
}

TEST_F(InlineTest, NorOneThatWaitsForCompany) {
  StartInline(absl::Milliseconds(1), absl::Milliseconds(1));
  EXPECT_FALSE(IsInline());
}

TEST_F(SolverCoreFlightsTest, AtMostThreeFly) {
  StartFlying();
  std::vector<PendingSolve> solves;
  const auto add = [&](int count) {
    for (; count > 0; --count) solves.push_back(SolveWith(std::ssize(solves) % kHandles));
  };
  for (const int count : {1, 1, 2}) {  // as many as fly already
    add(count);
    AwaitQueue(0);
  }
  add(4);
  landing_->WaitForDevice();
  EXPECT_EQ(Metric("blockd_queue_requests{kind=\"solve\"}"), 4);
  landing_->Open();
  for (int i = 0; i < 8; ++i) ExpectSolves(systems_[i % kHandles], *solves[i]);
  EXPECT_EQ(solves[7]->Wait()->cost.batch_requests, 4);  // those that waited went together
}

TEST_F(SolverCoreFlightsTest, LittleWaitsForCompanyBehindALargeBatch) {
  StartFlying({.solve_gate = true});
  solve_gate_->Close();
  PendingSolve holder = SolveWith(0);
  solve_gate_->WaitForDevice();
  std::vector<PendingSolve> large;
  for (int i = 1; i < kHandles; ++i) large.push_back(SolveWith(i));
  solve_gate_->Open();  // the large batch flies behind the holder
  AwaitQueue(0);
  std::vector<PendingSolve> little;
  for (int i = 0; i < 5; ++i) little.push_back(SolveWith(i));
  landing_->WaitForDevice();
  EXPECT_EQ(Metric("blockd_queue_requests{kind=\"solve\"}"), 5);
  little.push_back(SolveWith(5));
  AwaitQueue(0);  // six, as many as fly
  landing_->Open();
  EXPECT_EQ(little[0]->Wait()->cost.batch_requests, 6);
  for (int i = 0; i < 6; ++i) ExpectSolves(systems_[i], *little[i]);
  EXPECT_EQ(large[0]->Wait()->cost.batch_requests, 5);
}

TEST_F(SolverCoreFlightsTest, AreAnsweredInOrderByAnotherThreadThanFeeds) {
  StartFlying();
  std::vector<int> order;
  std::vector<PendingSolve> solves;
  for (int i = 0; i < 2; ++i) {
    solves.push_back(SolveWith(i));
    solves.back()->at_answer = [&order, i] { order.push_back(i); };
    AwaitQueue(0);
  }
  landing_->Open();
  for (PendingSolve& solve : solves) solve->Wait();
  EXPECT_EQ(order, (std::vector<int>{0, 1}));
  EXPECT_EQ(solves[0]->thread, solves[1]->thread);
}

TEST_F(SolverCoreFlightsTest, ACancelledFlightIsAnsweredOnceItHasLanded) {
  StartFlying();
  PendingSolve cancelled = SolveWith(0);
  landing_->WaitForDevice();
  PendingSolve kept = SolveWith(1);
  core_->Cancel(*cancelled->context);
  EXPECT_FALSE(cancelled->answered());  // the device may still write to its solution
  landing_->Open();
  EXPECT_TRUE(absl::IsCancelled(cancelled->Wait().status()));
  ExpectSolves(systems_[1], *kept);
}

TEST_F(SolverCoreFlightsTest, ADeadlineThatPassesInFlightIsSaid) {
  StartFlying();
  PendingSolve late = Solve(handles_[0], shape(), 1, {.deadline = clock_.Now() + absl::Seconds(1)});
  landing_->WaitForDevice();
  clock_.Advance(absl::Seconds(1));
  RepeatUntil([&] { return late->context->cancelled.load(); }, [] {});
  landing_->Open();
  EXPECT_TRUE(absl::IsDeadlineExceeded(late->Wait().status()));
}

TEST_F(SolverCoreFlightsTest, AHandleMayBeReleasedWhileItsSolveFlies) {
  StartFlying();
  PendingSolve solve = SolveWith(0);
  landing_->WaitForDevice();
  EXPECT_TRUE(core_->Release("alice", {{handles_[0]}}).ok());
  // Its memory is nobody else's yet.
  const Handle other = Held(TestSystem(6, 3, 77));
  landing_->Open();
  ExpectSolves(systems_[0], *solve);
  EXPECT_TRUE(SolveStatus(other, shape()).ok());
}

// The reserve has room for one flight of this size at a time, and the memory for none.
TEST_F(SolverCoreFlightsTest, WhoFindsNoWorkspaceWaitsForThoseInFlight) {
  constexpr int64_t kColumns = 8;
  StartFlying({.memory_bytes = int64_t{1} << 20, .solve_reserve_bytes = 4096});
  for (int i = 100;; ++i) {  // until the memory is full of what stays
    PendingFactor factor = Factor({TestSystem(6, 3, i)}, Pinned());
    if (!factor->Wait().ok()) break;
  }
  PendingSolve first = SolveWith(0, kColumns);
  landing_->WaitForDevice();
  PendingSolve second = SolveWith(1, kColumns), third = SolveWith(2, kColumns);
  landing_->Open();
  ExpectSolves(systems_[0], *first);
  ExpectSolves(systems_[1], *second);
  ExpectSolves(systems_[2], *third);
}

// The memory has room for all of it, but in pieces of which none is large enough for one of them.
TEST_F(SolverCoreFlightsTest, ABatchOfWhichAPartFindsNoRoomIsAnswered) {
  StartFlying({.memory_bytes = int64_t{1} << 20, .solve_reserve_bytes = 1024});
  std::vector<Handle> filling;
  while (true) {
    PendingFactor factor = Factor({TestSystem(16, 8)}, Pinned());
    if (!factor->Wait().ok()) break;
    filling.push_back(factor->Wait()->systems[0].handle);
  }
  for (size_t i = 0; i < filling.size(); i += 2) {
    ASSERT_TRUE(core_->Release("alice", {&filling[i], 1}).ok());
  }
  const int64_t column = shape().rows() * 8;
  const int64_t columns = core_->memory().pool.largest_free_bytes / column + 10;
  ASSERT_GT(core_->memory().free_bytes, 2 * columns * column);
  std::vector<PendingSolve> solves;
  for (int i = 0; i < 2; ++i) {  // behind which two are one batch
    solves.push_back(SolveWith(i));
    AwaitQueue(0);
  }
  solves.push_back(SolveWith(2, columns));
  solves.push_back(SolveWith(3));
  landing_->WaitForDevice();
  landing_->Open();
  for (int i = 0; i < 4; ++i) ExpectSolves(systems_[i], *solves[i]);
}

TEST_F(SolverCoreFlightsTest, AFailureInFlightFailsAllOfIt) {
  StartFlying();
  healthy_ = false;
  PendingSolve first = SolveWith(0);
  landing_->WaitForDevice();
  PendingSolve second = SolveWith(1);
  AwaitQueue(0);
  gate_->FailAfter(0);
  landing_->Open();
  EXPECT_TRUE(absl::IsInternal(first->Wait().status())) << first->Wait().status();
  EXPECT_TRUE(absl::IsInternal(second->Wait().status()));
  EXPECT_FALSE(core_->healthy());
  gate_->FailAfter(std::numeric_limits<int64_t>::max());
}

TEST_F(SolverCoreFlightsTest, ADrainWaitsForWhatFlies) {
  StartFlying();
  PendingSolve solve = SolveWith(0);
  landing_->WaitForDevice();
  std::thread drain([this] { core_->Drain(); });
  std::vector<PendingSolve> later;  // refused at once from when the drain has begun
  RepeatUntil([&] { return !later.empty() && later.back()->answered(); },
              [&] { later.push_back(SolveWith(1)); });
  EXPECT_TRUE(absl::IsUnavailable(later.back()->Wait().status()));
  EXPECT_FALSE(solve->answered());
  landing_->Open();
  drain.join();
  EXPECT_TRUE(solve->answered());
}

// Refinement looks at residuals in between, so nothing of such a batch is in flight when it
// returns.
TEST_F(SolverCoreFlightsTest, SolvesThatMeasureFlyToo) {
  StartFlying();
  landing_->Open();
  const TestSystem system(6, 3, 50);
  server::FactorParams keeping;
  keeping.keep_matrix = true;
  const Handle handle = Held(system, keeping);
  PendingSolve measured = Solve(handle, shape(), 2, {}, /*residual=*/true, /*refinements=*/2);
  ExpectSolves(system, *measured);
  EXPECT_TRUE(measured->Wait()->backward_error.has_value());
}

}  // namespace
}  // namespace blockd::test
