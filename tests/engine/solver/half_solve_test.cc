// Half solves, quadratic forms and samples on every backend.
#include <array>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "blockd/engine/samples.h"
#include "tests/engine/solver_fixture.h"

namespace blockd::test {
namespace {

class HalfSolveTest : public SolverTest {
 protected:
  Columns Half(const std::shared_ptr<Factorization>& factorization, SolvePart part, Columns columns,
               int64_t count) {
    SolveItem item;
    item.factorization = factorization;
    item.rhs = item.solution = columns.data();
    item.num_rhs = count;
    item.part = part;
    const std::vector<SolveOutcome> outcomes = solver().Solve({&item, 1});
    EXPECT_TRUE(outcomes[0].status.ok()) << outcomes[0].status;
    return columns;
  }

  // inv(L) A inv(L)' is the identity, and two halves are a whole.
  void ExpectHalves(const problems::Problem& problem, PlanPtr plan, int64_t columns) {
    const HostMatrix matrix(problem, scalar());
    const auto factorization = MustFactor(solver(), matrix, std::move(plan));
    ASSERT_NE(factorization, nullptr);
    const Columns z(problems::RandomColumns(problem.rows(), columns, 3), scalar());
    const Columns x = Half(factorization, SolvePart::kBackward, z, columns);
    const Columns b(problems::Multiply(problem, x.values(), columns), scalar());
    const Columns y = Half(factorization, SolvePart::kForward, b, columns);
    // Well conditioned: the factor 100 is the condition number of A.
    EXPECT_LE(RelativeDifference(y.values(), z.values()), 100 * ErrorBound(matrix.shape()));
    const Columns solution = Half(factorization, SolvePart::kBackward, y, columns);
    EXPECT_LE(BackwardError(matrix.view(), solution.values(), b.values()),
              ErrorBound(matrix.shape()));
    if (GetParam().backend != "cpu") return;
    EXPECT_EQ(solution, MustSolve(solver(), factorization, b, columns));
  }
};

TEST_P(HalfSolveTest, AreInverseToOneAnotherWithEveryNumberOfSeparators) {
  for (const int64_t n : {1, 5, 16}) {
    for (int64_t num_blocks = 1; num_blocks <= 11; ++num_blocks) {
      const problems::Problem problem = problems::RandomSpd(num_blocks, n, 5, 100);
      const Shape shape{num_blocks, n, scalar()};
      for (int64_t separators = 0; 2 * separators + 1 <= num_blocks; ++separators) {
        SCOPED_TRACE(testing::Message()
                     << "n " << n << " N " << num_blocks << " cut " << separators);
        ExpectHalves(problem, separators == 0 ? Cut(shape, {}) : Cut(shape, {separators}),
                     1 + separators);
      }
    }
  }
}

TEST_P(HalfSolveTest, AreInverseToOneAnotherThroughManyLevels) {
  for (const int64_t n : {3, 8, 33, 130}) {
    const problems::Problem problem = problems::RandomSpd(31, n, 5, 100);
    const Shape shape{31, n, scalar()};
    for (const std::vector<int64_t>& separators :
         std::vector<std::vector<int64_t>>{{}, {1}, {7, 2}, {15, 7, 3, 1}}) {
      SCOPED_TRACE(testing::Message() << "n " << n << ", " << separators.size() << " cuts");
      ExpectHalves(problem, Cut(shape, separators), n == 8 ? 35 : 3);
    }
  }
}

// With the sequential plan L is that of the matrix as it stands.
TEST_P(HalfSolveTest, SubstitutesForwardInTheOrderOfThePlan) {
  const problems::Problem problem = problems::RandomSpd(6, 4, 5, 100);
  const HostMatrix matrix(problem, scalar());
  const auto factorization = MustFactor(solver(), matrix, Cut(matrix.shape(), {}));
  const Columns b(problems::RandomColumns(24, 1, 3), scalar());
  const std::vector<double> y = Half(factorization, SolvePart::kForward, b, 1).values();
  // ||y||^2 of the first rows is the quadratic form of the leading blocks alone.
  for (int64_t blocks = 1; blocks <= 6; ++blocks) {
    problems::Problem leading = problem;
    leading.num_blocks = blocks;
    leading.diagonal.resize(blocks * 16);
    leading.coupling.resize((blocks - 1) * 16);
    const HostMatrix part(leading, scalar());
    std::vector<double> first = b.values();
    first.resize(blocks * 4);
    const std::vector<double> x = SequentialCholesky(part.view()).Solve(first);
    double expected = 0, sum = 0;
    for (int64_t i = 0; i < blocks * 4; ++i) expected += first[i] * x[i], sum += y[i] * y[i];
    EXPECT_NEAR(sum / expected, 1, 100 * ErrorBound(part.shape()));
  }
}

TEST_P(HalfSolveTest, GivesQuadraticForms) {
  for (const auto& [num_blocks, n] : std::vector<std::pair<int64_t, int64_t>>{{40, 6}, {9, 33}}) {
    const HostMatrix matrix(problems::RandomSpd(num_blocks, n, 5, 100), scalar());
    const auto factorization = MustFactor(solver(), matrix);
    constexpr int64_t kColumns = 37;
    const int64_t rows = matrix.shape().rows();
    Columns b(problems::RandomColumns(rows, kColumns, 3), scalar());
    const std::vector<double> rhs = b.values();
    const std::vector<double> x = SequentialCholesky(matrix.view()).Solve(rhs);
    std::vector<double> values(kColumns);
    ASSERT_TRUE(solver().QuadraticForms(factorization, b.data(), values).ok());
    for (int64_t c = 0; c < kColumns; ++c) {
      double expected = 0;
      for (int64_t i = c * rows; i < (c + 1) * rows; ++i) expected += rhs[i] * x[i];
      EXPECT_NEAR(values[c] / expected, 1, 100 * ErrorBound(matrix.shape()));
    }
    EXPECT_TRUE(solver().QuadraticForms(factorization, nullptr, {}).ok());
  }
}

TEST_P(HalfSolveTest, RefusesWhatHalvesDoNotHave) {
  const HostMatrix matrix(problems::RandomSpd(6, 4, 5, 100), scalar());
  const auto factorization = MustFactor(solver(), matrix, nullptr, true);
  Columns columns(problems::RandomColumns(24, 1, 3), scalar());
  SolveItem item{.factorization = factorization, .rhs = columns.data(), .solution = columns.data()};
  item.part = SolvePart::kForward;
  item.residual = true;
  EXPECT_EQ(solver().Solve({&item, 1})[0].status.code(), absl::StatusCode::kInvalidArgument);
  item.residual = false;
  item.max_refinements = 1;
  EXPECT_EQ(solver().Solve({&item, 1})[0].status.code(), absl::StatusCode::kInvalidArgument);
  item.max_refinements = 0;
  std::array<SolveItem, 2> items = {item, item};
  items[1].part = SolvePart::kBackward;
  const std::vector<SolveOutcome> outcomes = solver().Solve(items);
  EXPECT_TRUE(outcomes[0].status.ok());
  EXPECT_EQ(outcomes[1].status.code(), absl::StatusCode::kInvalidArgument);
}

TEST_P(HalfSolveTest, SamplesAreInverseSquareRootsOfNormals) {
  const problems::Problem problem = problems::RandomSpd(20, 5, 5, 100);
  const HostMatrix matrix(problem, scalar());
  const auto factorization = MustFactor(solver(), matrix);
  SampleItem sample{.factorization = factorization, .seed = 11, .first_sample = 5};
  sample.num_samples = 4;
  Columns x(400, scalar()), z(400, scalar());
  ASSERT_TRUE(solver().Sample(sample, x.data()).ok());
  StandardNormals(matrix.shape(), 11, 5, 4, z.data());
  const Columns b(problems::Multiply(problem, x.values(), 4), scalar());
  const Columns y = Half(factorization, SolvePart::kForward, b, 4);
  EXPECT_LE(RelativeDifference(y.values(), z.values()), 100 * ErrorBound(matrix.shape()));
  // Each by itself is the same.
  for (int64_t s = 0; s < 4; ++s) {
    Columns one(100, scalar());
    sample.first_sample = 5 + s;
    sample.num_samples = 1;
    ASSERT_TRUE(solver().Sample(sample, one.data()).ok());
    EXPECT_EQ(
        std::memcmp(one.data(), x.bytes().data() + s * one.bytes().size(), one.bytes().size()), 0);
  }
  sample.num_samples = 0;
  EXPECT_EQ(solver().Sample(sample, x.data()).code(), absl::StatusCode::kInvalidArgument);
  const std::atomic<bool> cancelled = true;
  sample.num_samples = 4;
  sample.cancelled = &cancelled;
  EXPECT_EQ(solver().Sample(sample, x.data()).code(), absl::StatusCode::kCancelled);
}

// The covariance of many samples is inv(A), whatever the plan.
TEST_P(HalfSolveTest, SamplesHaveTheCovarianceOfTheInverse) {
  const HostMatrix matrix(problems::RandomSpd(7, 3, 5, 20), scalar());
  constexpr int64_t kSamples = 4000, kRows = 21;
  std::vector<double> unit(kRows * kRows);
  for (int64_t i = 0; i < kRows; ++i) unit[i * kRows + i] = 1;
  const std::vector<double> inverse = SequentialCholesky(matrix.view()).Solve(unit);
  for (const std::vector<int64_t>& separators : std::vector<std::vector<int64_t>>{{}, {3, 1}}) {
    SampleItem sample{
        .factorization = MustFactor(solver(), matrix, Cut(matrix.shape(), separators)), .seed = 3};
    sample.num_samples = kSamples;
    Columns columns(kRows * kSamples, scalar());
    ASSERT_TRUE(solver().Sample(sample, columns.data()).ok());
    const std::vector<double> x = columns.values();
    for (int64_t i = 0; i < kRows; ++i) {
      for (int64_t j = 0; j <= i; ++j) {
        double sum = 0;
        for (int64_t s = 0; s < kSamples; ++s) sum += x[s * kRows + i] * x[s * kRows + j];
        // Six times the standard deviation of the mean, at most sqrt(2 Z(i,i) Z(j,j) / samples).
        const double scale = inverse[i * kRows + i] * inverse[j * kRows + j];
        EXPECT_NEAR(sum / kSamples, inverse[i * kRows + j], 6 * std::sqrt(2 * scale / kSamples));
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(EveryTarget, HalfSolveTest, ::testing::ValuesIn(Targets()), TargetName);

// The known answers of Random123's tests.
TEST(SamplesTest, PhiloxGivesItsKnownAnswers) {
  using Four = std::array<uint32_t, 4>;
  EXPECT_EQ(Philox({0, 0, 0, 0}, {0, 0}), (Four{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  const uint32_t ones = 0xffffffff;
  EXPECT_EQ(Philox({ones, ones, ones, ones}, {ones, ones}),
            (Four{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(Philox({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (Four{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(SamplesTest, NormalsDependOnTheirPlaceAlone) {
  const Shape all{5, 3}, longer{9, 3}, taller{5, 4};
  std::vector<double> z(15 * 6), tail(15 * 2), long_z(27), tall_z(20), other(15);
  StandardNormals(all, 9, 0, 6, z.data());
  StandardNormals(all, 9, 4, 2, tail.data());
  EXPECT_TRUE(std::equal(tail.begin(), tail.end(), z.begin() + 4 * 15));
  StandardNormals(longer, 9, 0, 1, long_z.data());
  EXPECT_TRUE(std::equal(z.begin(), z.begin() + 15, long_z.begin()));
  StandardNormals(taller, 9, 0, 1, tall_z.data());
  for (int64_t i = 0; i < 15; ++i) EXPECT_EQ(z[i], tall_z[i / 3 * 4 + i % 3]);
  StandardNormals(all, 10, 0, 1, other.data());
  for (int64_t i = 0; i < 15; ++i) EXPECT_NE(z[i], other[i]);
  std::vector<float> single(15);
  StandardNormals({5, 3, Scalar::kFloat32}, 9, 0, 1, single.data());
  for (int64_t i = 0; i < 15; ++i) EXPECT_EQ(single[i], static_cast<float>(z[i]));
}

TEST(SamplesTest, NormalsHaveTheMomentsOfNormals) {
  std::vector<double> z(100000);
  StandardNormals({1000, 10}, 1, 0, 10, z.data());
  double sums[5] = {};
  for (const double value : z) {
    double power = 1;
    for (double& sum : sums) sum += power, power *= value;
  }
  const double count = sums[0];
  EXPECT_NEAR(sums[1] / count, 0, 0.02);
  EXPECT_NEAR(sums[2] / count, 1, 0.03);
  EXPECT_NEAR(sums[3] / count, 0, 0.08);
  EXPECT_NEAR(sums[4] / count, 3, 0.2);
}

}  // namespace
}  // namespace blockd::test
