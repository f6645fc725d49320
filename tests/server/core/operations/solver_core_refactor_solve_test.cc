// FactorSolve with a handle: new values and a solution in one request. And many of them in one.
#include <cmath>
#include <thread>

#include "tests/server/core/core_fixture.h"

namespace blockd::test {
namespace {

using server::FactorParams;
using server::FactorSolveOptions;
using server::FactorSolveReply;
using server::Handle;
using server::NotFoundReason;

class SolverCoreRefactorSolveTest : public CoreTest {
 protected:
  PendingSolve Step(const Handle& handle, const TestSystem& system,
                    const FactorSolveOptions& options = {}, const CallOptions& call = {}) {
    auto pending = std::make_unique<Pending<Solved>>();
    pending->context->caller = call.caller;
    pending->context->deadline = call.deadline;
    pending->rhs = TestRhs(system.form.shape, 1, call.rhs_seed < 0 ? ++seed_ : call.rhs_seed);
    pending->solution.assign(pending->rhs.size(), 0);
    kept_.push_back(std::make_unique<TestSystem>(system));
    OneFactorSolve params;
    static_cast<FactorSolveOptions&>(params) = options;
    params.handle = handle;
    params.matrix = kept_.back()->view();
    params.num_rhs = 1;
    params.rhs = std::as_bytes(std::span(pending->rhs));
    params.solution = std::as_writable_bytes(std::span(pending->solution));
    AskOne(*core_, pending->context, params, pending->Callback());
    return pending;
  }

  // The right-hand sides of all systems, one after another.
  std::unique_ptr<Pending<FactorSolveReply>> StepMany(const std::vector<Handle>& handles,
                                                      const std::vector<TestSystem>& systems,
                                                      const FactorSolveOptions& options = {}) {
    auto pending = std::make_unique<Pending<FactorSolveReply>>();
    pending->context->caller = "alice";
    server::FactorSolveParams params;
    static_cast<FactorSolveOptions&>(params) = options;
    params.handles = handles;
    if (!systems.empty()) params.form = systems[0].form;
    for (size_t i = 0; i < systems.size(); ++i) {
      const std::vector<double> rhs = TestRhs(shape(), 1, static_cast<int>(i));
      pending->rhs.insert(pending->rhs.end(), rhs.begin(), rhs.end());
      kept_.push_back(std::make_unique<TestSystem>(systems[i]));
      params.matrices.push_back(kept_.back()->view());
    }
    pending->solution.assign(pending->rhs.size(), 0);
    const size_t rows = static_cast<size_t>(shape().rows());
    for (size_t i = 0; i < systems.size(); ++i) {
      params.solves.push_back(
          {1, std::as_bytes(std::span(pending->rhs).subspan(i * rows, rows)),
           std::as_writable_bytes(std::span(pending->solution).subspan(i * rows, rows))});
    }
    core_->FactorSolve(pending->context, std::move(params), pending->Callback());
    return pending;
  }
  std::vector<double> SolutionOf(const Pending<FactorSolveReply>& many, size_t system) const {
    const auto rows = static_cast<std::ptrdiff_t>(shape().rows());
    const auto begin = many.solution.begin() + static_cast<std::ptrdiff_t>(system) * rows;
    return {begin, begin + rows};
  }

  // Checks that a Solve with the handle now uses `system`.
  void ExpectHolds(const Handle& handle, const TestSystem& system) {
    PendingSolve solve = Solve(handle, system.form.shape);
    ExpectSolves(system, *solve);
  }
  std::vector<double> Solution(const Handle& handle, int seed) {
    PendingSolve solve = Solve(handle, shape(), 1, {.rhs_seed = seed});
    EXPECT_TRUE(solve->Wait().ok());
    return solve->solution;
  }
  const Shape& shape() const { return before_.form.shape; }

  const TestSystem before_{24, 5, 1}, after_{24, 5, 2}, third_{24, 5, 3};

 private:
  int seed_ = 100;
};

TEST_F(SolverCoreRefactorSolveTest, HasTheBitsOfARefactorAndASolve) {
  for (const bool overwrite : {false, true}) {
    Start();
    const Handle fused = Held(before_), apart = Held(before_);
    PendingSolve step = Step(fused, after_, {.overwrite = overwrite}, {.rhs_seed = 7});
    ExpectSolves(after_, *step);
    FactorParams params;
    params.handles = {apart};
    Held(after_, params);
    EXPECT_EQ(step->solution, Solution(apart, 7));
    EXPECT_EQ(Solution(fused, 8), Solution(apart, 8));
    EXPECT_EQ(step->Wait()->growth, core_->Get("alice", apart)->conditioning.growth);
    EXPECT_EQ(core_->Get("alice", fused)->times_refactored, 1);
    EXPECT_EQ(core_->Get("alice", fused)->times_solved, 2);
    EXPECT_EQ(Metric("blockd_factorizations"), 2);
    Stop();  // what is reserved is what is held
  }
}

TEST_F(SolverCoreRefactorSolveTest, ThoseOfManyCallersAreOneBatch) {
  Start();
  std::vector<Handle> handles;
  for (int i = 0; i < 6; ++i) handles.push_back(Held(before_));
  PendingFactor holder = HoldDevice();
  const int64_t batches = gate_->factorizations();
  std::vector<PendingSolve> steps;
  for (const Handle& handle : handles) {
    steps.push_back(Step(handle, TestSystem(24, 5, static_cast<int>(10 + steps.size()))));
  }
  PendingSolve keeps_nothing = FactorSolve(third_);
  gate_->Open();
  for (size_t i = 0; i < steps.size(); ++i) {
    const TestSystem system(24, 5, static_cast<int>(10 + i));
    ExpectSolves(system, *steps[i]);
    EXPECT_EQ(steps[i]->Wait()->cost.batch_requests, 7);
    ExpectHolds(handles[i], system);
  }
  ExpectSolves(third_, *keeps_nothing);
  EXPECT_EQ(gate_->factorizations(), batches + 1);
}

TEST_F(SolverCoreRefactorSolveTest, AFailureAmongGoodOnesHarmsItsOwnHandleAtMost) {
  for (const bool overwrite : {false, true}) {
    Start();
    const Handle first = Held(before_), bad = Held(before_), last = Held(before_);
    PendingFactor holder = HoldDevice();
    PendingSolve a = Step(first, after_, {.overwrite = overwrite});
    PendingSolve b = Step(bad, after_.Spoiled(9), {.overwrite = overwrite});
    PendingSolve c = Step(last, third_, {.overwrite = overwrite});
    gate_->Open();
    ExpectSolves(after_, *a);
    ExpectSolves(third_, *c);
    const auto detail = server::NotSpdOf(b->Wait().status());
    ASSERT_TRUE(detail.has_value()) << b->Wait().status();
    EXPECT_EQ(detail->where.block, 9);
    ExpectHolds(first, after_);
    ExpectHolds(last, third_);
    if (overwrite) {
      EXPECT_EQ(ReasonOf(SolveStatus(bad, shape())), NotFoundReason::kFailedRefactor);
    } else {
      ExpectHolds(bad, before_);
      EXPECT_EQ(core_->Get("alice", bad)->times_refactored, 0);
    }
    Stop();
  }
}

TEST_F(SolverCoreRefactorSolveTest, RefusesHandlesThatItCannotRefactor) {
  Start();
  const Handle handle = Held(before_);
  EXPECT_EQ(FieldOf(Step(handle, TestSystem(23, 5))->Wait().status()), "spec");
  EXPECT_EQ(ReasonOf(Step(handle, after_, {}, {.caller = "bob"})->Wait().status()),
            NotFoundReason::kNeverExisted);
  ExpectHolds(handle, before_);
  ASSERT_TRUE(core_->Release("alice", {&handle, 1}).ok());
  EXPECT_EQ(ReasonOf(Step(handle, after_)->Wait().status()), NotFoundReason::kReleased);
  EXPECT_EQ(Reserved(), 0);
}

TEST_F(SolverCoreRefactorSolveTest, SaysThatTheHandleHasEndedMeanwhile) {
  for (const bool overwrite : {false, true}) {
    for (const bool evicted : {false, true}) {
      Start();
      const Handle handle = Held(before_);
      PendingFactor holder = HoldDevice();
      PendingSolve step = Step(handle, after_, {.overwrite = overwrite});
      if (evicted) {
        std::vector<Handle> missing;
        core_->shards().EvictHandles({&handle, 1}, &missing);
      } else {
        ASSERT_TRUE(core_->Release("alice", {&handle, 1}).ok());
      }
      gate_->Open();
      EXPECT_EQ(ReasonOf(step->Wait().status()),
                evicted ? NotFoundReason::kEvicted : NotFoundReason::kReleased);
      EXPECT_EQ(core_->memory().factorizations, 1);  // the holder's
      Stop();
    }
  }
}

TEST_F(SolverCoreRefactorSolveTest, TwoOnOneHandleEachGetTheirOwnSolution) {
  for (const bool overwrite : {false, true}) {
    Start();
    const Handle handle = Held(before_);
    PendingFactor holder = HoldDevice();
    PendingSolve first = Step(handle, after_, {.overwrite = overwrite});
    PendingSolve second = Step(handle, third_, {.overwrite = overwrite});
    gate_->Open();
    ExpectSolves(after_, *first);
    ExpectSolves(third_, *second);
    EXPECT_EQ(second->Wait()->cost.batch_requests, 2);
    ExpectHolds(handle, third_);
    EXPECT_EQ(core_->Get("alice", handle)->times_refactored, 2);
    Stop();
  }
}

TEST_F(SolverCoreRefactorSolveTest, KeepsItsMatrixOnlyIfAskedTo) {
  Start();
  const Handle handle = Held(before_);
  const int64_t factor = Reserved();
  const int64_t matrix = MemoryPool::Rounded(StagedMatrix::BufferBytes(before_.form));
  // It was at hand for the residual.
  PendingSolve measured = Step(handle, after_, {.residual = true, .max_refinements = 1});
  ASSERT_TRUE(measured->Wait().ok()) << measured->Wait().status();
  EXPECT_LT(measured->Wait()->backward_error.value_or(1), 1e-14);
  EXPECT_FALSE(measured->Wait()->matrix_kept);
  EXPECT_FALSE(core_->Get("alice", handle)->matrix_kept);
  EXPECT_EQ(Reserved(), factor);
  PendingSolve keeping = Step(handle, third_, {.keep_matrix = true});
  ASSERT_TRUE(keeping->Wait().ok());
  EXPECT_TRUE(keeping->Wait()->matrix_kept);
  EXPECT_TRUE(core_->Get("alice", handle)->matrix_kept);
  EXPECT_EQ(Reserved(), factor + matrix);
  PendingSolve residual = Solve(handle, shape(), 2, {}, /*residual=*/true);
  ExpectSolves(third_, *residual);
  ASSERT_TRUE(Step(handle, before_, {.overwrite = true})->Wait().ok());
  EXPECT_FALSE(core_->Get("alice", handle)->matrix_kept);
  EXPECT_EQ(Reserved(), factor);
}

TEST_F(SolverCoreRefactorSolveTest, LeaseAndPinStay) {
  Start();
  FactorParams leased;
  leased.lease = absl::Minutes(1);
  leased.pin = true;
  const Handle handle = Held(before_, leased);
  clock_.Advance(absl::Seconds(30));
  ASSERT_TRUE(Step(handle, after_)->Wait().ok());
  EXPECT_TRUE(core_->Get("alice", handle)->pinned);
  EXPECT_EQ(core_->Get("alice", handle)->lease_left, absl::Minutes(1));
}

TEST_F(SolverCoreRefactorSolveTest, AnOverwriteHoldsOneFactorOnly) {
  const TestSystem before(64, 16, 0), after(64, 16, 50);
  Start();
  const int64_t charge = Charge(before.form.shape);
  Stop();
  Start({.memory_bytes = charge + charge / 2, .limits = {}});
  const Handle handle = Held(before);
  EXPECT_TRUE(absl::IsResourceExhausted(Step(handle, after)->Wait().status()));
  ExpectHolds(handle, before);
  PendingSolve step = Step(handle, after, {.overwrite = true});
  ExpectSolves(after, *step);
  ExpectHolds(handle, after);
}

TEST_F(SolverCoreRefactorSolveTest, LooksForNanBeforeAnythingChanges) {
  Start();
  const Handle handle = Held(before_);
  TestSystem bad = after_;
  bad.coupling[7] = std::nan("");
  const FactorSolveOptions options = {.overwrite = true, .check_finite = true};
  EXPECT_EQ(FieldOf(Step(handle, bad, options)->Wait().status()), "system[0].coupling");
  ExpectHolds(handle, before_);
}

// Between any two steps of the device: the handle is what it was.
TEST_F(SolverCoreRefactorSolveTest, EndedAtAnyMomentItLeavesTheOldFactors) {
  Start();
  const Handle whole = Held(before_);
  const int64_t passed = gate_->passes();
  ASSERT_TRUE(Step(whole, after_)->Wait().ok());
  const int64_t passes = gate_->passes() - passed;
  ASSERT_GE(passes, 2);  // of the factorization, and of the solve
  Stop();
  for (int64_t at = 0; at < passes; ++at) {
    for (const bool late : {false, true}) {
      SCOPED_TRACE(testing::Message() << "step " << at << (late ? ", late" : ", cancelled"));
      Start();
      const Handle handle = Held(before_);
      gate_->CloseAfter(at);
      PendingSolve step = Step(handle, after_, {}, {.deadline = clock_.Now() + absl::Seconds(10)});
      gate_->WaitForDevice();
      if (late) {
        clock_.Advance(absl::Seconds(11));
        RepeatUntil([&] { return step->context->cancelled.load(); }, [] {});
      } else {
        core_->Cancel(*step->context);
      }
      gate_->Open();
      EXPECT_EQ(step->Wait().status().code(),
                late ? absl::StatusCode::kDeadlineExceeded : absl::StatusCode::kCancelled);
      ExpectHolds(handle, before_);
      EXPECT_EQ(core_->Get("alice", handle)->times_refactored, 0);
      Stop();
    }
  }
}

TEST_F(SolverCoreRefactorSolveTest, WhatWaitsWhenTheServerDrainsIsDone) {
  Start();
  const Handle handle = Held(before_);
  PendingFactor holder = HoldDevice();
  PendingSolve step = Step(handle, after_);
  std::thread drain([this] { core_->Drain(); });
  std::vector<PendingSolve> later;  // those that come before it wait too
  RepeatUntil([&] { return !later.empty() && later.back()->answered(); },
              [&] { later.push_back(Step(handle, third_)); });
  EXPECT_TRUE(absl::IsUnavailable(later.back()->Wait().status()));
  gate_->Open();
  drain.join();
  ExpectSolves(after_, *step);
}

// ---------------------------------------------------------------------------------------- many

TEST_F(SolverCoreRefactorSolveTest, ManyHaveTheBitsOfARefactorOfAllAndASolveOfEach) {
  Start();
  const std::vector<TestSystem> systems = {after_, third_, before_, after_};
  std::vector<Handle> fused, apart;
  for (size_t i = 0; i < systems.size(); ++i) {
    fused.push_back(Held(before_));
    apart.push_back(Held(before_));
  }
  const int64_t batches = gate_->factorizations();
  const auto many = StepMany(fused, systems, {.residual = true, .log_determinant = true});
  ASSERT_TRUE(many->Wait().ok()) << many->Wait().status();
  EXPECT_EQ(gate_->factorizations(), batches + 1);
  FactorParams params;
  params.handles = apart;
  ASSERT_TRUE(Factor(systems, params)->Wait().ok());
  const FactorSolveReply& reply = *many->Wait();
  EXPECT_EQ(reply.cost.batch_requests, 4);
  EXPECT_EQ(reply.cost.batch_items, 4);
  for (size_t i = 0; i < systems.size(); ++i) {
    ASSERT_TRUE(reply.systems[i].solve.status.ok()) << reply.systems[i].solve.status;
    EXPECT_EQ(SolutionOf(*many, i), Solution(apart[i], static_cast<int>(i)));
    EXPECT_EQ(Solution(fused[i], 50), Solution(apart[i], 50));
    EXPECT_LT(reply.systems[i].solve.backward_error.value_or(1), 1e-14);
    EXPECT_NEAR(reply.systems[i].log_determinant.value_or(0), systems[i].LogDeterminant(), 1e-9);
    EXPECT_EQ(reply.systems[i].growth, core_->Get("alice", apart[i])->conditioning.growth);
    EXPECT_EQ(core_->Get("alice", fused[i])->times_refactored, 1);
  }
}

TEST_F(SolverCoreRefactorSolveTest, OfManyEachFailsByItself) {
  Start();
  const TestSystem other(8, 5);
  const Handle good = Held(before_), spoiled = Held(before_), gone = Held(before_),
               odd = Held(other), nan = Held(before_), last = Held(before_);
  ASSERT_TRUE(core_->Release("alice", {&gone, 1}).ok());
  TestSystem bad = after_;
  bad.diagonal[0] = std::nan("");
  const auto many =
      StepMany({good, spoiled, gone, odd, nan, last},
               {after_, after_.Spoiled(4), after_, after_, bad, third_}, {.check_finite = true});
  ASSERT_TRUE(many->Wait().ok()) << many->Wait().status();
  const std::vector<server::FactorSolveOutcome>& systems = many->Wait()->systems;
  EXPECT_TRUE(systems[0].solve.status.ok());
  const auto not_spd = server::NotSpdOf(systems[1].solve.status);
  ASSERT_TRUE(not_spd.has_value());
  EXPECT_EQ(not_spd->system, 1);
  EXPECT_EQ(ReasonOf(systems[2].solve.status), NotFoundReason::kReleased);
  EXPECT_EQ(FieldOf(systems[3].solve.status), "spec");
  EXPECT_EQ(FieldOf(systems[4].solve.status), "system[4].diagonal");
  EXPECT_TRUE(systems[5].solve.status.ok());
  EXPECT_EQ(many->Wait()->cost.batch_items, 3);
  ExpectHolds(good, after_);
  ExpectHolds(spoiled, before_);
  ExpectHolds(odd, other);
  ExpectHolds(nan, before_);
  ExpectHolds(last, third_);
}

TEST_F(SolverCoreRefactorSolveTest, RefusesAMessageThatDoesNotAgree) {
  Start({.limits = {.max_systems = 2}});
  const Handle handle = Held(before_), second = Held(before_), third = Held(before_);
  EXPECT_EQ(FieldOf(StepMany({}, {})->Wait().status()), "num_systems");
  EXPECT_EQ(FieldOf(StepMany({handle, second, third}, {after_, after_, after_})->Wait().status()),
            "num_systems");
  EXPECT_EQ(FieldOf(StepMany({handle, handle}, {after_, after_})->Wait().status()), "handle");
  EXPECT_EQ(FieldOf(StepMany({handle}, {after_, after_})->Wait().status()), "handle");
  EXPECT_EQ(FieldOf(StepMany({handle, second}, {after_, TestSystem(23, 5)})->Wait().status()),
            "system[1]");
  ExpectHolds(handle, before_);
}

TEST_F(SolverCoreRefactorSolveTest, ManyThatDoNotFitAreRefusedTogether) {
  const TestSystem before(64, 16, 0), after(64, 16, 50);
  Start();
  const int64_t charge = Charge(before.form.shape);
  Stop();
  Start({.memory_bytes = 2 * charge + charge / 2, .limits = {}});
  const Handle first = Held(before), second = Held(before);
  auto pending = std::make_unique<Pending<FactorSolveReply>>();
  pending->context->caller = "alice";
  pending->rhs = TestRhs(before.form.shape, 2, 1);
  pending->solution.assign(pending->rhs.size(), 0);
  server::FactorSolveParams params;
  params.form = before.form;
  params.handles = {first, second};
  params.matrices = {after.view(), after.view()};
  const size_t rows = static_cast<size_t>(before.form.shape.rows());
  for (size_t i = 0; i < 2; ++i) {
    params.solves.push_back(
        {1, std::as_bytes(std::span(pending->rhs).subspan(i * rows, rows)),
         std::as_writable_bytes(std::span(pending->solution).subspan(i * rows, rows))});
  }
  core_->FactorSolve(pending->context, std::move(params), pending->Callback());
  EXPECT_TRUE(absl::IsResourceExhausted(pending->Wait().status())) << pending->Wait().status();
  ExpectHolds(first, before);
  ExpectHolds(second, before);
}

TEST_F(SolverCoreRefactorSolveTest, EachOfManyCountsForTheRateAndAllForTheMemory) {
  Start();
  const Handle first = Held(before_), second = Held(before_), third = Held(before_);
  server::TenantQuotas quotas;
  quotas.requests_per_second = 3;
  core_->tenants().Configure({.default_tenant = {.quotas = quotas}, .tenants = {}});
  ASSERT_TRUE(StepMany({first, second, third}, {before_, before_, before_})->Wait().ok());
  const auto over =
      server::QuotaExceededOf(StepMany({first, second}, {after_, after_})->Wait().status());
  ASSERT_TRUE(over.has_value());
  EXPECT_EQ(over->quota, "requests_per_second");
  EXPECT_EQ(over->asked, 2);
  quotas = {};
  quotas.device_bytes = Reserved() + 1;  // all that it holds, and nothing to work in
  core_->tenants().Configure({.default_tenant = {.quotas = quotas}, .tenants = {}});
  for (const absl::Status& status : {StepMany({first, second}, {after_, after_})->Wait().status(),
                                     Step(first, after_)->Wait().status()}) {
    const auto full = server::QuotaExceededOf(status);
    ASSERT_TRUE(full.has_value()) << status;
    EXPECT_EQ(full->quota, "device_bytes");
  }
  core_->tenants().Configure({});
  for (const Handle& handle : {first, second, third}) ExpectHolds(handle, before_);
}

TEST_F(SolverCoreRefactorSolveTest, ManyCancelledAreAnsweredWithThat) {
  Start();
  const Handle first = Held(before_), second = Held(before_);
  PendingFactor holder = HoldDevice();
  const auto many = StepMany({first, second}, {after_, third_});
  core_->Cancel(*many->context);
  EXPECT_TRUE(absl::IsCancelled(many->Wait().status()));
  gate_->Open();
  ExpectHolds(first, before_);
  ExpectHolds(second, before_);
}

}  // namespace
}  // namespace blockd::test
