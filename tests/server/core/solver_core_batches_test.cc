// Requests of equal plans run together, within the limits of a batch; and each is told its costs.
#include "tests/server/core/core_fixture.h"

namespace blockd::test {
namespace {

using server::FactorParams;
using server::Handle;

class SolverCoreBatchesTest : public CoreTest {
 protected:
  // Queues solves with these numbers of right-hand sides behind a held device; requests of the
  // batch that each ran in.
  std::vector<int64_t> BatchesOf(const Handle& handle, const std::vector<int64_t>& columns) {
    PendingFactor holder = HoldDevice();
    std::vector<PendingSolve> solves;
    for (const int64_t count : columns) solves.push_back(Solve(handle, shape(), count));
    gate_->Open();
    std::vector<int64_t> batches;
    for (PendingSolve& solve : solves) {
      ExpectSolves(system_, *solve);
      batches.push_back(solve->Wait()->cost.batch_requests);
    }
    return batches;
  }
  const Shape& shape() const { return system_.form.shape; }
  using Requests = std::vector<int64_t>;

  const TestSystem system_{6, 3}, other_{6, 3, 1};
};

TEST_F(SolverCoreBatchesTest, HandlesOfOneShapeFactoredInOtherBatchesShareABatch) {
  Start();
  const Handle alone = Held(system_);
  PendingFactor several = Factor({other_, system_, other_, system_, other_});
  ASSERT_TRUE(several->Wait().ok());
  // As many shapes as the solver's plan cache holds, so that it forgets the first ones.
  MatrixForm form;
  for (int64_t shape = 0; shape < 4200; ++shape) {
    form.shape = {1 + shape % 65, 1 + shape / 65, Scalar::kFloat32};
    ASSERT_TRUE(core_->Plan(form, 1, 1).ok());
  }
  const Handle late = Held(other_);
  PendingFactor holder = HoldDevice();
  PendingSolve a = Solve(alone, shape()), b = Solve(several->Wait()->systems[0].handle, shape());
  PendingSolve c = Solve(late, shape(), 2);
  gate_->Open();
  ExpectSolves(system_, *a);
  ExpectSolves(other_, *b);
  ExpectSolves(other_, *c);
  for (PendingSolve* solve : {&a, &b, &c}) {
    EXPECT_EQ((*solve)->Wait()->cost.batch_requests, 3);
    EXPECT_EQ((*solve)->Wait()->cost.batch_items, 4);
  }
}

TEST_F(SolverCoreBatchesTest, ShapesAndKindsOfWorkDoNotMix) {
  Start();
  const TestSystem longer(7, 3);
  const Handle handle = Held(system_), second = Held(longer);
  PendingFactor holder = HoldDevice();
  PendingSolve a = Solve(handle, shape()), b = Solve(second, longer.form.shape);
  PendingSolve both = FactorSolve(system_);
  PendingFactor factor = Factor({system_});
  gate_->Open();
  ExpectSolves(system_, *a);
  ExpectSolves(longer, *b);
  ExpectSolves(system_, *both);
  ASSERT_TRUE(factor->Wait().ok());
  EXPECT_EQ(a->Wait()->cost.batch_requests, 1);
  EXPECT_EQ(b->Wait()->cost.batch_requests, 1);
  EXPECT_EQ(both->Wait()->cost.batch_requests, 1);
  EXPECT_EQ(factor->Wait()->cost.batch_requests, 1);
}

TEST_F(SolverCoreBatchesTest, ABatchHoldsAtMostSoManyRightHandSides) {
  Start({.limits = {.max_batch_rhs = 4}});
  EXPECT_EQ(BatchesOf(Held(system_), {2, 2, 1, 3, 5, 1}), (Requests{2, 2, 2, 2, 1, 1}));
}

TEST_F(SolverCoreBatchesTest, ABatchHoldsAtMostSoManyRequests) {
  Start({.limits = {.max_batch_requests = 2}});
  EXPECT_EQ(BatchesOf(Held(system_), {1, 1, 1, 1, 1}), (Requests{2, 2, 2, 2, 1}));
}

TEST_F(SolverCoreBatchesTest, ABatchHoldsAtMostSoManyBytes) {
  Start({.limits = {.max_batch_bytes = 3 * system_.form.shape.rows() * 8}});
  EXPECT_EQ(BatchesOf(Held(system_), {1, 2, 2, 2, 1}), (Requests{2, 2, 1, 2, 2}));
}

TEST_F(SolverCoreBatchesTest, MatricesCountWithTheirBytes) {
  const int64_t two = 2 * system_.form.bytes();
  Start({.limits = {.max_batch_bytes = two}});
  PendingFactor holder = HoldDevice();
  PendingFactor a = Factor({system_}), b = Factor({other_});
  PendingFactor c = Factor({system_, other_}), d = Factor({system_});
  gate_->Open();
  for (PendingFactor* factor : {&a, &b, &c, &d}) ASSERT_TRUE((*factor)->Wait().ok());
  EXPECT_EQ(a->Wait()->cost.batch_requests, 2);
  EXPECT_EQ(b->Wait()->cost.batch_items, 2);
  EXPECT_EQ(c->Wait()->cost.batch_requests, 1);
  EXPECT_EQ(c->Wait()->cost.batch_items, 2);
  EXPECT_EQ(d->Wait()->cost.batch_requests, 1);
  Stop();

  const int64_t with_rhs = two + 2 * system_.form.shape.rows() * 8;
  for (const int64_t bytes : {with_rhs, with_rhs - 1}) {
    Start({.limits = {.max_batch_bytes = bytes}});
    PendingFactor again = HoldDevice();
    PendingSolve first = FactorSolve(system_), second = FactorSolve(other_);
    gate_->Open();
    ExpectSolves(system_, *first);
    ExpectSolves(other_, *second);
    EXPECT_EQ(first->Wait()->cost.batch_requests, bytes == with_rhs ? 2 : 1);
    Stop();
  }
}

TEST_F(SolverCoreBatchesTest, RightHandSidesOfFactorSolvesCountToo) {
  Start({.limits = {.max_batch_rhs = 4}});
  PendingFactor holder = HoldDevice();
  PendingSolve a = FactorSolve(system_, 2), b = FactorSolve(other_, 2), c = FactorSolve(system_);
  gate_->Open();
  ExpectSolves(system_, *a);
  ExpectSolves(other_, *b);
  ExpectSolves(system_, *c);
  EXPECT_EQ(a->Wait()->cost.batch_requests, 2);
  EXPECT_EQ(b->Wait()->cost.batch_items, 2);
  EXPECT_EQ(c->Wait()->cost.batch_requests, 1);
}

TEST_F(SolverCoreBatchesTest, EachIsToldHowLongItWaited) {
  Start();
  const Handle handle = Held(system_);
  PendingFactor holder = HoldDevice();
  PendingSolve first = Solve(handle, shape());
  clock_.Advance(absl::Seconds(2));
  PendingSolve second = Solve(handle, shape());
  PendingSolve both = FactorSolve(system_);
  PendingFactor factor = Factor({system_});
  clock_.Advance(absl::Seconds(1));
  gate_->Open();
  EXPECT_EQ(first->Wait()->cost.queue, absl::Seconds(3));
  EXPECT_EQ(second->Wait()->cost.queue, absl::Seconds(1));
  EXPECT_EQ(both->Wait()->cost.queue, absl::Seconds(1));
  EXPECT_EQ(factor->Wait()->cost.queue, absl::Seconds(1));
  EXPECT_GT(first->Wait()->cost.compute, absl::ZeroDuration());
  EXPECT_GT(both->Wait()->cost.compute, absl::ZeroDuration());
  EXPECT_GT(factor->Wait()->cost.compute, absl::ZeroDuration());
  EXPECT_EQ(holder->Wait()->cost.queue, absl::ZeroDuration());
  EXPECT_EQ(Metric("blockd_request_seconds_sum{method=\"Solve\",phase=\"queue\"}"), 4);
  EXPECT_EQ(Metric("blockd_request_seconds_sum{method=\"Factor\",phase=\"queue\"}"), 1);
  EXPECT_EQ(Metric("blockd_request_seconds_sum{method=\"FactorSolve\",phase=\"queue\"}"), 1);
}

TEST_F(SolverCoreBatchesTest, AnUploadsTimeIsNotTheQueues) {
  Start();
  FactorParams params;
  params.form = system_.form;
  params.num_systems = 1;
  Pending<server::FactorReply> pending;
  pending.context->method = server::Method::kFactorStream;
  auto begun = core_->BeginUpload(pending.context, params, {}, {});
  ASSERT_TRUE(begun.ok());
  auto upload = std::get<std::unique_ptr<server::FactorUpload>>(*std::move(begun));
  clock_.Advance(absl::Seconds(5));
  ASSERT_TRUE(upload->Write(system_.bytes()).ok());
  PendingFactor holder = HoldDevice();
  core_->FinishUpload(std::move(upload), pending.Callback());
  clock_.Advance(absl::Seconds(2));
  gate_->Open();
  ASSERT_TRUE(pending.Wait().ok());
  EXPECT_EQ(pending.Wait()->cost.queue, absl::Seconds(2));
  EXPECT_GE(pending.Wait()->cost.upload, absl::Seconds(5));
  EXPECT_LT(pending.Wait()->cost.upload, absl::Seconds(7));
  EXPECT_EQ(Metric("blockd_request_seconds_sum{method=\"FactorStream\",phase=\"queue\"}"), 2);
}

TEST_F(SolverCoreBatchesTest, TheDeviceIsBusyWhileItWorks) {
  Start();
  const Handle handle = Held(system_);
  double busy = 0;
  // Both lanes at once count once.
  const auto ends = [&](double seconds) {
    clock_.Advance(absl::Seconds(seconds));
    gate_->Open();
    busy += seconds;
    RepeatUntil([&] { return Metric("blockd_device_busy_seconds_total") == busy; }, [] {});
  };
  PendingFactor factor = HoldDevice();
  ends(2);
  gate_->Close();
  PendingSolve solve = Solve(handle, shape());
  gate_->WaitForDevice();
  ends(3);
  gate_->Close();
  PendingSolve both = FactorSolve(system_);
  gate_->WaitForDevice();
  ends(4);
  EXPECT_TRUE(factor->Wait().ok() && solve->Wait().ok() && both->Wait().ok());
}

TEST_F(SolverCoreBatchesTest, FlopsAreThoseOfAllSystemsAndColumns) {
  Start();
  const auto flops = [this](const char* kind) {
    return Metric(std::string("blockd_flops_total{kind=\"") + kind + "\"}");
  };
  PendingFactor factor = Factor({system_, other_, system_});
  ASSERT_TRUE(factor->Wait().ok());
  const auto plan = core_->Plan(system_.form, 3, 5);
  EXPECT_DOUBLE_EQ(flops("factor"), plan->factor_flops);
  ASSERT_TRUE(Solve(factor->Wait()->systems[1].handle, shape(), 5)->Wait().ok());
  EXPECT_DOUBLE_EQ(flops("solve"), plan->solve_flops);
  ASSERT_TRUE(FactorSolve(system_, 5)->Wait().ok());
  EXPECT_DOUBLE_EQ(flops("factor_solve"),
                   core_->Plan(system_.form, 1, 1)->factor_flops + plan->solve_flops);
  const double before = flops("factor_solve");
  PendingFactor holder = HoldDevice();
  PendingSolve a = FactorSolve(system_, 5), b = FactorSolve(other_, 2);
  gate_->Open();
  ASSERT_TRUE(a->Wait().ok() && b->Wait().ok() && holder->Wait().ok());
  EXPECT_DOUBLE_EQ(
      flops("factor_solve") - before,
      core_->Plan(system_.form, 2, 1)->factor_flops + core_->Plan(system_.form, 1, 7)->solve_flops);
}

}  // namespace
}  // namespace blockd::test
