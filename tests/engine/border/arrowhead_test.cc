// Arrowheads on every backend, against the whole matrix as one dense block.
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

#include "blockd/engine/samples.h"
#include "tests/engine/border/arrowhead_fixture.h"

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
  std::shared_ptr<Factorization> MustBorder(const HostMatrix& host, PlanPtr plan = nullptr) {
    return MustFactor(solver(), host, std::move(plan));
  }
  Columns MustSolve(const std::shared_ptr<const Factorization>& arrowhead, Columns columns,
                    int64_t num_rhs) {
    return test::MustSolve(solver(), arrowhead, std::move(columns), num_rhs);
  }
  Columns RandomRhs(const HostMatrix& host, int64_t num_rhs) const {
    return {problems::RandomColumns(host.form().rows(), num_rhs, 3), scalar()};
  }
  void ExpectSolves(const HostMatrix& host, PlanPtr plan, int64_t num_rhs) {
    const auto arrowhead = MustBorder(host, std::move(plan));
    ASSERT_NE(arrowhead, nullptr);
    const Columns rhs = RandomRhs(host, num_rhs);
    const Columns x = MustSolve(arrowhead, rhs, num_rhs);
    const double error = BackwardError(Whole(host).view(), x.values(), rhs.values());
    EXPECT_LE(error, arrowhead->backward_error_bound());
    largest_ = LargerOrNaN(error / arrowhead->backward_error_bound(), largest_);
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
    HostMatrix host = RandomArrowhead(sizes.num_blocks, sizes.n, sizes.p, scalar());
    for (const int64_t num_rhs : {1, 3, 35}) ExpectSolves(host, nullptr, num_rhs);
  }
}

TEST_P(ArrowheadTest, SolvesLongChainsAndWideBorders) {
  for (const Sizes& sizes : kLargeSizes) {
    SCOPED_TRACE(testing::PrintToString(sizes));
    HostMatrix host = RandomArrowhead(sizes.num_blocks, sizes.n, sizes.p, scalar());
    ExpectSolves(host, nullptr, 2);
  }
}

TEST_P(ArrowheadTest, SolvesWithEveryNumberOfSeparators) {
  HostMatrix host = RandomArrowhead(11, 6, 4, scalar());
  for (const std::vector<int64_t>& separators :
       std::vector<std::vector<int64_t>>{{}, {1}, {2}, {5}, {5, 2}, {3, 1}}) {
    ExpectSolves(host, Cut(host.shape(), separators), 5);
  }
}

TEST_P(ArrowheadTest, HasTheLogDeterminantOfTheWhole) {
  for (const Sizes& sizes : kSizes) {
    SCOPED_TRACE(testing::PrintToString(sizes));
    HostMatrix host = RandomArrowhead(sizes.num_blocks, sizes.n, sizes.p, scalar());
    const auto arrowhead = MustBorder(host);
    ASSERT_NE(arrowhead, nullptr);
    const absl::StatusOr<double> found = solver().LogDeterminant(*arrowhead);
    ASSERT_TRUE(found.ok()) << found.status();
    // The logarithms of so many pivots move by this, each by the bound times the condition.
    const double slack =
        static_cast<double>(host.form().rows()) * 100 * arrowhead->backward_error_bound();
    EXPECT_NEAR(*found, DenseCholesky(host.view()).LogDeterminant(), slack);
  }
}

// The same numbers as the whole in one dense block: what a border at the end of a chain of one
// block more is.
TEST_P(ArrowheadTest, NamesThePivotOfTheBorderThatFails) {
  for (const int64_t row : {0, 3, 6}) {
    HostMatrix host = RandomArrowhead(5, 4, 7, scalar());
    std::vector<double> corner = host.corner();
    corner[row * 8] -= 1e3;
    host.SetBorder(7, host.border(), corner);
    const FactorOutcome outcome = FactorOne(solver(), host);
    EXPECT_EQ(outcome.status.code(), absl::StatusCode::kInvalidArgument) << outcome.status;
    EXPECT_EQ(outcome.factorization, nullptr);
    ASSERT_TRUE(outcome.not_positive_definite.has_value());
    EXPECT_EQ(outcome.not_positive_definite->block, 5);
    EXPECT_EQ(outcome.not_positive_definite->row, row);
    EXPECT_EQ(outcome.not_positive_definite->minor, 20 + row + 1);
    EXPECT_TRUE(outcome.not_positive_definite->natural_order);
    EXPECT_EQ(outcome.not_positive_definite->minor, DenseCholesky(host.view()).minor);
  }
}

// A chain that is not positive definite has no factorization to put a border to.
TEST_P(ArrowheadTest, NamesTheBlockOfTheChainThatFails) {
  HostMatrix host = RandomArrowhead(5, 4, 2, scalar());
  host.SetDiagonal(3, 2, 2, -1);
  const FactorOutcome outcome = FactorOne(solver(), host);
  ASSERT_TRUE(outcome.not_positive_definite.has_value());
  EXPECT_EQ(outcome.not_positive_definite->minor, DenseCholesky(host.view()).minor);
}

TEST_P(ArrowheadTest, FailsAtNumbersThatAreNone) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const double infinity = std::numeric_limits<double>::infinity();
  for (const double bad : {nan, infinity, -infinity}) {
    for (const bool in_corner : {false, true}) {
      HostMatrix host = RandomArrowhead(5, 4, 3, scalar());
      std::vector<double> border = host.border(), corner = host.corner();
      (in_corner ? corner[4] : border[25]) = bad;  // of row 1
      host.SetBorder(3, border, corner);
      const FactorOutcome outcome = FactorOne(solver(), host);
      EXPECT_EQ(outcome.status.code(), absl::StatusCode::kInvalidArgument);
      ASSERT_TRUE(outcome.not_positive_definite.has_value());
      EXPECT_EQ(outcome.not_positive_definite->row, 1);
    }
  }
}

// Scaling by powers of two moves no bit of the answer but its exponent.
TEST_P(ArrowheadTest, IsIndifferentToTheScaleOfTheBorder) {
  for (const double scale : {std::ldexp(1, -9), std::ldexp(1, 9)}) {
    HostMatrix plain = RandomArrowhead(6, 5, 4, scalar());
    HostMatrix scaled = RandomArrowhead(6, 5, 4, scalar(), 1, scale);
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
    HostMatrix host = RandomArrowhead(6, 5, 6, scalar(), slack);
    const FactorOutcome outcome = FactorOne(solver(), host);
    if (!outcome.status.ok()) {
      EXPECT_TRUE(outcome.not_positive_definite.has_value()) << outcome.status;
      // S is then only the rounding of the corner, which has the size of B inv(A) B'.
      EXPECT_LT(slack, 1e5 * Epsilon(scalar()));
      continue;
    }
    const Columns rhs = RandomRhs(host, 2);
    const Columns x = MustSolve(outcome.factorization, rhs, 2);
    const double error = BackwardError(Whole(host).view(), x.values(), rhs.values());
    EXPECT_LE(error, outcome.factorization->backward_error_bound());
    largest_ = LargerOrNaN(error / outcome.factorization->backward_error_bound(), largest_);
  }
}

// Rows of the border that are nearly rows of the chain, and nearly one another.
TEST_P(ArrowheadTest, SolvesBordersThatAreNearlyDependent) {
  HostMatrix host = RandomArrowhead(8, 6, 5, scalar());
  const int64_t rows = host.shape().rows();
  const std::vector<double> dense = AssembleDense(host.view());
  std::vector<double> border = host.border(), corner = host.corner();
  const double nearly = 1 + 64 * Epsilon(scalar());
  for (int64_t r = 0; r < 5; ++r) {
    // Row 7 of A; the corner a little more than A(7,7), all alike.
    for (int64_t k = 0; k < rows; ++k) border[k + r * rows] = dense[k + 7 * (rows + 5)];
    for (int64_t i = r; i < 5; ++i) {
      corner[i + r * 5] = dense[7 * (rows + 5) + 7] * (i == r ? 1 + 32 * 64 * (nearly - 1) : 1);
    }
  }
  host.SetBorder(5, border, corner);
  ExpectSolves(host, nullptr, 3);
}

TEST_P(ArrowheadTest, GivesAColumnTheSameBitsWhateverStandsBesideIt) {
  for (const Sizes& sizes : {Sizes{11, 5, 3}, Sizes{4, 33, 35}}) {
    HostMatrix host = RandomArrowhead(sizes.num_blocks, sizes.n, sizes.p, scalar());
    const auto arrowhead = MustBorder(host), again = MustBorder(host);
    ASSERT_TRUE(arrowhead && again);
    EXPECT_EQ(arrowhead->border().log_determinant(), again->border().log_determinant());
    constexpr int64_t kColumns = 37;
    const Columns rhs = RandomRhs(host, kColumns);
    const Columns all = MustSolve(arrowhead, rhs, kColumns);
    EXPECT_EQ(all, MustSolve(again, rhs, kColumns));
    const std::vector<double> b = rhs.values(), x = all.values();
    for (const int64_t some : {1, 2, 5, 9, 36}) {
      const auto end = some * host.form().rows();
      const Columns part(std::vector<double>(b.begin(), b.begin() + end), scalar());
      EXPECT_EQ(MustSolve(arrowhead, part, some).values(),
                std::vector<double>(x.begin(), x.begin() + end));
    }
  }
}

TEST_P(ArrowheadTest, GivesTheSameBitsWithAnyNumberOfThreads) {
  if (GetParam().backend != "cpu") return;  // others have none
  HostMatrix host = RandomArrowhead(40, 7, 35, scalar());
  const PlanPtr plan = Cut(host.shape(), {9, 3});
  const auto arrowhead = MustBorder(host, plan);
  const Columns rhs = RandomRhs(host, 3);
  const Columns x = MustSolve(arrowhead, rhs, 3);
  for (const int32_t threads : {1, 3, 8}) {
    const auto other = MakeSolver("cpu", {.cpu_threads = threads});
    const auto same = MustFactor(*other, host, plan);
    ASSERT_NE(same, nullptr);
    EXPECT_EQ(same->border().log_determinant(), arrowhead->border().log_determinant());
    EXPECT_EQ(test::MustSolve(*other, same, rhs, 3), x);
  }
}

TEST_P(ArrowheadTest, LeavesTheRightHandSideAsItIs) {
  const HostMatrix host = RandomArrowhead(8, 5, 3, scalar());
  const auto arrowhead = MustBorder(host);
  ASSERT_NE(arrowhead, nullptr);
  const Columns original = RandomRhs(host, 4);
  Columns rhs = original, x(4 * host.form().rows(), scalar());
  SolveItem item{.factorization = arrowhead, .rhs = rhs.data(), .solution = x.data()};
  item.num_rhs = 4;
  ASSERT_TRUE(solver().Solve({&item, 1}, nullptr, Track::kFactor)[0].status.ok());
  EXPECT_EQ(rhs, original);
  EXPECT_EQ(x, MustSolve(arrowhead, original, 4));
}

// Arrowheads and chains of one plan, in one batch: each has the bits that it has alone.
TEST_P(ArrowheadTest, SharesABatchWithOthersOfItsPlan) {
  const std::vector<HostMatrix> hosts = {
      RandomArrowhead(8, 5, 3, scalar()), HostMatrix(problems::RandomSpd(8, 5, 1, 100), scalar()),
      RandomArrowhead(8, 5, 9, scalar()), HostMatrix(problems::RandomSpd(8, 5, 2, 100), scalar())};
  const PlanPtr plan = Cut(hosts[0].shape(), {2});
  std::vector<FactorItem> factors(hosts.size());
  for (size_t i = 0; i < hosts.size(); ++i) factors[i].matrix = hosts[i].view();
  const std::vector<FactorOutcome> outcomes = solver().Factor(plan, factors);
  std::vector<Columns> alone, together;
  for (size_t i = 0; i < hosts.size(); ++i) {
    ASSERT_TRUE(outcomes[i].status.ok()) << outcomes[i].status;
    EXPECT_EQ(outcomes[i].factorization->border().rows(), hosts[i].form().border_rows);
    together.push_back(RandomRhs(hosts[i], 2));
    alone.push_back(MustSolve(MustFactor(solver(), hosts[i], plan), together[i], 2));
  }
  std::vector<SolveItem> items;
  for (size_t i = 0; i < hosts.size(); ++i) {
    items.push_back({.factorization = outcomes[i].factorization, .rhs = together[i].data()});
    items[i].solution = together[i].data();
    items[i].num_rhs = 2;
  }
  const std::vector<SolveOutcome> solved = solver().Solve(items);
  for (size_t i = 0; i < hosts.size(); ++i) {
    EXPECT_TRUE(solved[i].status.ok()) << solved[i].status;
    EXPECT_EQ(solved[i].backward_error_bound, outcomes[i].factorization->backward_error_bound());
    EXPECT_EQ(together[i], alone[i]);
  }
}

// A matrix that came to the device first.
TEST_P(ArrowheadTest, IsFactoredWhereItLies) {
  const HostMatrix host = RandomArrowhead(6, 5, 4, scalar());
  const BlockTridiagonalView view = host.view();
  absl::StatusOr<StagedMatrix> staged = solver().Stage(view.form);
  ASSERT_TRUE(staged.ok()) << staged.status();
  for (const MatrixPart part : kMatrixParts) {
    const std::span all(static_cast<const std::byte*>(view.part(part)),
                        static_cast<size_t>(view.form.bytes(part)));
    ASSERT_TRUE(solver().Write(*staged, StagedMatrix::Offset(view.form, part), all).ok());
  }
  FactorItem item;
  item.staged = &*staged;
  const FactorOutcome outcome =
      std::move(solver().Factor(*solver().Plan(view.form.shape), {&item, 1})[0]);
  ASSERT_TRUE(outcome.status.ok()) << outcome.status;
  const Columns rhs = RandomRhs(host, 2);
  EXPECT_EQ(MustSolve(outcome.factorization, rhs, 2), MustSolve(MustBorder(host), rhs, 2));
}

// ||inv(L) b||^2 = b' inv(A) b, of the whole.
TEST_P(ArrowheadTest, HasQuadraticForms) {
  const HostMatrix host = RandomArrowhead(7, 4, 3, scalar());
  const auto arrowhead = MustBorder(host);
  Columns rhs = RandomRhs(host, 2);
  std::vector<double> forms(2);
  ASSERT_TRUE(solver().QuadraticForms(arrowhead, rhs.data(), forms).ok());
  const std::vector<double> b = rhs.values();
  const std::vector<double> x = SequentialCholesky(Whole(host).view()).Solve(b);
  const auto rows = host.form().rows();
  for (int64_t c = 0; c < 2; ++c) {
    double expected = 0;
    for (int64_t i = 0; i < rows; ++i) expected += b[c * rows + i] * x[c * rows + i];
    EXPECT_NEAR(forms[c], expected, 1e3 * arrowhead->backward_error_bound() * expected);
  }
}

// x = inv(L)' z of the whole factor: L' x = z, so x' A x = z' z, and x2 has T alone.
TEST_P(ArrowheadTest, DrawsSamplesOfTheWhole) {
  const HostMatrix host = RandomArrowhead(7, 4, 3, scalar());
  const auto arrowhead = MustBorder(host);
  const auto rows = host.form().rows();
  Columns samples(2 * rows, scalar()), z(2 * rows, scalar());
  const SampleItem item{
      .factorization = arrowhead, .seed = 11, .first_sample = 5, .num_samples = 2};
  ASSERT_TRUE(solver().Sample(item, samples.data()).ok());
  StandardNormals(host.shape(), 11, 5, 2, z.data(), 3);
  const std::vector<double> a = AssembleDense(host.view()), x = samples.values();
  const std::vector<double> normals = z.values();
  for (int64_t c = 0; c < 2; ++c) {
    double form = 0, squares = 0;
    for (int64_t j = 0; j < rows; ++j) {
      squares += normals[c * rows + j] * normals[c * rows + j];
      for (int64_t i = 0; i < rows; ++i) {
        form += x[c * rows + i] * a[j * rows + i] * x[c * rows + j];
      }
    }
    EXPECT_NEAR(form, squares, 1e3 * arrowhead->backward_error_bound() * squares);
  }
}

TEST_P(ArrowheadTest, RefusesWhatIsNoBorder) {
  const HostMatrix host = RandomArrowhead(4, 3, 2, scalar());
  const auto code = [&](const FactorItem& item) {
    return solver().Factor(*solver().Plan(host.shape()), {&item, 1})[0].status.code();
  };
  constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
  FactorItem item;
  for (const int64_t rows : {int64_t{-1}, kMaxBorderRows + 1, int64_t{1} << 62}) {
    item.matrix = host.view();
    item.matrix.form.border_rows = rows;
    EXPECT_EQ(code(item), kInvalid);
    EXPECT_EQ(CheckView(item.matrix).code(), kInvalid);
  }
  for (const void* BlockTridiagonalView::*part :
       {&BlockTridiagonalView::border, &BlockTridiagonalView::corner}) {
    BlockTridiagonalView view = host.view();
    EXPECT_TRUE(CheckView(view).ok());
    view.*part = nullptr;
    EXPECT_EQ(CheckView(view).code(), kInvalid);
  }
}

TEST_P(ArrowheadTest, RefusesWhatBordersDoNotHave) {
  const HostMatrix host = RandomArrowhead(4, 3, 2, scalar());
  FactorItem plain;
  plain.matrix = host.view();
  std::vector<FactorItem> items(3, plain);
  items[0].keep_matrix = true;
  items[1].accuracy = Accuracy::kGuaranteed;
  items[2].estimate_condition = true;
  for (const FactorOutcome& outcome : solver().Factor(*solver().Plan(host.shape()), items)) {
    EXPECT_EQ(outcome.status.code(), absl::StatusCode::kInvalidArgument);
  }
  const auto arrowhead = MustBorder(host);
  Columns rhs = RandomRhs(host, 1);
  const Columns original = rhs;
  SolveItem item{.factorization = arrowhead, .rhs = rhs.data(), .solution = rhs.data()};
  item.residual = true;
  EXPECT_EQ(solver().Solve({&item, 1})[0].status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(rhs, original);
}

TEST_P(ArrowheadTest, NamesANumberThatIsNone) {
  HostMatrix host = RandomArrowhead(4, 3, 2, scalar());
  EXPECT_TRUE(CheckFinite(host.view()).ok());
  std::vector<double> border = host.border(), corner = host.corner();
  border[14] = std::numeric_limits<double>::infinity();
  host.SetBorder(2, border, corner);
  EXPECT_EQ(CheckFinite(host.view()).message(), "border, row 1, column 2 is not finite");
  border[14] = 0;
  corner[1] = std::numeric_limits<double>::quiet_NaN();
  host.SetBorder(2, border, corner);
  EXPECT_EQ(CheckFinite(host.view()).message(), "corner, row 1, column 0 is not finite");
}

TEST_P(ArrowheadTest, IsCancelled) {
  const HostMatrix host = RandomArrowhead(4, 3, 2, scalar());
  const auto arrowhead = MustBorder(host);
  const std::atomic<bool> cancelled = true;
  Columns rhs = RandomRhs(host, 1);
  SolveItem solve{.factorization = arrowhead, .rhs = rhs.data(), .solution = rhs.data()};
  solve.cancelled = &cancelled;
  EXPECT_EQ(solver().Solve({&solve, 1})[0].status.code(), absl::StatusCode::kCancelled);
}

INSTANTIATE_TEST_SUITE_P(EveryTarget, ArrowheadTest, ::testing::ValuesIn(Targets()), TargetName);

}  // namespace
}  // namespace blockd::test
