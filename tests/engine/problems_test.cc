#include "engine/problems/problems.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <utility>

#include "engine/problems/series.h"

extern "C" void dsyev_(const char* job, const char* triangle, const int* n, double* a,
                       const int* lda, double* eigenvalues, double* work, const int* work_size,
                       int* info);

namespace blockd::problems {
namespace {

// A, dense and column-major.
std::vector<double> Dense(const Problem& problem) {
  const int64_t rows = problem.rows();
  std::vector<double> identity(rows * rows);
  for (int64_t i = 0; i < rows; ++i) identity[i * rows + i] = 1;
  return Multiply(problem, identity, rows);
}

// The smallest and the largest eigenvalue.
std::pair<double, double> Spectrum(const Problem& problem) {
  std::vector<double> a = Dense(problem);
  const int rows = static_cast<int>(problem.rows());
  const int work_size = 64 * rows;
  std::vector<double> eigenvalues(rows), work(work_size);
  int info = 0;
  dsyev_("N", "L", &rows, a.data(), &rows, eigenvalues.data(), work.data(), &work_size, &info);
  EXPECT_EQ(info, 0);
  return {eigenvalues.front(), eigenvalues.back()};
}

void ExpectSymmetricPositiveDefinite(const Problem& problem) {
  const int64_t rows = problem.rows();
  const std::vector<double> a = Dense(problem);
  for (int64_t j = 0; j < rows; ++j) {
    for (int64_t i = 0; i < rows; ++i) ASSERT_EQ(a[j * rows + i], a[i * rows + j]);
  }
  EXPECT_GT(Spectrum(problem).first, 0);
  EXPECT_EQ(problem.rhs.size(), rows * problem.num_rhs);
}

TEST(ProblemsTest, AllAreSymmetricPositiveDefiniteInAnyShape) {
  for (const int64_t blocks : {1, 2, 3, 9}) {
    for (const int64_t size : {1, 2, 7}) {
      ExpectSymmetricPositiveDefinite(Mpc(blocks, size, 1));
      ExpectSymmetricPositiveDefinite(Poisson(blocks, size));
      ExpectSymmetricPositiveDefinite(RandomSpd(blocks, size, 1, 100));
      ExpectSymmetricPositiveDefinite(Expand(
          KalmanPalette({.states = size, .observations = 2, .steps = blocks, .num_rhs = 3})));
    }
  }
}

TEST(ProblemsTest, RandomSystemsHaveTheConditionAskedFor) {
  for (const double condition : {1e1, 1e6, 1e12}) {
    for (const int64_t blocks : {1, 6}) {
      const auto [smallest, largest] = Spectrum(RandomSpd(blocks, 8, 3, condition));
      EXPECT_NEAR(largest / smallest / condition, 1, 0.05) << condition << " " << blocks;
    }
  }
}

TEST(ProblemsTest, TheSameSeedGivesTheSameNumbers) {
  EXPECT_EQ(RandomSpd(4, 3, 7, 10).diagonal, RandomSpd(4, 3, 7, 10).diagonal);
  EXPECT_NE(RandomSpd(4, 3, 7, 10).diagonal, RandomSpd(4, 3, 8, 10).diagonal);
}

TEST(ProblemsTest, AKalmanPaletteIsTheSameMatrix) {
  const KalmanOptions options{.states = 5, .observations = 9, .steps = 6, .num_rhs = 2};
  const Problem palette = KalmanPalette(options), full = Kalman(options);
  EXPECT_EQ(palette.diagonal.size(), 2 * 25);
  EXPECT_EQ(palette.coupling.size(), 25);
  EXPECT_EQ(full.diagonal.size(), 6 * 25);
  EXPECT_EQ(Dense(palette), Dense(full));
  EXPECT_EQ(palette.rhs, full.rhs);
}

TEST(ProblemsTest, TheNilesLevelSystemIsTridiagonal) {
  EXPECT_EQ(NileFlow().size(), 100);
  EXPECT_EQ(std::accumulate(NileFlow().begin(), NileFlow().end(), 0.0), 91935);
  const Problem nile = LocalLevel(NileFlow(), kNileObservationVariance, kNileLevelVariance);
  EXPECT_EQ(nile.num_blocks, 100);
  EXPECT_EQ(nile.block_size, 1);
  EXPECT_DOUBLE_EQ(nile.diagonal[0], 1 / 15099.0 + 1 / 1469.1);
  EXPECT_DOUBLE_EQ(nile.diagonal[1], 1 / 15099.0 + 2 / 1469.1);
  EXPECT_DOUBLE_EQ(nile.coupling[98], -1 / 1469.1);
  EXPECT_DOUBLE_EQ(nile.rhs[0], 1120 / 15099.0);
}

TEST(ProblemsTest, BackwardErrorSeesAWrongColumnAndNaN) {
  Problem poisson = Poisson(4, 3);
  const std::vector<double> x = RandomColumns(poisson.rows(), 2, 1);
  std::vector<double> b = Multiply(poisson, x, 2);
  EXPECT_LT(BackwardError(poisson, x, b, 2), 1e-15);
  b.back() += 1;
  EXPECT_GT(BackwardError(poisson, x, b, 2), 1e-3);
  b.back() = NAN;
  EXPECT_TRUE(std::isnan(BackwardError(poisson, x, b, 2)));
}

}  // namespace
}  // namespace blockd::problems
