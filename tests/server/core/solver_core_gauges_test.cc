// The core's reports about itself: plans, memory, gauges, limits.
#include <algorithm>

#include "tests/server/core/core_fixture.h"

namespace blockd::test {
namespace {

using server::FactorParams;
using server::Handle;

class SolverCoreGaugesTest : public CoreTest {
 protected:
  const TestSystem system_{20, 4}, other_{20, 4, 1};
};

TEST_F(SolverCoreGaugesTest, APlanSaysWhatTheCallsWouldTake) {
  Start({.limits = {.max_systems = 8, .max_rhs = 100}});
  const auto one = core_->Plan(system_.form, 1, 1), many = core_->Plan(system_.form, 8, 100);
  ASSERT_TRUE(one.ok() && many.ok());
  EXPECT_EQ(one->plan->shape(), system_.form.shape);
  EXPECT_EQ(one->plan->factor_bytes(), core_->Plan(system_.form, 1, 7)->plan->factor_bytes());
  EXPECT_DOUBLE_EQ(many->factor_flops, 8 * many->plan->factor_flops());
  EXPECT_DOUBLE_EQ(many->solve_flops, many->plan->solve_flops(100));
  EXPECT_DOUBLE_EQ(one->solve_flops, one->plan->solve_flops(1));
  EXPECT_GT(one->factor_workspace_bytes, 0);
  EXPECT_EQ(many->factor_workspace_bytes,
            8 * MemoryPool::Rounded(many->plan->chain_scalars() * 8) +
                MemoryPool::Rounded(core_->backend().FactorScratchBytes(*many->plan, 8)));
  EXPECT_GE(many->solve_workspace_bytes, 100 * system_.form.shape.rows() * 8);
  EXPECT_LT(one->solve_workspace_bytes, many->solve_workspace_bytes / 10);
  EXPECT_GT(many->factor_seconds, one->factor_seconds);
  EXPECT_GT(many->solve_seconds, one->solve_seconds);
  EXPECT_GT(one->solve_seconds, 0);
  EXPECT_EQ(Reserved(), 0);
}

TEST_F(SolverCoreGaugesTest, APlanRefusesWhatTheCallsWould) {
  Start({.limits = {.max_systems = 8, .max_rhs = 100}});
  const auto field = [this](const MatrixForm& form, int64_t systems, int64_t num_rhs) {
    return FieldOf(core_->Plan(form, systems, num_rhs).status());
  };
  EXPECT_EQ(field(system_.form, 0, 1), "num_systems");
  EXPECT_EQ(field(system_.form, 9, 1), "num_systems");
  EXPECT_EQ(field(system_.form, 1, 0), "num_rhs");
  EXPECT_EQ(field(system_.form, 1, 101), "num_rhs");
  MatrixForm form = system_.form;
  form.shape.block_size = kMaxBlockSize + 1;
  EXPECT_EQ(field(form, 1, 1), "spec.block_size");
  // A matrix that could never fit, even its blocks alone.
  form.shape = {core_->memory().total_bytes / 16 + 1, 1, Scalar::kFloat64};
  const absl::Status refused = core_->Plan(form, 1, 1).status();
  const auto detail = server::InsufficientMemoryOf(refused);
  ASSERT_TRUE(detail.has_value()) << refused;
  EXPECT_EQ(detail->asked_bytes, 8 * (2 * form.shape.num_blocks - 1));
  EXPECT_EQ(detail->total_bytes, core_->memory().total_bytes);
  EXPECT_EQ(detail->free_bytes, core_->memory().total_bytes);
  form.shape = {kMaxRows / kMaxBlockSize, kMaxBlockSize, Scalar::kFloat64};
  EXPECT_TRUE(absl::IsResourceExhausted(core_->Plan(form, 8, 1).status()));
}

TEST_F(SolverCoreGaugesTest, GaugesSayWhatIsHeldReservedAndQueued) {
  Start();
  FactorParams pinned;
  pinned.pin = true;
  const Handle a = Held(system_, pinned), b = Held(other_);
  const int64_t charge = Charge(system_.form.shape);
  PendingFactor holder = HoldDevice();
  PendingSolve first = Solve(b, system_.form.shape), second = Solve(b, system_.form.shape);
  PendingFactor factor = Factor({system_});
  PendingSolve both = FactorSolve(system_), more = FactorSolve(other_), last = FactorSolve(system_);
  const server::SolverCore::MemoryStats memory = core_->memory();
  EXPECT_EQ(Metric("blockd_factorizations"), 2);
  EXPECT_EQ(memory.factorizations, 2);
  EXPECT_EQ(Metric("blockd_factorization_bytes"),
            static_cast<double>(2 * core_->Get("alice", a)->held_bytes));
  EXPECT_EQ(Metric("blockd_pinned_factorizations"), 1);
  EXPECT_EQ(Metric("blockd_budget_bytes"), static_cast<double>(memory.total_bytes));
  EXPECT_EQ(Metric("blockd_budget_reserved_bytes"), static_cast<double>(Reserved()));
  EXPECT_GT(Reserved(), 2 * charge);
  EXPECT_GE(Metric("blockd_budget_peak_reserved_bytes"), static_cast<double>(Reserved()));
  EXPECT_EQ(Metric("blockd_budget_evictable_bytes"), 0);  // pinned, and used by those queued
  EXPECT_EQ(Metric("blockd_pool_bytes"), static_cast<double>(memory.pool.capacity_bytes));
  EXPECT_EQ(Metric("blockd_pool_used_bytes"), static_cast<double>(memory.pool.used_bytes));
  EXPECT_GT(memory.pool.used_bytes, 2 * charge);
  EXPECT_EQ(Metric("blockd_pool_peak_used_bytes"),
            static_cast<double>(memory.pool.peak_used_bytes));
  EXPECT_EQ(Metric("blockd_pool_free_bytes"), static_cast<double>(memory.pool.free_bytes));
  EXPECT_EQ(memory.pool.free_bytes, memory.pool.capacity_bytes - memory.pool.used_bytes);
  EXPECT_EQ(Metric("blockd_pool_largest_free_bytes"),
            static_cast<double>(memory.pool.largest_free_bytes));
  EXPECT_EQ(Metric("blockd_device_memory_bytes"),
            static_cast<double>(core_->backend().device().memory_bytes));
  EXPECT_EQ(Metric("blockd_queue_requests{kind=\"solve\"}"), 2);
  EXPECT_EQ(Metric("blockd_queue_requests{kind=\"factor\"}"), 1);
  EXPECT_EQ(Metric("blockd_queue_requests{kind=\"factor_solve\"}"), 3);
  EXPECT_EQ(Metric("blockd_healthy"), 1);
  gate_->Open();
  for (PendingSolve* solve : {&first, &second, &both, &more, &last}) {
    EXPECT_TRUE((*solve)->Wait().ok());
  }
  ASSERT_TRUE(factor->Wait().ok() && holder->Wait().ok());
  const std::vector<Handle> handles = {a, b, factor->Wait()->systems[0].handle};
  EXPECT_EQ(*core_->Release("alice", handles),
            static_cast<int64_t>(3 * core_->Plan(system_.form, 1, 1)->plan->factor_bytes()));
  EXPECT_EQ(Metric("blockd_factorizations"), 1);  // the holder's
  EXPECT_EQ(Metric("blockd_pinned_factorizations"), 0);
  EXPECT_EQ(core_->memory().evictable_bytes, Reserved());
  EXPECT_EQ(Metric("blockd_budget_evictable_bytes"), static_cast<double>(Reserved()));
  const PoolStats pool = core_->memory().pool;
  EXPECT_LT(pool.used_bytes, pool.peak_used_bytes);
  EXPECT_EQ(Metric("blockd_pool_peak_used_bytes"), static_cast<double>(pool.peak_used_bytes));
  EXPECT_GT(Metric("blockd_budget_peak_reserved_bytes"), static_cast<double>(Reserved()));
}

TEST_F(SolverCoreGaugesTest, ListsAPageAtATime) {
  Start();
  std::vector<Handle> handles;
  for (int i = 0; i < 5; ++i) handles.push_back(Held(system_));
  std::sort(handles.begin(), handles.end());
  const auto page = core_->List("alice", handles[1], 2);
  ASSERT_EQ(page.size(), 2u);
  EXPECT_EQ(page[0].handle, handles[2]);
  EXPECT_EQ(page[1].handle, handles[3]);
  EXPECT_EQ(core_->List("alice", std::nullopt, 100).size(), 5u);
  EXPECT_TRUE(core_->List("bob", std::nullopt, 100).empty());
  EXPECT_EQ(core_->limits().max_systems, 4096);
}

}  // namespace
}  // namespace blockd::test
