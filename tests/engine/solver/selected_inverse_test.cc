// Blocks of inv(A) on every backend, against columns of the inverse in long double.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "tests/engine/solver/inverse_fixture.h"

namespace blockd::test {
namespace {

// Columns of inv(A), and the bound for errors of entry (i, j) of it:
// 4 max(n, 2) eps max(1, growth / 4) u(i) u(j), u(i) = sum_k |Z(i,k)| sqrt(A(k,k)). It is what the
// inverse moves by if A moves by little more than a solve's own bound, by
// 4 max(n, 2) eps max(1, growth / 4) sqrt(A(k,k) A(l,l)) in each entry.
class InverseOracle {
 public:
  explicit InverseOracle(const HostMatrix& matrix)
      : shape_(matrix.shape()), n_(shape_.block_size), cholesky_(matrix.view()) {
    EXPECT_EQ(cholesky_.minor(), 0);
    for (int64_t b = 0; b < shape_.num_blocks; ++b) {
      const std::vector<double> block = ReadDiagonal(matrix.view(), b);
      for (int64_t i = 0; i < n_; ++i) roots_.push_back(std::sqrt(block[i * n_ + i]));
    }
  }

  // The n columns of block b.
  const std::vector<double>& ColumnsOf(int64_t b) const {
    std::vector<double>& columns = columns_[b];
    if (!columns.empty()) return columns;
    std::vector<double> unit(shape_.rows() * n_);
    for (int64_t c = 0; c < n_; ++c) unit[c * shape_.rows() + b * n_ + c] = 1;
    return columns = cholesky_.Solve(unit);
  }
  std::vector<double> Weights(const std::vector<double>& columns) const {
    std::vector<double> weights(n_);
    for (int64_t c = 0; c < n_; ++c) {
      for (int64_t k = 0; k < shape_.rows(); ++k) {
        weights[c] += std::abs(columns[c * shape_.rows() + k]) * roots_[k];
      }
    }
    return weights;
  }

  // The largest error of blocks b (Z(b,b) and, if there is one, Z(b+1,b)), in units of the bound.
  double Error(int64_t b, double growth, const double* diagonal, const double* coupling) const {
    const std::vector<double>& columns = ColumnsOf(b);
    const std::vector<double> weights = Weights(columns);
    double worst = Compare(columns, b, growth, diagonal, weights, weights);
    if (coupling == nullptr) return worst;
    const std::vector<double> next = Weights(ColumnsOf(b + 1));
    return LargerOrNaN(Compare(columns, b + 1, growth, coupling, next, weights), worst);
  }

 private:
  double Compare(const std::vector<double>& columns, int64_t row_block, double growth,
                 const double* found, const std::vector<double>& of_rows,
                 const std::vector<double>& of_columns) const {
    double worst = 0;
    for (int64_t c = 0; c < n_; ++c) {
      for (int64_t r = 0; r < n_; ++r) {
        const double error =
            std::abs(found[c * n_ + r] - columns[c * shape_.rows() + row_block * n_ + r]);
        worst = LargerOrNaN(error / (of_rows[r] * of_columns[c]), worst);
      }
    }
    return worst /
           (BackwardErrorGoal(shape_) * std::max(1.0, growth / kSafeGrowth) * (n_ == 1 ? 2 : 1));
  }

  const Shape shape_;
  const int64_t n_;
  const SequentialCholesky cholesky_;
  std::vector<double> roots_;
  mutable std::map<int64_t, std::vector<double>> columns_;
};

class SelectedInverseTest : public SolverTest {
 protected:
  // Compares one of every `step` blocks.
  void ExpectRight(const HostMatrix& matrix, PlanPtr plan, int64_t step = 1) {
    ExpectRight(matrix, InverseOracle(matrix), std::move(plan), step);
  }
  void ExpectRight(const HostMatrix& matrix, const InverseOracle& oracle, PlanPtr plan,
                   int64_t step = 1) {
    const auto factorization = MustFactor(solver(), matrix, std::move(plan));
    ASSERT_NE(factorization, nullptr);
    const Selected z = Invert(solver(), All(factorization));
    ASSERT_TRUE(z.status.ok()) << z.status;
    const int64_t blocks = matrix.shape().num_blocks, n = matrix.shape().block_size;
    double worst = 0;
    for (int64_t b = 0; b < blocks; b += step) {
      const double* const coupling = b + 1 < blocks ? z.coupling.data() + b * n * n : nullptr;
      worst = LargerOrNaN(oracle.Error(b, factorization->conditioning().growth,
                                       z.diagonal.data() + b * n * n, coupling),
                          worst);
    }
    EXPECT_LE(worst, 1);
    largest_ = LargerOrNaN(worst, largest_);
    // Both triangles, the same bits.
    for (int64_t b = 0; b < blocks; ++b) {
      const double* const block = z.diagonal.data() + b * n * n;
      for (int64_t c = 0; c < n; ++c) {
        for (int64_t r = 0; r < c; ++r) ASSERT_EQ(block[c * n + r], block[r * n + c]);
      }
    }
  }
  void TearDown() override {
    RecordProperty("largest_error", std::to_string(largest_));
    SolverTest::TearDown();
  }

  double largest_ = 0;
};

TEST_P(SelectedInverseTest, IsRightWithEveryNumberOfSeparators) {
  for (const int64_t n : {1, 5, 16}) {
    for (int64_t num_blocks = 1; num_blocks <= 11; ++num_blocks) {
      const HostMatrix matrix(problems::RandomSpd(num_blocks, n, 5, 100), scalar());
      for (int64_t separators = 0; 2 * separators + 1 <= num_blocks; ++separators) {
        SCOPED_TRACE(testing::Message()
                     << "n " << n << " N " << num_blocks << " cut " << separators);
        ExpectRight(matrix,
                    separators == 0 ? Cut(matrix.shape(), {}) : Cut(matrix.shape(), {separators}));
      }
    }
  }
}

TEST_P(SelectedInverseTest, IsRightThroughManyLevels) {
  const std::vector<std::vector<int64_t>> plans = {
      {}, {1}, {3, 1}, {7, 2}, {24, 11, 5, 2}, {20, 1}, {16, 7, 3, 1}};
  for (const int64_t n : {1, 3, 8, 9, 17, 33}) {
    const HostMatrix matrix(problems::Mpc(51, n, 11), scalar());
    const InverseOracle oracle(matrix);
    for (size_t p = 0; p < plans.size(); ++p) {
      SCOPED_TRACE(testing::Message() << "n " << n << ", plan " << p);
      ExpectRight(matrix, oracle, Cut(matrix.shape(), plans[p]), n > 8 ? 7 : 1);
    }
  }
}

TEST_P(SelectedInverseTest, IsRightForLargerBlocks) {
  struct Sizes {
    int64_t num_blocks, n;
    std::vector<int64_t> separators;
  };
  for (const auto& [num_blocks, n, separators] : std::vector<Sizes>{
           {5, 64, {2}}, {7, 65, {3, 1}}, {5, 128, {2}}, {5, 130, {2}}, {1, 150, {}}}) {
    SCOPED_TRACE(testing::Message() << "N " << num_blocks << " n " << n);
    const HostMatrix matrix(problems::RandomSpd(num_blocks, n, 5, 100), scalar());
    ExpectRight(matrix, Cut(matrix.shape(), separators), 2);
  }
}

TEST_P(SelectedInverseTest, IsRightForEverySmallSize) {
  for (int64_t n = 1; n <= 64; ++n) {
    SCOPED_TRACE(testing::Message() << "n " << n);
    const HostMatrix matrix(problems::RandomSpd(6, n, 5, 100), scalar());
    const InverseOracle oracle(matrix);
    ExpectRight(matrix, oracle, Cut(matrix.shape(), {2}), 3);
    if (n % 8 < 2) ExpectRight(matrix, oracle, Cut(matrix.shape(), {}), 3);
  }
}

TEST_P(SelectedInverseTest, IsRightThroughMoreLevelsThanALaunchHas) {
  const HostMatrix matrix(problems::Mpc((1 << 17) - 1, 1, 11), scalar());
  std::vector<int64_t> separators;
  for (int64_t count = (1 << 16) - 1; count > 0; count /= 2) separators.push_back(count);
  ExpectRight(matrix, Cut(matrix.shape(), separators), 1 << 15);
}

// The largest entry of A Z - I in the blocks on the diagonal, which only what was selected is in.
double LargestResidual(const HostMatrix& matrix, const Selected& z) {
  const int64_t blocks = matrix.shape().num_blocks, n = matrix.shape().block_size;
  std::vector<double> residual(blocks * n * n);
  // residual(i) += a z; element (r, k) of z is z[r * row + k * column].
  const auto add = [&](int64_t i, const double* a, int64_t a_row, int64_t a_column, const double* z,
                       int64_t row, int64_t column) {
    for (int64_t c = 0; c < n; ++c) {
      for (int64_t r = 0; r < n; ++r) {
        double& sum = residual[(i * n + c) * n + r];
        for (int64_t k = 0; k < n; ++k) {
          sum += a[r * a_row + k * a_column] * z[k * row + c * column];
        }
      }
    }
  };
  for (int64_t i = 0; i < blocks; ++i) {
    for (int64_t c = 0; c < n; ++c) residual[(i * n + c) * n + c] -= 1;
    add(i, ReadDiagonal(matrix.view(), i).data(), 1, n, &z.diagonal[i * n * n], 1, n);
    if (i + 1 == blocks) break;
    const std::vector<double> coupling = ReadCoupling(matrix.view(), i);
    const double* const below = &z.coupling[i * n * n];
    add(i, coupling.data(), n, 1, below, 1, n);
    add(i + 1, coupling.data(), 1, n, below, n, 1);
  }
  double largest = 0;
  for (const double entry : residual) largest = LargerOrNaN(std::abs(entry), largest);
  return largest;
}

// Between factorizations, which use the same flags.
TEST_P(SelectedInverseTest, GivesTheSameBitsOfLongChainsEveryTime) {
  constexpr double kCondition = 100;
  const double eps = scalar() == Scalar::kFloat64 ? 0x1p-52 : 0x1p-23;
  // The last one's walks are so long that thread blocks go on with another segment.
  for (const auto& [num_blocks, n, separators] :
       std::vector<std::tuple<int64_t, int64_t, std::vector<int64_t>>>{
           {3000, 4, {800, 300, 100, 7}},
           {900, 12, {200, 60, 20, 3}},
           {300, 30, {60, 10}},
           {70, 60, {20, 3}},
           {600, 40, {3}}}) {
    SCOPED_TRACE(testing::Message() << "N " << num_blocks << " n " << n);
    const HostMatrix matrix(problems::RandomSpd(num_blocks, n, 5, kCondition), scalar());
    const PlanPtr plan = Cut(matrix.shape(), separators);
    Selected first;
    for (int repeat = 0; repeat < 2; ++repeat) {
      const Selected z = Invert(solver(), All(MustFactor(solver(), matrix, plan)));
      ASSERT_TRUE(z.status.ok()) << z.status;
      if (repeat == 0) {
        EXPECT_LE(LargestResidual(matrix, z), 4 * static_cast<double>(n) * eps * kCondition);
        first = z;
      }
      EXPECT_EQ(z.diagonal, first.diagonal);
      EXPECT_EQ(z.coupling, first.coupling);
    }
  }
}

// Cholesky factor L = I - c (ones below the diagonal) of each block, and `beside` I beside it; the
// very last pivot is `pivot`. The growth of a block is as large as c and the pivot make it.
problems::Problem Growing(int64_t num_blocks, int64_t n, double c, double beside, double pivot) {
  problems::Problem problem;
  problem.num_blocks = num_blocks;
  problem.block_size = n;
  for (int64_t b = 0; b < num_blocks; ++b) {
    const auto lower = [=](int64_t i, int64_t j) {
      if (i == j) return b + 1 == num_blocks && i + 1 == n ? pivot : 1.0;
      return i > j ? -c : 0.0;
    };
    for (int64_t j = 0; j < n; ++j) {
      for (int64_t i = 0; i < n; ++i) {
        double sum = b > 0 && i == j ? beside * beside : 0;
        for (int64_t k = 0; k <= std::min(i, j); ++k) sum += lower(i, k) * lower(j, k);
        problem.diagonal.push_back(sum);
        if (b + 1 < num_blocks) problem.coupling.push_back(beside * lower(j, i));
      }
    }
  }
  return problem;
}

TEST_P(SelectedInverseTest, StaysInItsBoundWhereBlocksGrow) {
  const bool single = scalar() == Scalar::kFloat32;
  for (const double c : {0.0, 0.2, 0.4, 0.7}) {
    for (const int64_t n : {3, 8, 24}) {
      // Both at once, or in float32, would be no longer positive definite by rounding.
      const bool grows = c * static_cast<double>(n) > 5;
      if (single && grows) continue;
      for (const double beside : {0.01, 0.3}) {
        for (const double pivot : {1.0, single ? 3e-2 : 1e-5}) {
          if (grows && pivot < 1) continue;
          SCOPED_TRACE(testing::Message()
                       << "c " << c << " n " << n << " beside " << beside << " pivot " << pivot);
          for (const int64_t num_blocks : {1, 9}) {
            const HostMatrix matrix(Growing(num_blocks, n, c, beside, pivot), scalar());
            const InverseOracle oracle(matrix);
            ExpectRight(matrix, oracle, Cut(matrix.shape(), {}));
            if (num_blocks > 1) ExpectRight(matrix, oracle, Cut(matrix.shape(), {3, 1}));
          }
        }
      }
    }
  }
}

// Neighbours that are nearly the same: a chain whose inverse is large and full, and scaled badly.
problems::Problem Stiff(int64_t num_blocks, int64_t n, double slack) {
  problems::Problem problem;
  problem.num_blocks = num_blocks;
  problem.block_size = n;
  problem.diagonal.resize(num_blocks * n * n);
  problem.coupling.resize((num_blocks - 1) * n * n);
  for (int64_t b = 0; b < num_blocks; ++b) {
    for (int64_t i = 0; i < n; ++i) {
      const double scale = std::pow(100.0, static_cast<double>(i % 5) - 2);
      problem.diagonal[b * n * n + i * n + i] = (2 + slack) * scale;
      if (b + 1 < num_blocks) problem.coupling[b * n * n + i * n + i] = -scale;
    }
  }
  return problem;
}

TEST_P(SelectedInverseTest, StaysInItsBoundInLongStiffChains) {
  const double slack = scalar() == Scalar::kFloat64 ? 1e-9 : 1e-3;
  for (const int64_t n : {1, 6}) {
    const int64_t num_blocks = scalar() == Scalar::kFloat64 ? 1500 : 100;
    const HostMatrix matrix(Stiff(num_blocks, n, slack), scalar());
    SCOPED_TRACE(testing::Message() << "n " << n);
    ExpectRight(matrix, nullptr, num_blocks / 7);
    ExpectRight(matrix, Cut(matrix.shape(), {}), num_blocks / 7);
  }
}

// A bound of a few eps leaves least room where blocks are smallest.
TEST_P(SelectedInverseTest, StaysInItsBoundForTheSmallestBlocks) {
  for (int64_t seed = 1; seed <= 60; ++seed) {
    const int64_t n = 1 + seed % 3;
    const double condition = std::pow(10.0, static_cast<double>(seed % 7) / 2);
    for (const auto& problem :
         {problems::Mpc(30, n, seed), problems::RandomSpd(30, n, seed, condition),
          problems::Kalman(
              {.states = n, .observations = n, .steps = 30, .seed = uint64_t(seed)})}) {
      const HostMatrix matrix(problem, scalar());
      const InverseOracle oracle(matrix);
      SCOPED_TRACE(testing::Message() << "n " << n << " seed " << seed);
      for (const std::vector<int64_t>& separators :
           std::vector<std::vector<int64_t>>{{}, {1}, {14, 6, 2}}) {
        ExpectRight(matrix, oracle, Cut(matrix.shape(), separators));
      }
    }
  }
}

TEST_P(SelectedInverseTest, IsRightForIllConditionedSystems) {
  const double condition = scalar() == Scalar::kFloat64 ? 1e10 : 1e4;
  for (const int64_t n : {2, 16, 40}) {
    SCOPED_TRACE(testing::Message() << "n " << n);
    const HostMatrix matrix(problems::RandomSpd(12, n, 3, condition), scalar());
    ExpectRight(matrix, nullptr, 3);
    ExpectRight(matrix, Cut(matrix.shape(), {4, 1}), 3);
  }
}

// Every range has the blocks that the whole has, bit for bit, and in every selection.
TEST_P(SelectedInverseTest, GivesTheSameBitsInPartsAndOnBothTracks) {
  for (const auto& [num_blocks, n, separators] :
       std::vector<std::tuple<int64_t, int64_t, std::vector<int64_t>>>{
           {14, 5, {}}, {14, 12, {1}}, {23, 3, {7, 2}}, {23, 20, {11, 5, 2}}, {7, 35, {2}}}) {
    const HostMatrix matrix(problems::Mpc(num_blocks, n, 3), scalar());
    const auto factorization = MustFactor(solver(), matrix, Cut(matrix.shape(), separators));
    const Selected all = Invert(solver(), All(factorization), Track::kSolve);
    ASSERT_TRUE(all.status.ok()) << all.status;
    for (int64_t first = 0; first < num_blocks; ++first) {
      for (int64_t count = 1; count <= num_blocks - first; count += 1 + first % 3) {
        SCOPED_TRACE(testing::Message() << first << " + " << count << " of " << num_blocks);
        InverseItem item = All(factorization);
        item.first_block = first;
        item.num_blocks = count;
        const Selected part = Invert(solver(), item);
        ASSERT_TRUE(part.status.ok()) << part.status;
        ASSERT_TRUE(std::equal(part.diagonal.begin(), part.diagonal.end(),
                               all.diagonal.begin() + first * n * n));
        ASSERT_TRUE(std::equal(part.coupling.begin(), part.coupling.end(),
                               all.coupling.begin() + first * n * n));
        item.parts = InverseParts::kDiagonalEntries;
        const Selected entries = Invert(solver(), item);
        for (int64_t b = 0; b < count; ++b) {
          for (int64_t i = 0; i < n; ++i) {
            ASSERT_EQ(entries.diagonal[b * n + i], part.diagonal[b * n * n + i * (n + 1)]);
          }
        }
        item.parts = InverseParts::kDiagonalBlocks;
        ASSERT_EQ(Invert(solver(), item).diagonal, part.diagonal);
      }
    }
  }
}

TEST_P(SelectedInverseTest, GivesTheSameBitsWithAnyNumberOfThreads) {
  if (GetParam().backend != "cpu") return;  // others have none
  const HostMatrix matrix(problems::Mpc(60, 20, 3), scalar());
  const PlanPtr plan = Cut(matrix.shape(), {19, 9, 4});
  const Selected expected = Invert(solver(), All(MustFactor(solver(), matrix, plan)));
  for (const int32_t threads : {1, 3, 8}) {
    const auto other = MakeSolver("cpu", {.cpu_threads = threads});
    const Selected found = Invert(*other, All(MustFactor(*other, matrix, plan)));
    EXPECT_EQ(found.diagonal, expected.diagonal);
    EXPECT_EQ(found.coupling, expected.coupling);
  }
}

TEST_P(SelectedInverseTest, LeavesTheFactorizationAsItIs) {
  const HostMatrix matrix(problems::RandomSpd(20, 12, 5, 100), scalar());
  const auto factorization = MustFactor(solver(), matrix);
  const Columns rhs(problems::RandomColumns(matrix.shape().rows(), 2, 3), scalar());
  const Columns before = MustSolve(solver(), factorization, rhs, 2);
  ASSERT_TRUE(Invert(solver(), All(factorization)).status.ok());
  EXPECT_EQ(MustSolve(solver(), factorization, rhs, 2), before);
}

TEST_P(SelectedInverseTest, IsLeftOnTheDeviceToo) {
  const HostMatrix matrix(problems::RandomSpd(9, 7, 5, 100), scalar());
  const auto factorization = MustFactor(solver(), matrix);
  const InverseItem item = All(factorization);
  const Selected expected = Invert(solver(), item);
  const absl::StatusOr<InverseBlocks> blocks = solver().SelectedInverseOnDevice(item);
  ASSERT_TRUE(blocks.ok()) << blocks.status();
  Columns diagonal(9 * 7 * 7, scalar()), coupling(8 * 7 * 7, scalar());
  Backend& backend = solver().backend();
  const auto download = [&](Columns& to, const void* from, int64_t bytes) {
    ASSERT_TRUE(backend.Download(Track::kFactor, to.data(), from, bytes).ok());
    ASSERT_TRUE(backend.Synchronize(Track::kFactor).ok());
  };
  download(diagonal, blocks->diagonal, item.diagonal_bytes());
  download(coupling, blocks->coupling, item.coupling_bytes());
  EXPECT_EQ(diagonal.values(), expected.diagonal);
  EXPECT_EQ(coupling.values(), expected.coupling);
}

TEST_P(SelectedInverseTest, RefusesBlocksThatAreNotThere) {
  const HostMatrix matrix(problems::Poisson(4, 3), scalar());
  InverseItem item = All(MustFactor(solver(), matrix));
  const int64_t most = std::numeric_limits<int64_t>::max();
  double nothing = 0;
  for (const auto& [first, count] : std::vector<std::pair<int64_t, int64_t>>{
           {-1, 1}, {0, 0}, {0, 5}, {4, 1}, {3, 2}, {0, -1}, {most, most}, {1, most}}) {
    item.first_block = first;
    item.num_blocks = count;
    EXPECT_EQ(solver().SelectedInverse(item, {&nothing, &nothing}).code(),
              absl::StatusCode::kOutOfRange);
    EXPECT_FALSE(solver().SelectedInverseOnDevice(item).ok());
  }
}

TEST_P(SelectedInverseTest, TakesNoMoreThanItSaysAndFailsWithoutIt) {
  const HostMatrix matrix(problems::RandomSpd(40, 6, 5, 100), scalar());
  const auto factorization = MustFactor(solver(), matrix, Cut(matrix.shape(), {9, 4, 1}));
  const InverseItem item = All(factorization);
  MemoryPool& pool = solver().backend().pool();
  const int64_t needed =
      solver().InverseWorkspaceBytes(factorization->plan(), item.parts, 0, item.num_blocks);
  const int64_t free = pool.stats().largest_free_bytes;
  {
    absl::StatusOr<DeviceBuffer> rest = pool.Allocate(free - MemoryPool::Rounded(needed));
    ASSERT_TRUE(rest.ok()) << rest.status();
    const absl::StatusOr<InverseBlocks> blocks = solver().SelectedInverseOnDevice(item);
    EXPECT_TRUE(blocks.ok()) << blocks.status();
  }
  absl::StatusOr<DeviceBuffer> rest = pool.Allocate(pool.stats().largest_free_bytes - 4096);
  ASSERT_TRUE(rest.ok()) << rest.status();
  EXPECT_EQ(Invert(solver(), item).status.code(), absl::StatusCode::kResourceExhausted);
}

TEST_P(SelectedInverseTest, IsCancelled) {
  for (const int64_t n : {6, 70}) {
    const HostMatrix matrix(problems::RandomSpd(10, n, 5, 100), scalar());
    InverseItem item = All(MustFactor(solver(), matrix));
    const Selected before = Invert(solver(), item);
    const std::atomic<bool> cancelled = true;
    item.cancelled = &cancelled;
    EXPECT_EQ(Invert(solver(), item).status.code(), absl::StatusCode::kCancelled);
    item.cancelled = nullptr;
    EXPECT_EQ(Invert(solver(), item).diagonal, before.diagonal);
  }
}

INSTANTIATE_TEST_SUITE_P(EveryTarget, SelectedInverseTest, ::testing::ValuesIn(Targets()),
                         TargetName);

}  // namespace
}  // namespace blockd::test
