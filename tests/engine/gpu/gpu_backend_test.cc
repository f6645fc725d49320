// Backends with a device of their own, through the Backend itself: a kernel that fails is named,
// and long work stops between its launches.
#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "blockd/engine/registered_memory.h"
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
  EXPECT_TRUE(
      absl::IsCancelled(backend.Solve(Track::kSolve, batch, [&asked] { return ++asked < 3; })));
  EXPECT_EQ(asked, 3);
  EXPECT_TRUE(backend.Solve(Track::kSolve, batch, [&asked] { return ++asked > 0; }).ok());
  EXPECT_GE(asked, 3 + 4);  // before, and before each of four launches or more
  EXPECT_TRUE(backend.Synchronize(Track::kSolve).ok());
}

// Systems that all have the same matrix and the same place for a factor.
class SharedSystems {
 public:
  SharedSystems(Solver& solver, const HostMatrix& matrix, PlanPtr plan, int64_t systems)
      : backend_(solver.backend()), plan_(std::move(plan)) {
    const int64_t n = matrix.shape().block_size, scalar = ScalarBytes(matrix.shape().scalar);
    const auto upload = [&](const void* blocks, int64_t count) {
      DeviceBuffer buffer = Allocate(solver, count * n * n * scalar);
      const std::span all(static_cast<const std::byte*>(blocks),
                          static_cast<size_t>(count * n * n * scalar));
      EXPECT_TRUE(backend_.Write(buffer.data(), {&all, 1}).ok());
      EXPECT_TRUE(backend_.AwaitWrites().ok());
      return buffer;
    };
    diagonal_ = upload(matrix.view().diagonal, matrix.shape().num_blocks);
    coupling_ = upload(matrix.view().coupling, matrix.shape().num_blocks - 1);
    factor_ = Allocate(solver, plan_->factor_bytes());
    chains_ = Allocate(solver, 1 + plan_->chain_scalars() * scalar);
    scratch_ = Allocate(solver, 1 + backend_.FactorScratchBytes(*plan_, systems));
    systems_.assign(systems, FactorSystem{matrix.view(), factor_.data(), chains_.data()});
    for (FactorSystem& system : systems_) {
      system.matrix.diagonal = diagonal_.data();
      system.matrix.coupling = coupling_.data();
    }
  }
  absl::StatusOr<std::vector<FactorReport>> Factor(absl::FunctionRef<bool()> wanted) {
    FactorBatch batch{plan_.get(), systems_};
    batch.scratch = scratch_.data();
    return backend_.Factor(batch, wanted);
  }
  void* factor() const { return factor_.data(); }

 private:
  Backend& backend_;
  const PlanPtr plan_;
  DeviceBuffer diagonal_, coupling_, factor_, chains_, scratch_;
  std::vector<FactorSystem> systems_;
};

// The kernels of a batch that was cancelled between its launches say how it went when the next
// batch is already there.
TEST_P(GpuBackendTest, ACancelledBatchSaysNothingOfTheNextOne) {
  const std::unique_ptr<Solver> solver = MakeLargeSolver();
  const HostMatrix good(problems::Mpc(2001, 16, 1), scalar());
  HostMatrix bad = good;
  bad.SetDiagonal(0, 3, 3, -1);
  const PlanPtr plan = Cut(good.shape(), {1000});
  // A segment has a flag, of which there are 2^21: one launch does not take all.
  SharedSystems many(*solver, bad, plan, 2200), one(*solver, good, plan, 1);
  int asked = 0;
  EXPECT_TRUE(absl::IsCancelled(many.Factor([&asked] { return ++asked < 2; }).status()));
  ASSERT_EQ(asked, 2);
  const auto reports = one.Factor([] { return true; });
  ASSERT_TRUE(reports.ok()) << reports.status();
  EXPECT_FALSE((*reports)[0].failure.has_value());
  EXPECT_GE((*reports)[0].growth, 1);
}

// A factorization is known to have ended a little before its last kernel has.
TEST_P(GpuBackendTest, AWriteAndTheOtherTrackComeAfterAFactorizationThatHasEnded) {
  const std::unique_ptr<Solver> solver = MakeLargeSolver();
  Backend& backend = solver->backend();
  for (const int64_t n : {16, 50, 300}) {
    const HostMatrix matrix(problems::Mpc(40, n, 1), scalar());
    const PlanPtr plan = Cut(matrix.shape(), {12});
    SharedSystems system(*solver, matrix, plan, 1);
    const std::vector<std::byte> pattern(plan->factor_bytes(), std::byte{0x5a});
    std::vector<std::byte> found(pattern.size());
    const auto bytes = static_cast<int64_t>(pattern.size());
    for (int repeat = 0; repeat < 20; ++repeat) {
      ASSERT_TRUE(system.Factor([] { return true; }).ok());
      if (repeat % 2 == 0) {
        const std::span<const std::byte> all = pattern;
        ASSERT_TRUE(backend.Write(system.factor(), {&all, 1}).ok());
        ASSERT_TRUE(backend.AwaitWrites().ok());
      } else {
        ASSERT_TRUE(backend.Upload(Track::kSolve, system.factor(), pattern.data(), bytes).ok());
      }
      ASSERT_TRUE(backend.Download(Track::kSolve, found.data(), system.factor(), bytes).ok());
      ASSERT_EQ(found, pattern) << "n " << n << " repeat " << repeat;
    }
  }
}

// A solve of large blocks takes all multiprocessors, and its thread blocks wait for one another.
TEST_P(GpuBackendTest, LargeSolvesOnBothTracksEndWithTheirBits) {
  const std::unique_ptr<Solver> solver = MakeLargeSolver();
  for (const int64_t n : {256, 300}) {
    const HostMatrix matrix(problems::Mpc(64, n, 1), scalar());
    const auto factorization = MustFactor(*solver, matrix);
    ASSERT_NE(factorization, nullptr);
    const Columns rhs(problems::RandomColumns(matrix.shape().rows(), 1, 1), scalar());
    const Columns expected = MustSolve(*solver, factorization, rhs, 1);
    std::vector<std::thread> threads;
    for (const Track track : {Track::kFactor, Track::kSolve}) {
      threads.emplace_back([&, track] {
        for (int round = 0; round < 200; ++round) {
          Columns x = rhs;
          SolveItem item{.factorization = factorization, .rhs = x.data(), .solution = x.data()};
          ASSERT_TRUE(solver->Solve({&item, 1}, nullptr, track)[0].status.ok());
          ASSERT_EQ(x, expected) << "n " << n << " round " << round;
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
}

// Right-hand sides in memory that the device reaches beside others that it does not, several
// batches in flight, awaited by another thread.
TEST_P(GpuBackendTest, BatchesInFlightHaveTheBitsOfThoseThatWait) {
  const std::unique_ptr<Solver> solver =
      MakeSolver(GetParam().backend,
                 {.memory_bytes = int64_t{1} << 30, .host_memory_bytes = int64_t{16} << 20});
  const std::shared_ptr<MemoryPool> reached = solver->backend().host_memory();
  ASSERT_NE(reached, nullptr);
  const HostMatrix matrix(problems::Mpc(40, 13, 1), scalar());
  constexpr int kSystems = 7, kBatches = 5;
  std::vector<std::shared_ptr<Factorization>> factorizations;
  for (int k = 0; k < kSystems; ++k) factorizations.push_back(MustFactor(*solver, matrix));
  const Columns expected = [&] {
    Columns x(problems::RandomColumns(matrix.shape().rows(), 3, 1), scalar());
    SolveItem item{.factorization = factorizations[0], .rhs = x.data(), .solution = x.data()};
    item.num_rhs = 3;
    EXPECT_TRUE(solver->Solve({&item, 1})[0].status.ok());
    return x;
  }();
  const Columns rhs(problems::RandomColumns(matrix.shape().rows(), 3, 1), scalar());
  const int64_t bytes = matrix.shape().rows() * 3 * ScalarBytes(scalar());
  for (const bool some_elsewhere : {false, true}) {
    std::vector<DeviceBuffer> pinned;
    std::vector<std::vector<std::byte>> plain;
    std::vector<std::byte*> solutions;
    std::vector<PendingSolve> flights;
    for (int batch = 0; batch < kBatches; ++batch) {
      std::vector<SolveItem> items;
      for (int k = 0; k < kSystems; ++k) {
        if (some_elsewhere && k % 3 == 1) {
          plain.emplace_back(static_cast<size_t>(bytes));
          solutions.push_back(plain.back().data());
        } else {
          absl::StatusOr<DeviceBuffer> piece = reached->Allocate(bytes);
          ASSERT_TRUE(piece.ok());
          solutions.push_back(piece->data());
          pinned.push_back(*std::move(piece));
        }
        std::memcpy(solutions.back(), rhs.bytes().data(), static_cast<size_t>(bytes));
        items.push_back({.factorization = factorizations[static_cast<size_t>(k)],
                         .rhs = solutions.back(),
                         .solution = solutions.back(),
                         .num_rhs = 3});
      }
      flights.push_back(solver->Submit(std::move(items)));
      // Submit has waited if there are columns that the device does not reach.
      EXPECT_TRUE(some_elsewhere || !flights.back().is_done());
    }
    std::thread([&] {
      for (PendingSolve& flight : flights) {
        Phases phases;
        for (const SolveOutcome& outcome : flight.Await(&phases)) EXPECT_TRUE(outcome.status.ok());
        EXPECT_GE(phases.compute_seconds, 0);
      }
    }).join();
    for (const std::byte* solution : solutions) {
      EXPECT_EQ(std::memcmp(solution, expected.bytes().data(), static_cast<size_t>(bytes)), 0);
    }
  }
}

// Each piece arrives, those that are copied from where they lie too.
TEST_P(GpuBackendTest, LargePiecesOfRegisteredMemoryArriveAmongOthers) {
  const std::unique_ptr<Solver> solver = MakeSolver(GetParam().backend);
  Backend& backend = solver->backend();
  constexpr int64_t kLarge = (int64_t{5} << 20) + 4096, kSmall = 70'000;
  std::vector<std::byte> memory(2 * kLarge + (int64_t{1} << 16));
  for (size_t i = 0; i < memory.size(); ++i)
    memory[i] = static_cast<std::byte>(i * 2654435761U >> 24);
  constexpr uintptr_t kPage = 4096;
  auto* const page = reinterpret_cast<std::byte*>(
      (reinterpret_cast<uintptr_t>(memory.data()) + kPage - 1) / kPage * kPage);
  absl::StatusOr<RegisteredMemory> registered = RegisteredMemory::Register(page, kLarge);
  ASSERT_TRUE(registered.ok()) << registered.status();
  const std::byte* const other = page + kLarge;  // of it nothing is registered
  const std::vector<std::pair<const std::byte*, int64_t>> pieces = {{other, kSmall},
                                                                    {page, kLarge},
                                                                    {other + kSmall, kSmall},
                                                                    {other, kLarge},
                                                                    {page + 8, kSmall}};
  std::vector<DeviceBuffer> buffers;
  std::vector<HostCopy> copies;
  for (const auto& [host, bytes] : pieces) {
    buffers.push_back(Allocate(*solver, bytes));
    copies.push_back({buffers.back().data(), host, bytes});
  }
  ASSERT_TRUE(backend.UploadMany(Track::kFactor, copies).ok());
  ASSERT_TRUE(backend.Synchronize(Track::kFactor).ok());
  for (const HostCopy& copy : copies) {
    std::vector<std::byte> back(static_cast<size_t>(copy.bytes));
    ASSERT_TRUE(backend.Download(Track::kFactor, back.data(), copy.device, copy.bytes).ok());
    EXPECT_EQ(std::memcmp(back.data(), copy.host, back.size()), 0);
  }
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(GpuBackendTest);
INSTANTIATE_TEST_SUITE_P(EveryTarget, GpuBackendTest, ::testing::ValuesIn(GpuTargets()),
                         TargetName);

}  // namespace
}  // namespace blockd::test
