// The search for the first leading minor that is not positive: by few factorizations, whatever the
// matrix, in the memory of the one that failed, until somebody does not want it any more.
#include <gmock/gmock.h>

#include <atomic>
#include <cmath>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/engine/solver_fixture.h"
#include "tests/support/hooked_backend.h"

namespace blockd::test {
namespace {

using ::testing::HasSubstr;

// The costs of a device that takes many segments at a time.
CostModel ManyLanes() {
  CostModel costs;
  costs.lanes = 1024;
  costs.device_flops_per_second = costs.lanes * costs.lane_flops_per_second;
  costs.bytes_per_second = 1e13;
  costs.level_seconds = 1e-7;
  return costs;
}

std::unique_ptr<Backend> MakeBackend() {
  absl::StatusOr<std::unique_ptr<Backend>> backend =
      CreateBackend("cpu", {.memory_bytes = int64_t{256} << 20, .cpu_threads = 2});
  EXPECT_TRUE(backend.ok()) << backend.status();
  return *std::move(backend);
}

class BadMinorTest : public ::testing::TestWithParam<Scalar> {
 protected:
  static FactorOutcome FactorIn(Solver& solver, const HostMatrix& matrix,
                                const std::atomic<bool>* cancelled = nullptr) {
    absl::StatusOr<PlanPtr> plan = solver.Plan(matrix.shape());
    EXPECT_TRUE(plan.ok()) << plan.status();
    EXPECT_GT((*plan)->levels().size(), 2u) << (*plan)->DebugString();
    FactorItem item;
    item.matrix = matrix.view();
    item.cancelled = cancelled;
    return std::move(solver.Factor(*plan, {&item, 1})[0]);
  }
  // Returns how many factorizations it took after the one that failed.
  int64_t ExpectMinor(const HostMatrix& matrix, int64_t minor) {
    const int64_t before = gate_->factorizations();
    const FactorOutcome outcome = FactorIn(solver_, matrix);
    EXPECT_EQ(outcome.status.code(), absl::StatusCode::kInvalidArgument) << outcome.status;
    EXPECT_TRUE(outcome.not_positive_definite.has_value());
    if (outcome.not_positive_definite) {
      const NotPositiveDefinite& where = *outcome.not_positive_definite;
      EXPECT_EQ(where.minor, minor);
      EXPECT_EQ(where.block, (minor - 1) / matrix.shape().block_size);
      EXPECT_EQ(where.row, (minor - 1) % matrix.shape().block_size);
      EXPECT_TRUE(where.natural_order);
    }
    EXPECT_EQ(solver_.backend().pool().stats().used_bytes, 0);
    return gate_->factorizations() - before - 1;
  }
  static double Most(int64_t num_blocks) { return 3 * std::log2(num_blocks); }

  const std::shared_ptr<Gate> gate_ = std::make_shared<Gate>();
  Solver solver_{std::make_unique<HookedBackend>(MakeBackend(), ManyLanes(), gate_)};
};

// tridiag(-1, 2 - shift, -1): its first minor that fails is of about this order.
HostMatrix ShiftedLaplacian(int64_t num_blocks, int64_t order, Scalar scalar) {
  problems::Problem problem = problems::Poisson(num_blocks, 1);
  const double shift = std::pow(M_PI / (static_cast<double>(order) + 0.5), 2);
  for (double& diagonal : problem.diagonal) diagonal = 2 - shift;
  for (double& coupling : problem.coupling) coupling = -1;
  return HostMatrix(problem, scalar);
}

TEST_P(BadMinorTest, TheLastBlockOfALongChainTakesFewFactorizations) {
  const int64_t num_blocks = 100'003, n = 2;
  const problems::Problem problem = problems::Mpc(num_blocks, n, 1);
  for (const int64_t row : {0, 1}) {
    HostMatrix matrix(problem, GetParam());
    matrix.SetDiagonal(num_blocks - 1, row, row, -1);
    EXPECT_LE(ExpectMinor(matrix, (num_blocks - 1) * n + row + 1), 2);
  }
}

TEST_P(BadMinorTest, AnyBlockOfALongChainTakesFewFactorizations) {
  const int64_t num_blocks = 20'011, n = 3;
  const problems::Problem problem = problems::Mpc(num_blocks, n, 1);
  for (const int64_t block :
       {int64_t{0}, int64_t{1}, num_blocks / 3, num_blocks / 2, num_blocks - 100, num_blocks - 2}) {
    SCOPED_TRACE(testing::Message() << "block " << block);
    HostMatrix matrix(problem, GetParam());
    matrix.SetDiagonal(block, 1, 1, -1);
    EXPECT_LE(ExpectMinor(matrix, block * n + 2), 3);
  }
}

// No block is to blame: a matrix that is a little indefinite, all of it.
TEST_P(BadMinorTest, AMinorThatNoBlockIsToBlameForTakesLogarithmicallyMany) {
  const int64_t num_blocks = 20'000;
  for (const int64_t order : {5, 40, 3000, 12'345}) {
    // Rounding to float leaves too little of the shift of a higher order.
    if (GetParam() == Scalar::kFloat32 && order > 40) continue;
    SCOPED_TRACE(testing::Message() << "order " << order);
    const HostMatrix matrix = ShiftedLaplacian(num_blocks, order, GetParam());
    const int64_t minor = SequentialCholesky(matrix.view()).minor();
    ASSERT_NEAR(static_cast<double>(minor), static_cast<double>(order), 2);
    EXPECT_LE(static_cast<double>(ExpectMinor(matrix, minor)), Most(num_blocks));
  }
}

TEST_P(BadMinorTest, TheFirstOfManyBadBlocksIsNamed) {
  const int64_t num_blocks = 5000, n = 2;
  HostMatrix matrix(problems::Mpc(num_blocks, n, 1), GetParam());
  for (int64_t block = 777; block < num_blocks; block += 13) matrix.SetDiagonal(block, 0, 0, -1);
  EXPECT_LE(static_cast<double>(ExpectMinor(matrix, 777 * n + 1)), Most(num_blocks));
}

TEST_P(BadMinorTest, ASearchThatIsCancelledEnds) {
  const int64_t num_blocks = 20'000;
  const HostMatrix matrix = ShiftedLaplacian(num_blocks, 40, GetParam());
  const absl::StatusOr<PlanPtr> plan = solver_.Plan(matrix.shape());
  ASSERT_TRUE(plan.ok());
  const auto levels = static_cast<int64_t>((*plan)->levels().size());
  const int64_t all = ExpectMinor(matrix, SequentialCholesky(matrix.view()).minor());
  ASSERT_GE(all, 2);
  const int64_t before = gate_->factorizations();
  std::atomic<bool> cancelled = false;
  // The device stops at the first step of the search's first factorization.
  gate_->CloseAfter(levels);
  FactorOutcome outcome;
  std::thread caller([&] { outcome = FactorIn(solver_, matrix, &cancelled); });
  gate_->WaitForDevice();
  cancelled = true;
  gate_->Open();
  caller.join();
  EXPECT_EQ(outcome.status.code(), absl::StatusCode::kCancelled) << outcome.status;
  EXPECT_FALSE(outcome.not_positive_definite.has_value());
  EXPECT_EQ(gate_->factorizations() - before, 2);
  EXPECT_EQ(solver_.backend().pool().stats().used_bytes, 0);
}

TEST_P(BadMinorTest, ADeviceThatFailsInTheSearchSaysSo) {
  const HostMatrix matrix = ShiftedLaplacian(20'000, 40, GetParam());
  const absl::StatusOr<PlanPtr> plan = solver_.Plan(matrix.shape());
  ASSERT_TRUE(plan.ok());
  gate_->FailAfter(static_cast<int64_t>((*plan)->levels().size()));
  const FactorOutcome outcome = FactorIn(solver_, matrix);
  EXPECT_EQ(outcome.status.code(), absl::StatusCode::kInternal) << outcome.status;
  EXPECT_FALSE(outcome.not_positive_definite.has_value());
  EXPECT_EQ(solver_.backend().pool().stats().used_bytes, 0);
}

// Says of some factorizations that a pivot failed.
class DoubtingBackend : public HookedBackend {
 public:
  DoubtingBackend(std::unique_ptr<Backend> inner, std::vector<std::optional<PivotFailure>> doubts)
      : HookedBackend(std::move(inner), ManyLanes(), std::make_shared<Gate>()),
        doubts_(std::move(doubts)) {}
  absl::StatusOr<std::vector<FactorReport>> Factor(const FactorBatch& batch,
                                                   absl::FunctionRef<bool()> wanted) override {
    auto reports = HookedBackend::Factor(batch, wanted);
    if (reports.ok() && calls_ < doubts_.size()) (*reports)[0].failure = doubts_[calls_];
    blocks_.push_back(batch.plan->shape().num_blocks);
    ++calls_;
    return reports;
  }
  const std::vector<int64_t>& blocks() const { return blocks_; }

 private:
  const std::vector<std::optional<PivotFailure>> doubts_;
  std::vector<int64_t> blocks_;  // that each factorization had
  size_t calls_ = 0;
};

// Rounding may let one order of elimination fail and another succeed.
TEST_P(BadMinorTest, AFailureThatNobodyConfirmsIsTheAnswer) {
  const int64_t num_blocks = 3000;
  const HostMatrix matrix(problems::Mpc(num_blocks, 2, 1), GetParam());
  const std::vector<std::vector<std::optional<PivotFailure>>> all = {
      // Nothing fails again.
      {PivotFailure{2000, 1}},
      // Something fails before what has succeeded.
      {PivotFailure{2000, 1}, std::nullopt, PivotFailure{1500, 0}}};
  for (const auto& doubts : all) {
    auto made = std::make_unique<DoubtingBackend>(MakeBackend(), doubts);
    const DoubtingBackend& backend = *made;
    Solver solver(std::move(made));
    const FactorOutcome outcome = FactorIn(solver, matrix);
    ASSERT_TRUE(outcome.not_positive_definite.has_value()) << outcome.status;
    EXPECT_FALSE(outcome.not_positive_definite->natural_order);
    EXPECT_EQ(outcome.not_positive_definite->block, 2000);
    EXPECT_EQ(outcome.not_positive_definite->row, 1);
    EXPECT_EQ(outcome.not_positive_definite->minor, 4002);
    EXPECT_THAT(std::string(outcome.status.message()), HasSubstr("by rounding"));
    ASSERT_GE(backend.blocks().size(), 2u);
    EXPECT_EQ(backend.blocks()[1], 2001) << "the block that failed is looked at first";
    EXPECT_LE(static_cast<double>(backend.blocks().size()), 1 + Most(num_blocks));
  }
}

INSTANTIATE_TEST_SUITE_P(EveryScalar, BadMinorTest,
                         ::testing::Values(Scalar::kFloat64, Scalar::kFloat32),
                         [](const auto& info) {
                           return info.param == Scalar::kFloat64 ? "float64" : "float32";
                         });

}  // namespace
}  // namespace blockd::test
