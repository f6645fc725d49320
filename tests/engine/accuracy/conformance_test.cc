// Every backend, scalar and size against the oracles.
#include <cmath>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/engine/solver_fixture.h"

namespace blockd::test {
namespace {

struct Case {
  int64_t num_blocks, block_size, num_rhs, systems;
};

// Systems with more rows are judged by their residuals alone.
constexpr int64_t kOracleRows = 3000;

// All N x n, with d and K that take turns; fewer where the work would be long.
std::vector<Case> Cases() {
  std::vector<Case> cases;
  const std::vector<int64_t> num_rhs = {1, 2, 3, 16, 17, 50};
  const std::vector<int64_t> systems = {1, 2, 5};
  size_t turn = 0;
  for (const int64_t num_blocks : {1, 2, 3, 5, 64, 257}) {
    for (const int64_t n : {1, 2, 7, 16, 32, 33, 128}) {
      const bool large = num_blocks * n * n > (1 << 18);
      cases.push_back(
          {num_blocks, n, large ? 3 : num_rhs[turn % 6], large ? 1 : systems[turn % 3]});
      ++turn;
      if (large) continue;
      cases.push_back({num_blocks, n, num_rhs[(turn + 2) % 6], systems[(turn / 2) % 3]});
    }
  }
  for (const Case& c :
       {Case{3, 200, 2, 2}, Case{5, 256, 17, 1}, Case{4, 300, 1, 1}, Case{20, 200, 2, 1},
        Case{31, 64, 50, 2}, Case{1000, 3, 2, 2}, Case{2500, 1, 3, 1}, Case{100, 48, 16, 1}}) {
    cases.push_back(c);
  }
  return cases;
}

// More where a CPU would take too long: large blocks in step and as tasks, of several tiles each.
std::vector<Case> GpuCases() {
  return {{129, 200, 2, 1}, {40, 260, 3, 2}, {12, 512, 16, 1}, {100, 384, 1, 1},
          {6, 1024, 2, 1},  {9, 770, 5, 2},  {300, 128, 4, 3}, {5000, 64, 2, 1}};
}

problems::Problem Draw(const Case& c, int64_t system) {
  const uint64_t seed = 1000 + static_cast<uint64_t>(system);
  switch (c.num_blocks * c.block_size > kOracleRows ? 1 : system % 4) {
    case 0:
      return problems::RandomSpd(c.num_blocks, c.block_size, seed, 1e3);
    case 1:
      return problems::Mpc(c.num_blocks, c.block_size, seed);
    case 2:
      return problems::Poisson(c.num_blocks, c.block_size);
    default:
      return problems::Kalman({.states = c.block_size,
                               .observations = 2 * c.block_size,
                               .steps = c.num_blocks,
                               .seed = seed});
  }
}

using Param = std::tuple<Target, Case>;

class ConformanceTest : public SharedSolverTest<Param> {
 protected:
  const Case& size() const { return std::get<1>(GetParam()); }
  Scalar scalar() const { return std::get<0>(GetParam()).scalar; }
  Solver& solver() const { return SolverOf(std::get<0>(GetParam())); }

  std::vector<HostMatrix> Matrices() const {
    std::vector<HostMatrix> matrices;
    for (int64_t k = 0; k < size().systems; ++k) matrices.emplace_back(Draw(size(), k), scalar());
    return matrices;
  }
  // Factors all of them in one call.
  std::vector<std::shared_ptr<Factorization>> Factor(
      const std::vector<HostMatrix>& matrices) const {
    std::vector<FactorItem> items(matrices.size());
    for (size_t k = 0; k < items.size(); ++k) items[k].matrix = matrices[k].view();
    const auto plan = solver().Plan(matrices[0].shape(), size().systems);
    EXPECT_TRUE(plan.ok()) << plan.status();
    std::vector<std::shared_ptr<Factorization>> factorizations;
    for (FactorOutcome& outcome : solver().Factor(*plan, items)) {
      EXPECT_TRUE(outcome.status.ok()) << outcome.status;
      factorizations.push_back(std::move(outcome.factorization));
    }
    return factorizations;
  }
};

// Against the oracle, for systems that are small enough for one.
void ExpectNearOracle(const HostMatrix& matrix, std::span<const double> x,
                      std::span<const double> b, double bound) {
  if (matrix.shape().rows() <= 600) {
    const DenseCholesky dense(matrix.view());
    ASSERT_EQ(dense.minor, 0);
    EXPECT_LE(RelativeDifference(x, dense.Solve(b)), bound);
  } else if (matrix.shape().rows() <= kOracleRows) {
    const SequentialCholesky reference(matrix.view());
    ASSERT_EQ(reference.minor(), 0);
    EXPECT_LE(RelativeDifference(x, reference.Solve(b)), bound);
  }
}

TEST_P(ConformanceTest, SolvesABatchToMachinePrecision) {
  const std::vector<HostMatrix> matrices = Matrices();
  const auto factorizations = Factor(matrices);
  const Shape& shape = matrices[0].shape();
  const int64_t scalars = shape.rows() * size().num_rhs;
  std::vector<Columns> rhs, solutions;
  for (size_t k = 0; k < matrices.size(); ++k) {
    rhs.emplace_back(problems::RandomColumns(shape.rows(), size().num_rhs, 50 + k), scalar());
    solutions.emplace_back(scalars, scalar());
  }
  std::vector<SolveItem> items(matrices.size());
  for (size_t k = 0; k < items.size(); ++k) {
    ASSERT_NE(factorizations[k], nullptr);
    items[k].factorization = factorizations[k];
    items[k].rhs = rhs[k].data();
    items[k].solution = solutions[k].data();
    items[k].num_rhs = size().num_rhs;
  }
  const std::vector<SolveOutcome> outcomes = solver().Solve(items);
  ASSERT_EQ(outcomes.size(), items.size());
  for (size_t k = 0; k < items.size(); ++k) {
    SCOPED_TRACE(testing::Message() << "system " << k);
    ASSERT_TRUE(outcomes[k].status.ok()) << outcomes[k].status;
    const std::vector<double> x = solutions[k].values(), b = rhs[k].values();
    EXPECT_LE(BackwardError(matrices[k].view(), x, b), ErrorBound(shape));
    // Only system 0 has a condition number that is known, 1e3 to within rounding.
    if (k == 0) ExpectNearOracle(matrices[k], x, b, 2e3 * ErrorBound(shape));
  }
}

TEST_P(ConformanceTest, GivesTheLogDeterminant) {
  const HostMatrix matrix(Draw(size(), 0), scalar());
  const Shape& shape = matrix.shape();
  const auto factorization = MustFactor(solver(), matrix);
  ASSERT_NE(factorization, nullptr);
  const absl::StatusOr<double> value = solver().LogDeterminant(*factorization);
  ASSERT_TRUE(value.ok()) << value.status();
  if (shape.rows() > kOracleRows) {
    EXPECT_TRUE(std::isfinite(*value));
    return;
  }
  const double expected = shape.rows() <= 600 ? DenseCholesky(matrix.view()).LogDeterminant()
                                              : SequentialCholesky(matrix.view()).LogDeterminant();
  // Each pivot is off by some n eps times the condition number, 1e3.
  EXPECT_NEAR(*value, expected, 1e3 * shape.rows() * Epsilon(scalar()) + 1e-12);
}

std::string NameOf(const ::testing::TestParamInfo<Param>& info) {
  const Case& c = std::get<1>(info.param);
  return absl::StrCat(ToString(std::get<0>(info.param)), "_N", c.num_blocks, "_n", c.block_size,
                      "_d", c.num_rhs, "_K", c.systems, "_", info.index);
}
INSTANTIATE_TEST_SUITE_P(EverySize, ConformanceTest,
                         ::testing::Combine(::testing::ValuesIn(Targets()),
                                            ::testing::ValuesIn(Cases())),
                         NameOf);
INSTANTIATE_TEST_SUITE_P(OnGpus, ConformanceTest,
                         ::testing::Combine(::testing::ValuesIn(GpuTargets()),
                                            ::testing::ValuesIn(GpuCases())),
                         NameOf);

}  // namespace
}  // namespace blockd::test
