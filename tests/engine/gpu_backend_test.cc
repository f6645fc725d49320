// What only a backend with a device of its own does, through the Backend itself: a kernel that
// fails is named, and long work stops between its launches.
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <memory>

#include "tests/engine/solver_fixture.h"

namespace blockd::test {
namespace {

class GpuBackendTest : public ::testing::TestWithParam<Target> {
 protected:
  // With room for long work.
  static std::unique_ptr<Solver> MakeLargeSolver() {
    return MakeSolver(GetParam().backend, {.memory_bytes = int64_t{6} << 30});
  }
  static Scalar scalar() { return GetParam().scalar; }
};

DeviceBuffer Allocate(Solver& solver, int64_t bytes) {
  absl::StatusOr<DeviceBuffer> buffer = solver.backend().pool().Allocate(bytes);
  EXPECT_TRUE(buffer.ok()) << buffer.status();
  return buffer.ok() ? *std::move(buffer) : DeviceBuffer();
}

// Factors a matrix that stands nowhere, prints what came of it, and ends the process, whose device
// is lost.
[[noreturn]] void FactorFromNowhere(const Target& target, int64_t n) {
  const std::unique_ptr<Solver> solver = MakeSolver(target.backend);
  Backend& backend = solver->backend();
  const Shape shape{8, n, target.scalar};
  const auto plan = solver->Plan(shape);
  BlockTridiagonalView matrix;
  matrix.form.shape = shape;
  matrix.diagonal = matrix.coupling = reinterpret_cast<const void*>(uintptr_t{1} << 60);
  absl::StatusOr<DeviceBuffer> factor = backend.pool().Allocate((*plan)->factor_bytes());
  absl::StatusOr<DeviceBuffer> chains =
      backend.pool().Allocate((*plan)->chain_scalars() * ScalarBytes(shape.scalar) + 1);
  absl::StatusOr<DeviceBuffer> scratch =
      backend.pool().Allocate(backend.FactorScratchBytes(**plan, 1));
  const FactorSystem system = {matrix, factor->data(), chains->data()};
  FactorBatch batch{plan->get(), {&system, 1}};
  batch.scratch = scratch->data();
  const absl::Status status = backend.Factor(batch, [] { return true; }).status();
  std::fprintf(stderr, "%s\n", status.ToString().c_str());
  std::fflush(stderr);
  _exit(absl::IsInternal(status) ? 0 : 1);
}

TEST_P(GpuBackendTest, AKernelThatFailsIsNamed) {
  ::testing::FLAGS_gtest_death_test_style = "threadsafe";  // a process with a device of its own
  EXPECT_EXIT(FactorFromNowhere(GetParam(), 16), ::testing::ExitedWithCode(0), "EliminateSegments");
  EXPECT_EXIT(FactorFromNowhere(GetParam(), 900), ::testing::ExitedWithCode(0),
              "EliminateLockstep");
  if (scalar() == Scalar::kFloat32) {
    EXPECT_EXIT(FactorFromNowhere(GetParam(), 400), ::testing::ExitedWithCode(0), "EliminateTasks");
  }
}

// Each of its levels is a graph of its own, which the host does not run ahead of.
TEST_P(GpuBackendTest, ALongFactorizationIsRightAndCanBeCancelled) {
  const std::unique_ptr<Solver> solver = MakeLargeSolver();
  const HostMatrix matrix(problems::Mpc(48, 1024, 1), scalar());
  const PlanPtr plan = Cut(matrix.shape(), {11, 3});
  ASSERT_GT(plan->factor_flops(), 2e11);
  std::atomic<bool> cancelled = true;
  FactorItem item;
  item.matrix = matrix.view();
  item.cancelled = &cancelled;
  EXPECT_TRUE(absl::IsCancelled(solver->Factor(plan, {&item, 1})[0].status));
  cancelled = false;
  const FactorOutcome outcome = std::move(solver->Factor(plan, {&item, 1})[0]);
  ASSERT_TRUE(outcome.status.ok()) << outcome.status;
  Columns rhs(problems::RandomColumns(matrix.shape().rows(), 2, 1), scalar());
  const Columns x = MustSolve(*solver, outcome.factorization, rhs, 2);
  EXPECT_LE(BackwardError(matrix.view(), x.values(), rhs.values()), ErrorBound(matrix.shape()));
}

TEST_P(GpuBackendTest, ALongSolveStopsBetweenItsLaunches) {
  const std::unique_ptr<Solver> solver = MakeLargeSolver();
  const HostMatrix matrix(problems::Mpc(6, 1024, 1), scalar());
  const PlanPtr plan = Cut(matrix.shape(), {1});
  const auto factorization = MustFactor(*solver, matrix, plan);
  ASSERT_NE(factorization, nullptr);
  const int64_t bytes = ScalarBytes(scalar());
  const auto columns = static_cast<int64_t>(7e11 / plan->solve_flops(1));
  const DeviceBuffer x = Allocate(*solver, matrix.shape().rows() * columns * bytes);
  const DeviceBuffer chains = Allocate(*solver, plan->solve_chain_scalars(columns) * bytes);
  const SolveSystem system = {factorization->data(), x.data(), columns, chains.data()};
  Backend& backend = solver->backend();
  const SolveBatch batch{plan.get(), {&system, 1}};
  int asked = 0;
  EXPECT_TRUE(absl::IsCancelled(backend.Solve(batch, [&asked] { return ++asked < 3; })));
  EXPECT_EQ(asked, 3);
  EXPECT_TRUE(backend.Solve(batch, [&asked] { return ++asked > 0; }).ok());
  EXPECT_GE(asked, 3 + 4);  // before, and before each of four launches or more
  EXPECT_TRUE(backend.Synchronize().ok());
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(GpuBackendTest);
INSTANTIATE_TEST_SUITE_P(EveryTarget, GpuBackendTest, ::testing::ValuesIn(GpuTargets()),
                         TargetName);

}  // namespace
}  // namespace blockd::test
