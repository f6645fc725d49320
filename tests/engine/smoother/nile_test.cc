// The local level model of the Nile's annual flow: one block-tridiagonal solve against the
// classical Kalman filter and fixed-interval smoother.
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "engine/problems/series.h"
#include "tests/engine/solver_fixture.h"

namespace blockd::test {
namespace {

struct Smoothed {
  std::vector<double> level;
  std::vector<double> variance;
};

// y(t) = a(t) + e, a(t+1) = a(t) + w. A diffuse first level means that the first observation is all
// that is known of it: a(1|1) = y(1), P(1|1) = var e.
Smoothed KalmanSmoother(std::span<const double> y, double observation_variance,
                        double level_variance) {
  const size_t steps = y.size();
  std::vector<double> level(steps), variance(steps);  // filtered: given y(1..t)
  level[0] = y[0];
  variance[0] = observation_variance;
  for (size_t t = 1; t < steps; ++t) {
    const double predicted = variance[t - 1] + level_variance;
    const double gain = predicted / (predicted + observation_variance);
    level[t] = level[t - 1] + gain * (y[t] - level[t - 1]);
    variance[t] = (1 - gain) * predicted;
  }
  // Backward (Rauch, Tung and Striebel): what t+1 learned from the later years goes back to t.
  for (size_t t = steps - 1; t-- > 0;) {
    const double predicted = variance[t] + level_variance;
    const double back = variance[t] / predicted;
    level[t] += back * (level[t + 1] - level[t]);
    variance[t] += back * back * (variance[t + 1] - predicted);
  }
  return {level, variance};
}

std::vector<double> ReadNileFile() {
  const char* folder = std::getenv("BLOCKD_TEST_DATA");
  std::ifstream file(std::string(folder ? folder : BLOCKD_TEST_DATA) + "/nile.csv");
  EXPECT_TRUE(file.is_open());
  std::vector<double> flow;
  for (std::string line; std::getline(file, line);) {
    if (line.empty() || line[0] == '#' || line == "year,flow") continue;
    const std::vector<std::string> fields = absl::StrSplit(line, ',');
    int year = 0;
    double value = 0;
    EXPECT_EQ(fields.size(), 2u) << line;
    EXPECT_TRUE(absl::SimpleAtoi(fields.at(0), &year) && absl::SimpleAtod(fields.at(1), &value));
    EXPECT_EQ(year, 1871 + static_cast<int>(flow.size()));
    flow.push_back(value);
  }
  return flow;
}

TEST(NileDataTest, HoldsTheHundredPublishedValues) {
  const std::vector<double> flow = ReadNileFile();
  ASSERT_EQ(flow.size(), 100u);
  EXPECT_EQ(std::accumulate(flow.begin(), flow.end(), 0.0), 91935);
  EXPECT_EQ(flow.front(), 1120);
  EXPECT_EQ(flow[42], 456);  // 1913, the least
  EXPECT_EQ(flow.back(), 740);
  const std::span<const double> built_in = problems::NileFlow();
  EXPECT_EQ(flow, std::vector<double>(built_in.begin(), built_in.end()));
}

TEST(KalmanSmootherTest, SettlesAtTheVariancesOfTheSteadyState) {
  const double r = problems::kNileObservationVariance, q = problems::kNileLevelVariance;
  const Smoothed nile = KalmanSmoother(problems::NileFlow(), r, q);
  // The variance p of a prediction solves p^2 = q p + q r; filtered, it is p - q.
  const double predicted = (q + std::sqrt(q * q + 4 * q * r)) / 2;
  const double filtered = predicted - q;
  EXPECT_NEAR(nile.variance.back(), filtered, 1e-6 * filtered);
  const double back = filtered / predicted;
  const double smoothed = (filtered - back * back * predicted) / (1 - back * back);
  EXPECT_NEAR(nile.variance[50], smoothed, 1e-6 * smoothed);
}

class NileTest : public SolverTest {};

TEST_P(NileTest, TheSolveIsTheSmoother) {
  const std::span<const double> flow = problems::NileFlow();
  const Smoothed expected =
      KalmanSmoother(flow, problems::kNileObservationVariance, problems::kNileLevelVariance);
  const problems::Problem problem =
      problems::LocalLevel(flow, problems::kNileObservationVariance, problems::kNileLevelVariance);
  const HostMatrix matrix(problem, scalar());
  const auto factorization = MustFactor(solver(), matrix);
  const Columns smoothed = MustSolve(solver(), factorization, Columns(problem.rhs, scalar()), 1);
  EXPECT_LE(RelativeDifference(smoothed.values(), expected.level),
            scalar() == Scalar::kFloat64 ? 1e-9 : 1e-5);
}

TEST_P(NileTest, TheInverseHoldsTheVariances) {
  const std::span<const double> flow = problems::NileFlow();
  const Smoothed expected =
      KalmanSmoother(flow, problems::kNileObservationVariance, problems::kNileLevelVariance);
  const problems::Problem problem =
      problems::LocalLevel(flow, problems::kNileObservationVariance, problems::kNileLevelVariance);
  const HostMatrix matrix(problem, scalar());
  std::vector<double> identity(100 * 100);
  for (int64_t t = 0; t < 100; ++t) identity[t * 101] = 1;
  const std::vector<double> inverse =
      MustSolve(solver(), MustFactor(solver(), matrix), Columns(identity, scalar()), 100).values();
  std::vector<double> variance(100);
  for (int64_t t = 0; t < 100; ++t) variance[t] = inverse[t * 101];
  EXPECT_LE(RelativeDifference(variance, expected.variance),
            scalar() == Scalar::kFloat64 ? 1e-9 : 1e-5);
}

INSTANTIATE_TEST_SUITE_P(EveryTarget, NileTest, ::testing::ValuesIn(Targets()), TargetName);

}  // namespace
}  // namespace blockd::test
