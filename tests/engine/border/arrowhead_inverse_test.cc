// Blocks of an arrowhead's inverse on every backend, against columns of it in long double.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/engine/border/arrowhead_fixture.h"
#include "tests/engine/solver/inverse_fixture.h"

namespace blockd::test {
namespace {

class ArrowheadInverseTest : public SolverTest {
 protected:
  // Errors of entry (i, j) are at most 4 (n + p) eps max(1, growth / 4) u(i) u(j), as those of a
  // chain's inverse are with n.
  void ExpectRight(const HostMatrix& host, PlanPtr plan) {
    const auto arrowhead = MustFactor(solver(), host, std::move(plan));
    ASSERT_NE(arrowhead, nullptr);
    const Selected z = Invert(solver(), All(arrowhead));
    ASSERT_TRUE(z.status.ok()) << z.status;
    const int64_t all = host.form().rows(), n = host.shape().block_size;
    const int64_t p = host.form().border_rows;
    const int64_t blocks = host.shape().num_blocks, of_chain = all - p;
    const HostMatrix whole = Whole(host);
    std::vector<double> exact(all * all);
    for (int64_t i = 0; i < all; ++i) exact[i * (all + 1)] = 1;
    exact = SequentialCholesky(whole.view()).Solve(exact);
    std::vector<double> u(all);
    for (int64_t j = 0; j < all; ++j) {
      const double root = std::sqrt(whole.Diagonal(0, j, j));
      for (int64_t i = 0; i < all; ++i) u[i] += std::abs(exact[i + j * all]) * root;
    }
    const double bound = arrowhead->backward_error_bound();
    double worst = 0;
    const auto compare = [&](const double* found, int64_t rows, int64_t columns, int64_t row,
                             int64_t column) {
      for (int64_t c = 0; c < columns; ++c) {
        for (int64_t r = 0; r < rows; ++r) {
          const int64_t i = row + r, j = column + c;
          const double error = std::abs(found[r + c * rows] - exact[i + j * all]);
          worst = LargerOrNaN(error / (bound * u[i] * u[j]), worst);
        }
      }
    };
    for (int64_t b = 0; b < blocks; ++b) {
      compare(z.diagonal.data() + b * n * n, n, n, b * n, b * n);
      if (b + 1 < blocks) compare(z.coupling.data() + b * n * n, n, n, (b + 1) * n, b * n);
    }
    compare(z.border.data(), of_chain, p, 0, of_chain);
    compare(z.corner.data(), p, p, of_chain, of_chain);
    EXPECT_LE(worst, 1);
    largest_ = LargerOrNaN(worst, largest_);
    // Both triangles, the same bits.
    for (int64_t b = 0; b < blocks; ++b) {
      const double* const block = z.diagonal.data() + b * n * n;
      for (int64_t c = 0; c < n; ++c) {
        for (int64_t r = 0; r < c; ++r) ASSERT_EQ(block[c * n + r], block[r * n + c]);
      }
    }
    for (int64_t c = 0; c < p; ++c) {
      for (int64_t r = 0; r < c; ++r) ASSERT_EQ(z.corner[c * p + r], z.corner[r * p + c]);
    }
  }
  void TearDown() override {
    RecordProperty("largest_error", std::to_string(largest_));
    SolverTest::TearDown();
  }

  double largest_ = 0;
};

TEST_P(ArrowheadInverseTest, IsRightForEverySize) {
  struct Sizes {
    int64_t num_blocks, n, p;
  };
  for (const auto& [num_blocks, n, p] : std::vector<Sizes>{{1, 1, 1},
                                                           {1, 6, 9},
                                                           {9, 1, 1},
                                                           {12, 1, 5},
                                                           {5, 3, 8},
                                                           {11, 5, 2},
                                                           {6, 17, 33},
                                                           {4, 33, 3},
                                                           {3, 40, 41}}) {
    SCOPED_TRACE(testing::Message() << "N " << num_blocks << " n " << n << " p " << p);
    const HostMatrix host = RandomArrowhead(num_blocks, n, p, scalar());
    ExpectRight(host, nullptr);
  }
}

TEST_P(ArrowheadInverseTest, IsRightWithEveryNumberOfSeparators) {
  const HostMatrix host = RandomArrowhead(11, 4, 3, scalar());
  for (const std::vector<int64_t>& separators :
       std::vector<std::vector<int64_t>>{{}, {1}, {2}, {5}, {5, 2}, {3, 1}}) {
    ExpectRight(host, Cut(host.shape(), separators));
  }
}

TEST_P(ArrowheadInverseTest, IsRightForBordersOfBadScaleAndNearlySingularOnes) {
  const double small = std::sqrt(Epsilon(scalar()));
  for (const double scale : {1.0, 1e-3, 1e3}) {
    for (const double slack : {1.0, small}) {
      SCOPED_TRACE(testing::Message() << "scale " << scale << " slack " << slack);
      const HostMatrix host = RandomArrowhead(6, 5, 4, scalar(), slack, scale);
      ExpectRight(host, nullptr);
    }
  }
}

// Every range has the blocks that the whole has, bit for bit, and in every selection.
TEST_P(ArrowheadInverseTest, GivesTheSameBitsInPartsAndOnBothTracks) {
  for (const int64_t n : {3, 20}) {
    constexpr int64_t kBlocks = 9, kRows = 4;
    const HostMatrix host = RandomArrowhead(kBlocks, n, kRows, scalar());
    const auto arrowhead = MustFactor(solver(), host, Cut(host.shape(), {3, 1}));
    ASSERT_NE(arrowhead, nullptr);
    const Selected all = Invert(solver(), All(arrowhead), Track::kSolve);
    ASSERT_TRUE(all.status.ok()) << all.status;
    EXPECT_TRUE(all == Invert(solver(), All(arrowhead)));
    for (int64_t first = 0; first < kBlocks; first += 2) {
      const int64_t count = std::min<int64_t>(kBlocks - first, 1 + first);
      InverseItem item = All(arrowhead);
      item.first_block = first;
      item.num_blocks = count;
      const Selected part = Invert(solver(), item);
      ASSERT_TRUE(part.status.ok()) << part.status;
      EXPECT_TRUE(std::equal(part.diagonal.begin(), part.diagonal.end(),
                             all.diagonal.begin() + first * n * n));
      EXPECT_TRUE(std::equal(part.coupling.begin(), part.coupling.end(),
                             all.coupling.begin() + first * n * n));
      EXPECT_EQ(part.corner, all.corner);
      for (int64_t r = 0; r < kRows; ++r) {
        EXPECT_TRUE(std::equal(part.border.begin() + r * count * n,
                               part.border.begin() + (r + 1) * count * n,
                               all.border.begin() + (r * kBlocks + first) * n));
      }
      item.parts = InverseParts::kDiagonalEntries;
      const Selected entries = Invert(solver(), item);
      for (int64_t i = 0; i < count * n; ++i) {
        ASSERT_EQ(entries.diagonal[i], part.diagonal[i / n * n * n + i % n * (n + 1)]);
      }
      item.parts = InverseParts::kDiagonalBlocks;
      EXPECT_EQ(Invert(solver(), item).diagonal, part.diagonal);
    }
  }
}

TEST_P(ArrowheadInverseTest, GivesOfTheBorderWhatIsWanted) {
  const HostMatrix host = RandomArrowhead(5, 4, 3, scalar());
  const auto arrowhead = MustFactor(solver(), host);
  ASSERT_NE(arrowhead, nullptr);
  const Selected all = Invert(solver(), All(arrowhead, InverseParts::kDiagonalBlocks));
  Columns diagonal(5 * 16, scalar()), corner(9, scalar());
  const InverseItem item = All(arrowhead, InverseParts::kDiagonalBlocks);
  ASSERT_TRUE(solver().SelectedInverse(item, {diagonal.data()}).ok());
  EXPECT_EQ(diagonal.values(), all.diagonal);
  const InverseOutput with_corner{.diagonal = diagonal.data(), .corner = corner.data()};
  ASSERT_TRUE(solver().SelectedInverse(item, with_corner).ok());
  EXPECT_EQ(corner.values(), all.corner);
  // On the device.
  const absl::StatusOr<InverseBlocks> blocks = solver().SelectedInverseOnDevice(item);
  ASSERT_TRUE(blocks.ok()) << blocks.status();
  Columns found(5 * 16, scalar());
  Backend& backend = solver().backend();
  ASSERT_TRUE(
      backend.Download(Track::kFactor, found.data(), blocks->diagonal, item.diagonal_bytes()).ok());
  ASSERT_TRUE(backend.Synchronize(Track::kFactor).ok());
  EXPECT_EQ(found.values(), all.diagonal);
}

TEST_P(ArrowheadInverseTest, RefusesBlocksThatAreNotThere) {
  const HostMatrix host = RandomArrowhead(4, 3, 2, scalar());
  InverseItem item = All(MustFactor(solver(), host));
  const int64_t most = std::numeric_limits<int64_t>::max();
  for (const auto& [first, count] : std::vector<std::pair<int64_t, int64_t>>{
           {-1, 1}, {1, 0}, {0, 5}, {4, 1}, {3, 2}, {0, -1}, {most, most}, {1, most}}) {
    item.first_block = first;
    item.num_blocks = count;
    EXPECT_EQ(solver().SelectedInverse(item, {}).code(), absl::StatusCode::kOutOfRange);
  }
}

TEST_P(ArrowheadInverseTest, IsCancelled) {
  const HostMatrix host = RandomArrowhead(4, 3, 2, scalar());
  InverseItem item = All(MustFactor(solver(), host));
  const std::atomic<bool> cancelled = true;
  item.cancelled = &cancelled;
  EXPECT_EQ(Invert(solver(), item).status.code(), absl::StatusCode::kCancelled);
}

INSTANTIATE_TEST_SUITE_P(EveryTarget, ArrowheadInverseTest, ::testing::ValuesIn(Targets()),
                         TargetName);

}  // namespace
}  // namespace blockd::test
