// Arrowheads on every backend, against the whole matrix as one dense block.
#include "blockd/engine/arrowhead.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/engine/arrowhead_fixture.h"

namespace blockd::test {
namespace {

struct Sizes {
  int64_t num_blocks, n, p;
};
void PrintTo(const Sizes& sizes, std::ostream* out) {
  *out << "N " << sizes.num_blocks << " n " << sizes.n << " p " << sizes.p;
}

// One block and many, one row and many, borders of fewer and more rows than a block has, whole
// tiles of the device's kernels and what is left beside them.
const std::vector<Sizes> kSizes = {{1, 1, 1},   {1, 1, 5},  {1, 7, 3},  {9, 1, 1},
                                   {12, 1, 4},  {5, 3, 8},  {11, 5, 2}, {7, 8, 32},
                                   {6, 17, 33}, {4, 33, 3}, {3, 40, 41}};
const std::vector<Sizes> kLargeSizes = {{60, 4, 100}, {5, 48, 70}, {300, 1, 9}, {40, 8, 1}};

class ArrowheadTest : public SolverTest {
 protected:
  std::shared_ptr<const Arrowhead> MustBorder(HostArrowhead& host, PlanPtr plan = nullptr) {
    BorderOutcome outcome =
        solver().FactorBorder(host.Item(MustFactor(solver(), host.chain, std::move(plan))));
    EXPECT_TRUE(outcome.status.ok()) << outcome.status;
    EXPECT_NE(outcome.arrowhead, nullptr);
    EXPECT_FALSE(outcome.not_positive_definite.has_value());
    return outcome.arrowhead;
  }
  Columns MustSolve(const std::shared_ptr<const Arrowhead>& arrowhead, Columns columns,
                    int64_t num_rhs) {
    ArrowheadSolveItem item;
    item.arrowhead = arrowhead;
    item.rhs = item.solution = columns.data();
    item.num_rhs = num_rhs;
    const absl::Status status = solver().SolveArrowhead(item);
    EXPECT_TRUE(status.ok()) << status;
    return columns;
  }
  Columns RandomRhs(const HostArrowhead& host, int64_t num_rhs) const {
    return {problems::RandomColumns(host.rows(), num_rhs, 3), scalar()};
  }
  // The goal for backward errors, as a chain has it of n rows a block; here the border comes on
  // top.
  double Bound(const Arrowhead& arrowhead) const {
    Shape shape = arrowhead.shape();
    shape.block_size += arrowhead.border_rows();
    return BackwardErrorBound(shape, arrowhead.chain().conditioning().growth);
  }

  void ExpectSolves(HostArrowhead& host, PlanPtr plan, int64_t num_rhs) {
    const auto arrowhead = MustBorder(host, std::move(plan));
    ASSERT_NE(arrowhead, nullptr);
    const Columns rhs = RandomRhs(host, num_rhs);
    const Columns x = MustSolve(arrowhead, rhs, num_rhs);
    const double error = BackwardError(host.Whole().view(), x.values(), rhs.values());
    EXPECT_LE(error, Bound(*arrowhead));
    largest_ = LargerOrNaN(error / Bound(*arrowhead), largest_);
  }
  void TearDown() override {
    RecordProperty("largest_error", std::to_string(largest_));
    SolverTest::TearDown();
  }

  double largest_ = 0;
};

TEST_P(ArrowheadTest, SolvesEverySize) {
  for (const Sizes& sizes : kSizes) {
    SCOPED_TRACE(testing::PrintToString(sizes));
    HostArrowhead host = HostArrowhead::Random(sizes.num_blocks, sizes.n, sizes.p, scalar());
    for (const int64_t num_rhs : {1, 3, 35}) ExpectSolves(host, nullptr, num_rhs);
  }
}

TEST_P(ArrowheadTest, SolvesLongChainsAndWideBorders) {
  for (const Sizes& sizes : kLargeSizes) {
    SCOPED_TRACE(testing::PrintToString(sizes));
    HostArrowhead host = HostArrowhead::Random(sizes.num_blocks, sizes.n, sizes.p, scalar());
    ExpectSolves(host, nullptr, 2);
  }
}

TEST_P(ArrowheadTest, SolvesWithEveryNumberOfSeparators) {
  HostArrowhead host = HostArrowhead::Random(11, 6, 4, scalar());
  for (const std::vector<int64_t>& separators :
       std::vector<std::vector<int64_t>>{{}, {1}, {2}, {5}, {5, 2}, {3, 1}}) {
    ExpectSolves(host, Cut(host.chain.shape(), separators), 5);
  }
}

TEST_P(ArrowheadTest, HasTheLogDeterminantOfTheWhole) {
  for (const Sizes& sizes : kSizes) {
    SCOPED_TRACE(testing::PrintToString(sizes));
    HostArrowhead host = HostArrowhead::Random(sizes.num_blocks, sizes.n, sizes.p, scalar());
    const auto arrowhead = MustBorder(host);
    ASSERT_NE(arrowhead, nullptr);
    const absl::StatusOr<double> found = solver().LogDeterminant(*arrowhead);
    ASSERT_TRUE(found.ok()) << found.status();
    // What the logarithms of so many pivots move by, each by the bound times the condition.
    const double slack = static_cast<double>(host.rows()) * 100 * Bound(*arrowhead);
    EXPECT_NEAR(*found, DenseCholesky(host.Whole().view()).LogDeterminant(), slack);
  }
}

// The same numbers as the whole in one dense block: what a border at the end of a chain of one
// block more is.
TEST_P(ArrowheadTest, NamesThePivotOfTheBorderThatFails) {
  for (const int64_t row : {0, 3, 6}) {
    HostArrowhead host = HostArrowhead::Random(5, 4, 7, scalar());
    std::vector<double> corner = host.corner.values();
    corner[row * 8] -= 1e3;
    host.corner = Columns(corner, scalar());
    const BorderOutcome outcome =
        solver().FactorBorder(host.Item(MustFactor(solver(), host.chain)));
    EXPECT_EQ(outcome.status.code(), absl::StatusCode::kInvalidArgument) << outcome.status;
    EXPECT_EQ(outcome.arrowhead, nullptr);
    ASSERT_TRUE(outcome.not_positive_definite.has_value());
    EXPECT_EQ(outcome.not_positive_definite->block, 5);
    EXPECT_EQ(outcome.not_positive_definite->row, row);
    EXPECT_EQ(outcome.not_positive_definite->minor, 20 + row + 1);
    EXPECT_TRUE(outcome.not_positive_definite->natural_order);
    EXPECT_EQ(outcome.not_positive_definite->minor, DenseCholesky(host.Whole().view()).minor);
  }
}

// A chain that is not positive definite has no factorization to put a border to.
TEST_P(ArrowheadTest, NamesTheBlockOfTheChainThatFails) {
  HostArrowhead host = HostArrowhead::Random(5, 4, 2, scalar());
  host.chain.SetDiagonal(3, 2, 2, -1);
  const FactorOutcome outcome = FactorOne(solver(), host.chain);
  ASSERT_TRUE(outcome.not_positive_definite.has_value());
  EXPECT_EQ(outcome.not_positive_definite->minor, DenseCholesky(host.Whole().view()).minor);
}

TEST_P(ArrowheadTest, FailsAtNumbersThatAreNone) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const double infinity = std::numeric_limits<double>::infinity();
  for (const double bad : {nan, infinity, -infinity}) {
    for (const bool in_corner : {false, true}) {
      HostArrowhead host = HostArrowhead::Random(5, 4, 3, scalar());
      Columns& columns = in_corner ? host.corner : host.border;
      std::vector<double> values = columns.values();
      values[in_corner ? 4 : 25] = bad;  // of row 1
      columns = Columns(values, scalar());
      const BorderOutcome outcome =
          solver().FactorBorder(host.Item(MustFactor(solver(), host.chain)));
      EXPECT_EQ(outcome.status.code(), absl::StatusCode::kInvalidArgument);
      ASSERT_TRUE(outcome.not_positive_definite.has_value());
      EXPECT_EQ(outcome.not_positive_definite->row, 1);
    }
  }
}

// Scaling by powers of two moves no bit of the answer but its exponent.
TEST_P(ArrowheadTest, IsIndifferentToTheScaleOfTheBorder) {
  for (const double scale : {std::ldexp(1, -9), std::ldexp(1, 9)}) {
    HostArrowhead plain = HostArrowhead::Random(6, 5, 4, scalar());
    HostArrowhead scaled = HostArrowhead::Random(6, 5, 4, scalar(), 1, scale);
    const auto expected = MustBorder(plain), found = MustBorder(scaled);
    ASSERT_TRUE(expected && found);
    const std::vector<double> rhs = RandomRhs(plain, 1).values();
    std::vector<double> scaled_rhs = rhs;
    for (int64_t r = 0; r < 4; ++r) scaled_rhs[30 + r] *= std::pow(scale, r);
    const std::vector<double> x = MustSolve(expected, Columns(rhs, scalar()), 1).values();
    std::vector<double> y = MustSolve(found, Columns(scaled_rhs, scalar()), 1).values();
    for (int64_t r = 0; r < 4; ++r) y[30 + r] *= std::pow(scale, r);
    EXPECT_EQ(x, y);
  }
}

// S down to the rounding of C: a solution of what is nearly singular, or a pivot that fails.
TEST_P(ArrowheadTest, SolvesOrRefusesWhatIsNearlySingular) {
  for (double slack = 1; slack > 0.01 * Epsilon(scalar()); slack /= 8) {
    SCOPED_TRACE(slack);
    HostArrowhead host = HostArrowhead::Random(6, 5, 6, scalar(), slack);
    const BorderOutcome outcome =
        solver().FactorBorder(host.Item(MustFactor(solver(), host.chain)));
    if (!outcome.status.ok()) {
      EXPECT_TRUE(outcome.not_positive_definite.has_value()) << outcome.status;
      // Of the corner's own size, which B inv(A) B' gives it, only its rounding is left then.
      EXPECT_LT(slack, 1e5 * Epsilon(scalar()));
      continue;
    }
    const Columns rhs = RandomRhs(host, 2);
    const Columns x = MustSolve(outcome.arrowhead, rhs, 2);
    const double error = BackwardError(host.Whole().view(), x.values(), rhs.values());
    EXPECT_LE(error, Bound(*outcome.arrowhead));
    largest_ = LargerOrNaN(error / Bound(*outcome.arrowhead), largest_);
  }
}

// Rows of the border that are nearly rows of the chain, and nearly one another.
TEST_P(ArrowheadTest, SolvesBordersThatAreNearlyDependent) {
  HostArrowhead host = HostArrowhead::Random(8, 6, 5, scalar());
  const int64_t rows = host.chain.shape().rows();
  const std::vector<double> dense = AssembleDense(host.chain.view());
  std::vector<double> border = host.border.values(), corner = host.corner.values();
  const double nearly = 1 + 64 * Epsilon(scalar());
  for (int64_t r = 0; r < 5; ++r) {
    // Row 7 of A; the corner a little more than A(7,7), all alike.
    for (int64_t k = 0; k < rows; ++k) border[k + r * rows] = dense[k + 7 * rows];
    for (int64_t i = r; i < 5; ++i) {
      corner[i + r * 5] = dense[7 * rows + 7] * (i == r ? 1 + 32 * 64 * (nearly - 1) : 1);
    }
  }
  host.border = Columns(border, scalar());
  host.corner = Columns(corner, scalar());
  ExpectSolves(host, nullptr, 3);
}

TEST_P(ArrowheadTest, GivesAColumnTheSameBitsWhateverStandsBesideIt) {
  for (const Sizes& sizes : {Sizes{11, 5, 3}, Sizes{4, 33, 35}}) {
    HostArrowhead host = HostArrowhead::Random(sizes.num_blocks, sizes.n, sizes.p, scalar());
    const auto arrowhead = MustBorder(host), again = MustBorder(host);
    ASSERT_TRUE(arrowhead && again);
    EXPECT_EQ(arrowhead->corner(), again->corner());
    constexpr int64_t kColumns = 37;
    const Columns rhs = RandomRhs(host, kColumns);
    const Columns all = MustSolve(arrowhead, rhs, kColumns);
    EXPECT_EQ(all, MustSolve(again, rhs, kColumns));
    const std::vector<double> b = rhs.values(), x = all.values();
    for (const int64_t some : {1, 2, 5, 9, 36}) {
      const auto end = some * host.rows();
      const Columns part(std::vector<double>(b.begin(), b.begin() + end), scalar());
      EXPECT_EQ(MustSolve(arrowhead, part, some).values(),
                std::vector<double>(x.begin(), x.begin() + end));
    }
  }
}

TEST_P(ArrowheadTest, GivesTheSameBitsWithAnyNumberOfThreads) {
  if (GetParam().backend != "cpu") return;  // others have none
  HostArrowhead host = HostArrowhead::Random(40, 7, 35, scalar());
  const PlanPtr plan = Cut(host.chain.shape(), {9, 3});
  const auto arrowhead = MustBorder(host, plan);
  const Columns rhs = RandomRhs(host, 3);
  const Columns x = MustSolve(arrowhead, rhs, 3);
  for (const int32_t threads : {1, 3, 8}) {
    const auto other = MakeSolver("cpu", {.cpu_threads = threads});
    const BorderOutcome outcome =
        other->FactorBorder(host.Item(MustFactor(*other, host.chain, plan)));
    ASSERT_TRUE(outcome.status.ok()) << outcome.status;
    EXPECT_EQ(outcome.arrowhead->corner(), arrowhead->corner());
    Columns columns = rhs;
    ArrowheadSolveItem item{.arrowhead = outcome.arrowhead, .rhs = columns.data()};
    item.solution = columns.data();
    item.num_rhs = 3;
    ASSERT_TRUE(other->SolveArrowhead(item).ok());
    EXPECT_EQ(columns, x);
  }
}

TEST_P(ArrowheadTest, LeavesTheRightHandSideAndTheChainAsTheyAre) {
  HostArrowhead host = HostArrowhead::Random(8, 5, 3, scalar());
  const auto arrowhead = MustBorder(host);
  ASSERT_NE(arrowhead, nullptr);
  const Columns of_chain(problems::RandomColumns(40, 2, 3), scalar());
  const Columns before = test::MustSolve(solver(), arrowhead->shared_chain(), of_chain, 2);
  const Columns original = RandomRhs(host, 4);
  Columns rhs = original, x(4 * host.rows(), scalar());
  ArrowheadSolveItem item{.arrowhead = arrowhead, .rhs = rhs.data(), .solution = x.data()};
  item.num_rhs = 4;
  ASSERT_TRUE(solver().SolveArrowhead(item, Track::kFactor).ok());
  EXPECT_EQ(rhs, original);
  EXPECT_EQ(x, MustSolve(arrowhead, original, 4));
  EXPECT_EQ(test::MustSolve(solver(), arrowhead->shared_chain(), of_chain, 2), before);
}

// Two borders of one chain.
TEST_P(ArrowheadTest, SharesAChain) {
  HostArrowhead one = HostArrowhead::Random(8, 5, 3, scalar()),
                other = HostArrowhead::Random(8, 5, 9, scalar());
  const auto chain = MustFactor(solver(), one.chain);
  for (HostArrowhead* host : {&one, &other}) {
    const BorderOutcome outcome = solver().FactorBorder(host->Item(chain));
    ASSERT_TRUE(outcome.status.ok()) << outcome.status;
    const Columns rhs = RandomRhs(*host, 1);
    const Columns x = MustSolve(outcome.arrowhead, rhs, 1);
    EXPECT_LE(BackwardError(host->Whole().view(), x.values(), rhs.values()),
              Bound(*outcome.arrowhead));
  }
}

TEST_P(ArrowheadTest, RefusesWhatIsNoBorder) {
  HostArrowhead host = HostArrowhead::Random(4, 3, 2, scalar());
  const auto chain = MustFactor(solver(), host.chain);
  const auto code = [&](const BorderItem& item) {
    return solver().FactorBorder(item).status.code();
  };
  constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
  for (const int64_t rows : {int64_t{0}, int64_t{-1}, kMaxBorderRows + 1, int64_t{1} << 62}) {
    BorderItem item = host.Item(chain);
    item.rows = rows;
    EXPECT_EQ(code(item), kInvalid);
  }
  BorderItem item = host.Item(nullptr);
  EXPECT_EQ(code(item), kInvalid);
  item = host.Item(chain);
  item.border = nullptr;
  EXPECT_EQ(code(item), kInvalid);
  item = host.Item(chain);
  item.corner = nullptr;
  EXPECT_EQ(code(item), kInvalid);
}

TEST_P(ArrowheadTest, RefusesSolvesThatItDoesNotHave) {
  HostArrowhead host = HostArrowhead::Random(4, 3, 2, scalar());
  const auto arrowhead = MustBorder(host);
  Columns rhs = RandomRhs(host, 1);
  const Columns original = rhs;
  const auto code = [&](int64_t num_rhs, bool residual, int32_t refinements) {
    ArrowheadSolveItem item{.arrowhead = arrowhead, .rhs = rhs.data(), .solution = rhs.data()};
    item.num_rhs = num_rhs;
    item.residual = residual;
    item.max_refinements = refinements;
    return solver().SolveArrowhead(item).code();
  };
  EXPECT_EQ(code(0, false, 0), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code(-1, false, 0), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code(int64_t{1} << 61, false, 0), absl::StatusCode::kOutOfRange);
  EXPECT_EQ(code(1, true, 0), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code(1, false, 1), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(rhs, original);
}

TEST_P(ArrowheadTest, IsCancelled) {
  HostArrowhead host = HostArrowhead::Random(4, 3, 2, scalar());
  const auto arrowhead = MustBorder(host);
  const std::atomic<bool> cancelled = true;
  BorderItem item = host.Item(arrowhead->shared_chain());
  item.cancelled = &cancelled;
  EXPECT_EQ(solver().FactorBorder(item).status.code(), absl::StatusCode::kCancelled);
  Columns rhs = RandomRhs(host, 1);
  ArrowheadSolveItem solve{.arrowhead = arrowhead, .rhs = rhs.data(), .solution = rhs.data()};
  solve.cancelled = &cancelled;
  EXPECT_EQ(solver().SolveArrowhead(solve).code(), absl::StatusCode::kCancelled);
}

INSTANTIATE_TEST_SUITE_P(EveryTarget, ArrowheadTest, ::testing::ValuesIn(Targets()), TargetName);

}  // namespace
}  // namespace blockd::test
