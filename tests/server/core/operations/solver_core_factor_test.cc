// Factor: several systems, failures that stay alone, what is refused.
#include <cmath>
#include <limits>

#include "tests/server/core/core_fixture.h"

namespace blockd::test {
namespace {

using server::FactorParams;
using server::Handle;

class SolverCoreFactorTest : public CoreTest {};

TEST_F(SolverCoreFactorTest, FactorsSeveralSystemsAndSolvesWithEach) {
  Start();
  const std::vector<TestSystem> systems = {{9, 4, 0}, {9, 4, 1}, {9, 4, 2}};
  FactorParams params;
  params.log_determinant = true;
  PendingFactor factor = Factor(systems, params);
  const auto& reply = factor->Wait();
  ASSERT_TRUE(reply.ok()) << reply.status();
  ASSERT_EQ(reply->systems.size(), 3u);
  EXPECT_FALSE(reply->found);
  EXPECT_EQ(reply->cost.batch_requests, 1);
  EXPECT_EQ(reply->cost.batch_items, 3);
  for (size_t i = 0; i < systems.size(); ++i) {
    ASSERT_TRUE(reply->systems[i].status.ok());
    EXPECT_NEAR(reply->systems[i].log_determinant.value_or(0), systems[i].LogDeterminant(), 1e-10);
    PendingSolve solve = Solve(reply->systems[i].handle, systems[i].form.shape, 3);
    ExpectSolves(systems[i], *solve);
  }
  EXPECT_EQ(Metric("blockd_factorizations"), 3);
}

TEST_F(SolverCoreFactorTest, TheSmallestSystemHasOneBlockOfOne) {
  Start();
  const TestSystem system(1, 1);
  const Handle handle = Held(system);
  PendingSolve solve = Solve(handle, system.form.shape);
  ExpectSolves(system, *solve);
  EXPECT_DOUBLE_EQ(solve->solution[0], solve->rhs[0] / system.diagonal[0]);
}

TEST_F(SolverCoreFactorTest, OneNotPositiveDefiniteSystemFailsAlone) {
  Start();
  const TestSystem good(6, 3);
  PendingFactor factor = Factor({good, good.Spoiled(4), good});
  const auto& reply = factor->Wait();
  ASSERT_TRUE(reply.ok()) << reply.status();
  EXPECT_TRUE(reply->systems[0].status.ok());
  EXPECT_TRUE(reply->systems[2].status.ok());
  const auto detail = server::NotSpdOf(reply->systems[1].status);
  ASSERT_TRUE(detail.has_value()) << reply->systems[1].status;
  EXPECT_EQ(detail->system, 1);
  EXPECT_EQ(detail->where.block, 4);
  EXPECT_EQ(detail->where.row, 0);
  EXPECT_EQ(detail->where.minor, 4 * 3 + 1);
  EXPECT_EQ(Metric("blockd_factorizations"), 2);
  EXPECT_EQ(Metric("blockd_not_positive_definite_total"), 1);
}

TEST_F(SolverCoreFactorTest, ASingleSystemsFailureIsTheCalls) {
  Start();
  const TestSystem system(6, 3);
  PendingFactor factor = Factor({system.Spoiled(0)});
  EXPECT_TRUE(server::NotSpdOf(factor->Wait().status()).has_value());
  EXPECT_EQ(Reserved(), 0);
}

TEST_F(SolverCoreFactorTest, RequestsOfOneShapeShareABatchAndFailAlone) {
  Start();
  const TestSystem good(6, 3);
  PendingFactor holder = HoldDevice();
  PendingFactor first = Factor({good});
  PendingFactor bad = Factor({good.Spoiled(2)});
  PendingFactor last = Factor({good});
  gate_->Open();
  ASSERT_TRUE(first->Wait().ok());
  ASSERT_TRUE(last->Wait().ok());
  EXPECT_TRUE(server::NotSpdOf(bad->Wait().status()).has_value());
  EXPECT_EQ(first->Wait()->cost.batch_requests, 3);
  EXPECT_EQ(last->Wait()->cost.batch_items, 3);
  PendingSolve solve = Solve(last->Wait()->systems[0].handle, good.form.shape);
  ExpectSolves(good, *solve);
}

TEST_F(SolverCoreFactorTest, RefusesWhatDoesNotAgreeAndNamesTheField) {
  Start({.limits = {.max_lease = absl::Minutes(1), .max_systems = 2}});
  const TestSystem system(4, 2);
  const Handle handle = Held(system);
  const auto field = [&](const std::vector<TestSystem>& systems, const FactorParams& params) {
    return FieldOf(Factor(systems, params)->Wait().status());
  };
  FactorParams ok;
  EXPECT_EQ(field({}, ok), "spec.block_size");
  TestSystem odd = system;
  odd.form.shape.num_blocks = 0;
  EXPECT_EQ(field({odd}, ok), "spec.num_blocks");
  odd.form.shape.num_blocks = std::numeric_limits<int64_t>::max();
  EXPECT_EQ(field({odd}, ok), "spec.num_blocks");
  odd.form.shape.block_size = std::numeric_limits<int64_t>::max();
  EXPECT_EQ(field({odd}, ok), "spec.block_size");
  EXPECT_EQ(field({system, system, system}, ok), "num_systems");
  EXPECT_EQ(field({system, TestSystem(5, 2)}, ok), "system[1]");
  odd = system;
  odd.form.shape.block_size = kMaxBlockSize + 1;
  EXPECT_EQ(field({odd}, ok), "spec.block_size");
  odd.form.shape = {kMaxRows / 2 + 1, 2, Scalar::kFloat64};
  EXPECT_EQ(field({odd}, ok), "spec.num_blocks");
  odd = system;
  odd.coupling.clear();
  EXPECT_EQ(field({odd}, ok), "system[0]");

  FactorParams params;
  params.lease = absl::Seconds(-1);
  EXPECT_EQ(field({system}, params), "options.lease");
  params.lease = absl::Minutes(2);
  EXPECT_EQ(field({system}, params), "options.lease");
  params = {};
  params.idempotency_key = std::string(257, 'k');
  EXPECT_EQ(field({system}, params), "options.idempotency_key");
  params.idempotency_key = "k";
  params.handles = {handle};
  EXPECT_EQ(field({system}, params), "options.idempotency_key");
  params = {};
  params.handles = {handle};
  EXPECT_EQ(field({system, system}, params), "options.handle");
  params.handles = {handle, handle};
  EXPECT_EQ(field({system, system}, params), "options.handle");
  params.handles = {handle};
  EXPECT_EQ(field({TestSystem(4, 3)}, params), "spec");
  EXPECT_EQ(Metric("blockd_factorizations"), 1);
}

TEST_F(SolverCoreFactorTest, RefusesPaletteIndicesOutOfRange) {
  Start();
  TestSystem system(4, 2);
  system.form.diagonal_palette = 1;
  system.form.coupling_palette = 1;
  const std::vector<uint32_t> fine(4, 0), wrong = {0, 0, 1, 0};
  BlockTridiagonalView view = system.view();
  view.coupling_index = fine.data();
  FactorParams params;
  params.form = system.form;
  const auto factor = [&] {
    Pending<server::FactorReply> pending;
    core_->Factor(pending.context, params, {view}, pending.Callback());
    return pending.Wait().status();
  };
  EXPECT_EQ(FieldOf(factor()), "spec.palette.diagonal_index");
  view.diagonal_index = wrong.data();
  EXPECT_EQ(FieldOf(factor()), "spec.palette.diagonal_index[2]");
  view.diagonal_index = fine.data();
  EXPECT_TRUE(factor().ok());
  // The positions of each system are looked at.
  BlockTridiagonalView second = view;
  second.diagonal_index = wrong.data();
  Pending<server::FactorReply> pending;
  core_->Factor(pending.context, params, {view, second}, pending.Callback());
  EXPECT_EQ(FieldOf(pending.Wait().status()), "spec.palette.diagonal_index[2]");
  second = view;
  second.coupling_index = wrong.data();
  Pending<server::FactorReply> coupling;
  core_->Factor(coupling.context, params, {view, second}, coupling.Callback());
  EXPECT_EQ(FieldOf(coupling.Wait().status()), "spec.palette.coupling_index[2]");
}

TEST_F(SolverCoreFactorTest, TheLimitsThemselvesAreAccepted) {
  Start({.limits = {.max_systems = 2}});
  FactorParams params;
  params.idempotency_key = std::string(256, 'k');
  EXPECT_TRUE(Factor({TestSystem(4, 2), TestSystem(4, 2, 1)}, params)->Wait().ok());
}

TEST_F(SolverCoreFactorTest, ALogDeterminantIsSaidIfItIsAskedFor) {
  Start();
  EXPECT_FALSE(Factor({TestSystem(4, 2)})->Wait()->systems[0].log_determinant.has_value());
  TestSystem identity(3, 1);
  identity.diagonal = {1, 1, 1};
  identity.coupling = {0, 0};
  FactorParams params;
  params.log_determinant = true;
  PendingFactor factor = Factor({identity, TestSystem(3, 1).Spoiled(0)}, params);
  ASSERT_TRUE(factor->Wait().ok());
  EXPECT_EQ(factor->Wait()->systems[0].log_determinant, 0.0);
  EXPECT_FALSE(factor->Wait()->systems[1].log_determinant.has_value());
}

TEST_F(SolverCoreFactorTest, FindsNanWhereAskedTo) {
  Start();
  TestSystem system(4, 2);
  system.coupling[5] = std::nan("");
  FactorParams params;
  params.check_finite = true;
  EXPECT_EQ(FieldOf(Factor({TestSystem(4, 2), system}, params)->Wait().status()),
            "system[1].coupling");
  TestSystem diagonal(4, 2);
  diagonal.diagonal[0] = std::numeric_limits<double>::infinity();
  EXPECT_EQ(
      FieldOf(Factor({TestSystem(4, 2), TestSystem(4, 2), diagonal}, params)->Wait().status()),
      "system[2].diagonal");
}

}  // namespace
}  // namespace blockd::test
