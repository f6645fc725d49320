// Memory, cancellation, recycling, and calls that are refused.
#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/engine/solver_fixture.h"

namespace blockd::test {
namespace {

class ResourcesTest : public SolverTest {
 protected:
  // Leaves `bytes` of the pool free, in one piece.
  DeviceBuffer LeaveFree(int64_t bytes) const {
    absl::StatusOr<DeviceBuffer> wall =
        solver().backend().pool().Allocate(Pool().largest_free_bytes - MemoryPool::Rounded(bytes));
    EXPECT_TRUE(wall.ok()) << wall.status();
    return wall.ok() ? *std::move(wall) : DeviceBuffer();
  }
};

TEST_P(ResourcesTest, FactorFitsIntoWhatTheWorkspaceBoundPromises) {
  for (const int64_t n : {1, 8, 31, 150}) {
    const HostMatrix matrix(problems::Mpc(33, n, 2), scalar());
    HostMatrix bad(problems::Mpc(33, n, 2), scalar());
    bad.SetDiagonal(20, n - 1, n - 1, -1);
    for (const std::vector<int64_t>& cut : std::vector<std::vector<int64_t>>{{}, {1}, {9, 3}}) {
      for (const bool keep : {false, true}) {
        const PlanPtr plan = Cut(matrix.shape(), cut);
        const DeviceBuffer wall =
            LeaveFree(MemoryPool::Rounded(plan->factor_bytes()) +
                      (keep ? StagedMatrix::BufferBytes(matrix.form()) : 0) +
                      solver().FactorWorkspaceBytes(*plan, matrix.form(), 1, keep));
        EXPECT_NE(MustFactor(solver(), matrix, plan, keep), nullptr);
        const FactorOutcome failed = FactorOne(solver(), bad, plan, keep);
        ASSERT_TRUE(failed.not_positive_definite.has_value()) << failed.status;
        EXPECT_EQ(failed.not_positive_definite->minor, 20 * n + n);
      }
    }
  }
}

TEST_P(ResourcesTest, SolveFitsIntoWhatTheWorkspaceBoundPromises) {
  const HostMatrix matrix(problems::Mpc(33, 7, 2), scalar());
  for (const std::vector<int64_t>& cut : std::vector<std::vector<int64_t>>{{}, {1}, {9, 3}}) {
    const PlanPtr plan = Cut(matrix.shape(), cut);
    const auto factorization = MustFactor(solver(), matrix, plan, true);
    for (const int64_t num_rhs : {1, 3, 40}) {
      for (const bool residual : {false, true}) {
        Columns rhs(problems::RandomColumns(33 * 7, num_rhs, 1), scalar());
        SolveItem item{.factorization = factorization, .rhs = rhs.data(), .solution = rhs.data()};
        item.num_rhs = num_rhs;
        item.residual = residual;
        const DeviceBuffer wall = LeaveFree(
            solver().SolveWorkspaceBytes(*plan, num_rhs, residual || factorization->refines()));
        EXPECT_TRUE(solver().Solve({&item, 1})[0].status.ok());
      }
    }
  }
}

TEST_P(ResourcesTest, RunningOutOfMemoryIsAStatusAndLeavesNothingBehind) {
  const HostMatrix matrix(problems::Poisson(20, 16), scalar());
  const PlanPtr plan = Cut(matrix.shape(), {3});
  const auto factorization = MustFactor(solver(), matrix, plan, true);
  Columns rhs(problems::RandomColumns(320, 50, 1), scalar());
  for (const int64_t free : {int64_t{0}, int64_t{256}, plan->factor_bytes() - 256}) {
    const DeviceBuffer wall = LeaveFree(free);
    const int64_t used = Pool().used_bytes;
    EXPECT_EQ(FactorOne(solver(), matrix, plan).status.code(),
              absl::StatusCode::kResourceExhausted);
    EXPECT_EQ(Pool().used_bytes, used);
    if (free > 256) continue;
    SolveItem item{.factorization = factorization, .rhs = rhs.data(), .solution = rhs.data()};
    item.num_rhs = 50;
    item.residual = true;
    EXPECT_EQ(solver().Solve({&item, 1})[0].status.code(), absl::StatusCode::kResourceExhausted);
    EXPECT_EQ(Pool().used_bytes, used);
  }
  EXPECT_NE(MustFactor(solver(), matrix, plan), nullptr);
}

TEST_P(ResourcesTest, TheItemsThatFitSucceedWhenOthersDoNot) {
  const HostMatrix matrix(problems::Poisson(20, 16), scalar());
  const PlanPtr plan = Cut(matrix.shape(), {});
  std::vector<FactorItem> items(4);
  for (FactorItem& item : items) item.matrix = matrix.view();
  // Room for the factors of two and the workspace of four, but not for four.
  const DeviceBuffer wall = LeaveFree(2 * MemoryPool::Rounded(plan->factor_bytes()) +
                                      solver().FactorWorkspaceBytes(*plan, matrix.form(), 4));
  int succeeded = 0;
  for (const FactorOutcome& outcome : solver().Factor(plan, items)) {
    succeeded += outcome.status.ok();
    if (!outcome.status.ok()) {
      EXPECT_EQ(outcome.status.code(), absl::StatusCode::kResourceExhausted) << outcome.status;
    }
  }
  EXPECT_GE(succeeded, 1);
  EXPECT_LT(succeeded, 4);
}

TEST_P(ResourcesTest, RefactorsInTheSameMemory) {
  const HostMatrix first(problems::Mpc(40, 9, 1), scalar()),
      second(problems::Mpc(40, 9, 2), scalar());
  for (const std::vector<int64_t>& cut : std::vector<std::vector<int64_t>>{{}, {1}, {9, 3}}) {
    const PlanPtr plan = Cut(first.shape(), cut);
    auto factorization = MustFactor(solver(), first, plan);
    const void* const memory = factorization->data();
    DeviceBuffer recycled = Factorization::Recycle(std::move(factorization));
    ASSERT_TRUE(recycled);
    FactorItem item;
    item.matrix = second.view();
    item.recycle = &recycled;
    std::vector<FactorOutcome> outcomes = solver().Factor(plan, {&item, 1});
    ASSERT_TRUE(outcomes[0].status.ok()) << outcomes[0].status;
    EXPECT_EQ(outcomes[0].factorization->data(), memory);
    EXPECT_EQ(Pool().pieces, 1);
    const Columns rhs(problems::RandomColumns(360, 3, 1), scalar());
    const auto fresh = MustFactor(solver(), second, plan);
    EXPECT_EQ(MustSolve(solver(), outcomes[0].factorization, rhs, 3),
              MustSolve(solver(), fresh, rhs, 3));
  }
}

TEST_P(ResourcesTest, DoesNotRecycleWhatHasAnotherSize) {
  const HostMatrix matrix(problems::Mpc(40, 9, 1), scalar()),
      small(problems::Mpc(4, 9, 1), scalar());
  DeviceBuffer recycled = Factorization::Recycle(MustFactor(solver(), small));
  const int64_t bytes = recycled.bytes();
  FactorItem item;
  item.matrix = matrix.view();
  item.recycle = &recycled;
  std::vector<FactorOutcome> outcomes = solver().Factor(*solver().Plan(matrix.shape()), {&item, 1});
  ASSERT_TRUE(outcomes[0].status.ok()) << outcomes[0].status;
  EXPECT_EQ(recycled.bytes(), bytes);
  EXPECT_GT(outcomes[0].factorization->bytes(), bytes);
}

TEST_P(ResourcesTest, DoesNotRecycleWhatSomebodyElseHolds) {
  const HostMatrix matrix(problems::Poisson(5, 3), scalar());
  auto factorization = MustFactor(solver(), matrix);
  const std::shared_ptr<const Factorization> other = factorization;
  EXPECT_FALSE(Factorization::Recycle(std::move(factorization)));
  EXPECT_FALSE(Factorization::Recycle(nullptr));
  EXPECT_NE(other->data(), nullptr);
}

TEST_P(ResourcesTest, CancelledItemsEndAndTheOthersDoNot) {
  const HostMatrix matrix(problems::Mpc(30, 8, 1), scalar());
  const std::atomic<bool> cancelled = true, wanted = false;
  std::vector<FactorItem> items(3);
  for (FactorItem& item : items) item.matrix = matrix.view();
  items[0].cancelled = &wanted;
  items[1].cancelled = &cancelled;
  const PlanPtr plan = Cut(matrix.shape(), {4, 1});
  const std::vector<FactorOutcome> outcomes = solver().Factor(plan, items);
  EXPECT_TRUE(outcomes[0].status.ok()) << outcomes[0].status;
  EXPECT_EQ(outcomes[1].status.code(), absl::StatusCode::kCancelled) << outcomes[1].status;
  EXPECT_EQ(outcomes[1].factorization, nullptr);
  EXPECT_TRUE(outcomes[2].status.ok()) << outcomes[2].status;

  const Columns rhs(problems::RandomColumns(240, 2, 1), scalar());
  std::vector<Columns> x(3, rhs);
  std::vector<SolveItem> solves(3);
  for (size_t k = 0; k < 3; ++k) {
    solves[k] = {.factorization = outcomes[0].factorization,
                 .rhs = x[k].data(),
                 .solution = x[k].data(),
                 .num_rhs = 2};
    solves[k].cancelled = items[k].cancelled;
  }
  const std::vector<SolveOutcome> solved = solver().Solve(solves);
  EXPECT_TRUE(solved[0].status.ok()) << solved[0].status;
  EXPECT_EQ(solved[1].status.code(), absl::StatusCode::kCancelled) << solved[1].status;
  EXPECT_TRUE(solved[2].status.ok()) << solved[2].status;
  EXPECT_EQ(x[0], MustSolve(solver(), outcomes[2].factorization, rhs, 2));
  EXPECT_EQ(x[0], x[2]);
}

TEST_P(ResourcesTest, CancellingEveryItemGivesTheMemoryBack) {
  const HostMatrix matrix(problems::Mpc(30, 8, 1), scalar());
  const std::atomic<bool> cancelled = true;
  std::vector<FactorItem> items(2);
  for (FactorItem& item : items) {
    item.matrix = matrix.view();
    item.cancelled = &cancelled;
    item.keep_matrix = true;
  }
  for (const size_t count : {1, 2}) {
    for (const FactorOutcome& outcome :
         solver().Factor(Cut(matrix.shape(), {4}), std::span(items).first(count))) {
      EXPECT_EQ(outcome.status.code(), absl::StatusCode::kCancelled) << outcome.status;
    }
    EXPECT_EQ(Pool().used_bytes, 0);
  }
}

TEST_P(ResourcesTest, CancellingAtAnyMomentEitherFinishesOrCancels) {
  const HostMatrix matrix(problems::Mpc(60, 24, 1), scalar());
  const PlanPtr plan = Cut(matrix.shape(), {14, 4});
  const Columns rhs(problems::RandomColumns(matrix.shape().rows(), 2, 1), scalar());
  const auto reference = MustFactor(solver(), matrix, plan);
  for (int trial = 0; trial < 30; ++trial) {
    std::atomic<bool> cancelled = false;
    std::thread canceller([&cancelled, trial] {
      std::atomic<int> spin = 0;
      while (++spin < trial * 10000) {
      }
      cancelled = true;
    });
    FactorItem item;
    item.matrix = matrix.view();
    item.cancelled = &cancelled;
    const std::vector<FactorOutcome> outcomes = solver().Factor(plan, {&item, 1});
    canceller.join();
    if (!outcomes[0].status.ok()) {
      EXPECT_EQ(outcomes[0].status.code(), absl::StatusCode::kCancelled) << outcomes[0].status;
      EXPECT_FALSE(outcomes[0].not_positive_definite.has_value());
      continue;
    }
    EXPECT_EQ(MustSolve(solver(), outcomes[0].factorization, rhs, 2),
              MustSolve(solver(), reference, rhs, 2));
  }
}

TEST_P(ResourcesTest, RefusesCallsThatDoNotAgree) {
  const HostMatrix small(problems::Poisson(4, 3), scalar()),
      large(problems::Poisson(5, 3), scalar());
  EXPECT_EQ(FactorOne(solver(), small, Cut(large.shape(), {})).status.code(),
            absl::StatusCode::kInvalidArgument);
  const auto factorization = MustFactor(solver(), small);
  Columns rhs(problems::RandomColumns(12, 1, 1), scalar());
  for (const int64_t num_rhs : {0, -1}) {
    SolveItem item{.factorization = factorization, .rhs = rhs.data(), .solution = rhs.data()};
    item.num_rhs = num_rhs;
    EXPECT_EQ(solver().Solve({&item, 1})[0].status.code(), absl::StatusCode::kInvalidArgument);
  }
  EXPECT_EQ(solver().Plan({0, 3, scalar()}).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(solver().Plan({3, 0, scalar()}).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(solver().Solve({}).empty());
  EXPECT_TRUE(solver().Factor(Cut(small.shape(), {}), {}).empty());
}

TEST_P(ResourcesTest, LeavesTheRightHandSideAloneUnlessToldToOverwriteIt) {
  const HostMatrix matrix(problems::Mpc(8, 5, 1), scalar());
  const auto factorization = MustFactor(solver(), matrix);
  for (const int64_t num_rhs : {1, 2, 9}) {
    const Columns original(problems::RandomColumns(40, num_rhs, 1), scalar());
    Columns rhs = original, x(40 * num_rhs, scalar());
    SolveItem item{.factorization = factorization, .rhs = rhs.data(), .solution = x.data()};
    item.num_rhs = num_rhs;
    ASSERT_TRUE(solver().Solve({&item, 1})[0].status.ok());
    EXPECT_EQ(rhs, original);
    EXPECT_EQ(x, MustSolve(solver(), factorization, original, num_rhs));
  }
}

TEST(BackendRegistryTest, RefusesNamesThatItDoesNotKnow) {
  EXPECT_EQ(CreateBackend("abacus", {}).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(CreateBackend("", {}).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(BackendRegistryTest, RefusesMoreMemoryThanThereIs) {
  for (const std::string& backend : TestBackends()) {
    EXPECT_EQ(CreateBackend(backend, {.memory_bytes = int64_t{1} << 60}).status().code(),
              absl::StatusCode::kResourceExhausted);
  }
}

TEST(BackendRegistryTest, AutoTakesTheFirstThatRuns) {
  const auto backend = CreateBackend("auto", {.memory_bytes = 1 << 20});
  ASSERT_TRUE(backend.ok()) << backend.status();
  EXPECT_EQ((*backend)->device().backend, TestBackends().front());
  EXPECT_FALSE((*backend)->device().name.empty());
  EXPECT_GE((*backend)->device().parallelism, 1);
  EXPECT_EQ((*backend)->pool().stats().capacity_bytes, 1 << 20);
}

INSTANTIATE_TEST_SUITE_P(EveryTarget, ResourcesTest, ::testing::ValuesIn(Targets()), TargetName);

}  // namespace
}  // namespace blockd::test
