// The device memory that calls on arrowheads take, none of which stays taken where they fail.
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "tests/engine/border/arrowhead_fixture.h"
#include "tests/engine/solver/inverse_fixture.h"
#include "tests/support/hooked_backend.h"

namespace blockd::test {
namespace {

constexpr int64_t kBlocks = 24, kRows = 6, kBorder = 5, kColumns = 3;

class ArrowheadResourcesTest : public ::testing::TestWithParam<Target> {
 protected:
  void SetUp() override {
    const BackendOptions options{.memory_bytes = int64_t{64} << 20, .cpu_threads = 2};
    absl::StatusOr<std::unique_ptr<Backend>> backend = CreateBackend(GetParam().backend, options);
    ASSERT_TRUE(backend.ok()) << backend.status();
    const CostModel costs = (*backend)->costs(host_.shape());
    solver_ = std::make_unique<Solver>(
        std::make_unique<HookedBackend>(*std::move(backend), costs, gate_));
    plan_ = Cut(host_.shape(), {7, 2});
    arrowhead_ = MustFactor(*solver_, host_, plan_);
    ASSERT_NE(arrowhead_, nullptr);
  }
  static Scalar scalar() { return GetParam().scalar; }
  PoolStats Pool() { return solver_->backend().pool().stats(); }

  absl::Status Factor(const std::atomic<bool>* cancelled = nullptr) {
    FactorItem item;
    item.matrix = host_.view();
    item.cancelled = cancelled;
    const FactorOutcome outcome = std::move(solver_->Factor(plan_, {&item, 1})[0]);
    EXPECT_EQ(outcome.status.ok(), outcome.factorization != nullptr);
    EXPECT_FALSE(outcome.not_positive_definite.has_value());
    return outcome.status;
  }
  absl::Status Solve(const std::atomic<bool>* cancelled = nullptr) {
    Columns columns(problems::RandomColumns(host_.form().rows(), kColumns, 3), scalar());
    SolveItem item{.factorization = arrowhead_, .rhs = columns.data()};
    item.solution = columns.data();
    item.num_rhs = kColumns;
    item.cancelled = cancelled;
    return solver_->Solve({&item, 1})[0].status;
  }
  absl::Status Invert(const std::atomic<bool>* cancelled = nullptr) {
    InverseItem item = All(arrowhead_);
    item.cancelled = cancelled;
    return test::Invert(*solver_, item).status;
  }
  using Call = std::function<absl::Status(const std::atomic<bool>*)>;
  std::vector<Call> Calls() {
    return {[this](auto* cancelled) { return Factor(cancelled); },
            [this](auto* cancelled) { return Solve(cancelled); },
            [this](auto* cancelled) { return Invert(cancelled); }};
  }

  const std::shared_ptr<Gate> gate_ = std::make_shared<Gate>();
  const HostMatrix host_ = RandomArrowhead(kBlocks, kRows, kBorder, scalar());
  std::unique_ptr<Solver> solver_;
  PlanPtr plan_;
  std::shared_ptr<const Factorization> arrowhead_;

  void TearDown() override {
    arrowhead_.reset();
    if (solver_ == nullptr) return;
    EXPECT_EQ(Pool().used_bytes, 0);
  }
};

TEST_P(ArrowheadResourcesTest, LeavesNothingWhereMemoryRunsOut) {
  const int64_t held = Pool().used_bytes;
  for (const Call& call : Calls()) {
    int64_t allocations = 0;
    for (;; ++allocations) {
      gate_->EmptyPoolAfter(allocations, 1000);
      const absl::Status status = call(nullptr);
      const bool was_empty = gate_->was_empty();
      gate_->EmptyPoolAfter(int64_t{1} << 40);
      ASSERT_EQ(Pool().used_bytes, held);
      if (!was_empty) {
        EXPECT_TRUE(status.ok()) << status;
        break;
      }
      EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
    }
    EXPECT_GE(allocations, 1);
  }
}

TEST_P(ArrowheadResourcesTest, LeavesNothingWhereAnyStepFails) {
  const int64_t held = Pool().used_bytes;
  for (const Call& call : Calls()) {
    int64_t steps = 0;
    for (;; ++steps) {
      gate_->FailAfter(steps);
      const absl::Status status = call(nullptr);
      const bool failed = gate_->failed();
      gate_->FailAfter(int64_t{1} << 40);
      ASSERT_EQ(Pool().used_bytes, held);
      if (!failed) {
        EXPECT_TRUE(status.ok()) << status;
        break;
      }
      EXPECT_EQ(status.code(), absl::StatusCode::kInternal) << status;
      EXPECT_TRUE(absl::StrContains(status.message(), "fell off")) << status;
    }
    EXPECT_GE(steps, 4);
  }
}

// A gate before each level: cancelled there, the call ends with CANCELLED.
TEST_P(ArrowheadResourcesTest, CanBeCancelledOnItsWay) {
  const int64_t held = Pool().used_bytes;
  for (const Call& call : Calls()) {
    const int64_t before = gate_->passes();
    ASSERT_TRUE(call(nullptr).ok());
    const int64_t passes = gate_->passes() - before;
    for (int64_t pass = 0; pass < passes; ++pass) {
      std::atomic<bool> cancelled = false;
      gate_->CloseAfter(pass);
      std::thread canceller([&] {
        gate_->WaitForDevice();
        cancelled = true;
        gate_->Open();
      });
      EXPECT_EQ(call(&cancelled).code(), absl::StatusCode::kCancelled);
      canceller.join();
      ASSERT_EQ(Pool().used_bytes, held);
    }
  }
}

TEST_P(ArrowheadResourcesTest, TakesWhatTheBoundsSay) {
  const int64_t border = Border::Bytes(host_.shape(), kBorder);
  EXPECT_EQ(arrowhead_->border().bytes(), border);
  EXPECT_EQ(arrowhead_->bytes(), plan_->factor_bytes() + border);
  const int64_t inverse =
      solver_->InverseWorkspaceBytes(*plan_, InverseParts::kWithCouplings, 0, kBlocks, kBorder);
  const int64_t factor = MemoryPool::Rounded(plan_->factor_bytes()) + MemoryPool::Rounded(border) +
                         solver_->FactorWorkspaceBytes(*plan_, host_.form(), 1);
  const std::vector<int64_t> bounds = {
      factor, solver_->SolveWorkspaceBytes(*plan_, kColumns, false, kBorder), inverse};
  const std::vector<Call> calls = Calls();
  // Takes the gap in the pool that the factored chains left.
  const absl::StatusOr<DeviceBuffer> hole =
      solver_->backend().pool().Allocate(Pool().free_bytes - Pool().largest_free_bytes);
  ASSERT_TRUE(hole.ok()) << hole.status();
  for (size_t i = 0; i < calls.size(); ++i) {
    for (const int64_t missing : {int64_t{0}, MemoryPool::kAlignment}) {
      absl::StatusOr<DeviceBuffer> wall =
          solver_->backend().pool().Allocate(Pool().largest_free_bytes - bounds[i] + missing);
      ASSERT_TRUE(wall.ok()) << wall.status();
      const absl::Status status = calls[i](nullptr);
      // A CPU writes what it inverts where it is wanted.
      const bool bounded_above = i == 2;
      if (missing == 0) {
        EXPECT_TRUE(status.ok()) << i << ": " << status;
      } else if (!bounded_above) {
        EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << i;
      }
    }
  }
}

// Solves beside factorizations of borders: each on its track.
TEST_P(ArrowheadResourcesTest, WorksOnBothTracksAtOnce) {
  const std::vector<Call> calls = Calls();
  std::vector<std::thread> threads;
  for (const Call& call : calls) {
    threads.emplace_back([&call] {
      for (int trial = 0; trial < 5; ++trial) EXPECT_TRUE(call(nullptr).ok());
    });
  }
  for (std::thread& thread : threads) thread.join();
}

INSTANTIATE_TEST_SUITE_P(EveryTarget, ArrowheadResourcesTest, ::testing::ValuesIn(Targets()),
                         TargetName);

}  // namespace
}  // namespace blockd::test
