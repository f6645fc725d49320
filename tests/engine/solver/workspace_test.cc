// The exact device memory that calls take, the items that share a pass, and the wishes of one item,
// which do not bind the others.
#include <gmock/gmock.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/engine/solver_fixture.h"
#include "tests/support/hooked_backend.h"

namespace blockd::test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// A solver of its own for each test, so that the pool's peak is the test's.
class WorkspaceTest : public ::testing::TestWithParam<Target> {
 protected:
  static Scalar scalar() { return GetParam().scalar; }
  PoolStats Pool() const { return solver_->backend().pool().stats(); }
  Solver& solver() const { return *solver_; }

  const std::unique_ptr<Solver> solver_ =
      MakeSolver(GetParam().backend, {.memory_bytes = int64_t{64} << 20});
};

TEST_P(WorkspaceTest, AFactorizationTakesWhatTheBoundSays) {
  for (const bool keep : {false, true}) {
    const std::unique_ptr<Solver> fresh =
        MakeSolver(GetParam().backend, {.memory_bytes = int64_t{64} << 20});
    const HostMatrix matrix(problems::Mpc(40, 12, 1), scalar());
    const PlanPtr plan = Cut(matrix.shape(), {9, 3});
    std::vector<FactorItem> items(3);
    for (FactorItem& item : items) {
      item.matrix = matrix.view();
      item.keep_matrix = keep;
    }
    const std::vector<FactorOutcome> outcomes = fresh->Factor(plan, items);
    int64_t held = 0;
    for (const FactorOutcome& outcome : outcomes) {
      ASSERT_TRUE(outcome.status.ok()) << outcome.status;
      held += MemoryPool::Rounded(plan->factor_bytes()) +
              (keep ? StagedMatrix::BufferBytes(matrix.form()) : 0);
    }
    EXPECT_EQ(fresh->backend().pool().stats().used_bytes, held);
    EXPECT_EQ(fresh->backend().pool().stats().peak_used_bytes,
              held + fresh->FactorWorkspaceBytes(*plan, matrix.form(), 3, keep));
  }
}

// Nobody takes less from a pool that has just these pieces: one fewer byte in the sum is too few.
TEST_P(WorkspaceTest, AFactorizationTakesThePiecesThatAreSaid) {
  for (const bool keep : {false, true}) {
    const HostMatrix matrix(problems::Mpc(40, 12, 1), scalar());
    const PlanPtr plan = Cut(matrix.shape(), {9, 3});
    FactorItem item;
    item.matrix = matrix.view();
    item.keep_matrix = keep;
    int64_t bytes = 0;
    for (const int64_t piece : solver().FactorPieces(*plan, item)) {
      bytes += MemoryPool::Rounded(piece);
    }
    for (const int64_t missing : {int64_t{0}, MemoryPool::kAlignment}) {
      const std::unique_ptr<Solver> fresh =
          MakeSolver(GetParam().backend, {.memory_bytes = bytes - missing});
      EXPECT_EQ(fresh->Factor(plan, {&item, 1})[0].status.ok(), missing == 0);
    }
  }
}

TEST_P(WorkspaceTest, ASolveTakesWhatTheBoundSays) {
  const HostMatrix matrix(problems::Mpc(40, 12, 1), scalar());
  const PlanPtr plan = Cut(matrix.shape(), {9, 3});
  for (const bool residual : {false, true}) {
    const std::unique_ptr<Solver> fresh =
        MakeSolver(GetParam().backend, {.memory_bytes = int64_t{64} << 20});
    const auto factorization = MustFactor(*fresh, matrix, plan, residual);
    const int64_t factored = fresh->backend().pool().stats().peak_used_bytes;
    const int64_t held = fresh->backend().pool().stats().used_bytes;
    constexpr int64_t kColumns = 100;  // more than the factorization took
    Columns rhs(problems::RandomColumns(480, kColumns, 1), scalar());
    SolveItem item{.factorization = factorization, .rhs = rhs.data(), .solution = rhs.data()};
    item.num_rhs = kColumns;
    item.residual = residual;
    ASSERT_TRUE(fresh->Solve({&item, 1})[0].status.ok());
    const int64_t peak = fresh->backend().pool().stats().peak_used_bytes;
    EXPECT_GT(peak, factored);
    EXPECT_EQ(peak, held + fresh->SolveWorkspaceBytes(*plan, kColumns, residual));
  }
}

// One that does not fit fails alone.
TEST_P(WorkspaceTest, AnItemThatFitsIsSolvedBesideOneThatDoesNot) {
  const HostMatrix matrix(problems::Mpc(40, 12, 1), scalar());
  const PlanPtr plan = Cut(matrix.shape(), {3});
  const auto one = MustFactor(solver(), matrix, plan), other = MustFactor(solver(), matrix, plan);
  const Columns few(problems::RandomColumns(480, 2, 1), scalar());
  const Columns many(problems::RandomColumns(480, 3000, 2), scalar());
  for (const bool large_first : {false, true}) {
    absl::StatusOr<DeviceBuffer> wall = solver().backend().pool().Allocate(
        Pool().largest_free_bytes - 2 * solver().SolveWorkspaceBytes(*plan, 2, false));
    ASSERT_TRUE(wall.ok()) << wall.status();
    Columns small = few, large = many;
    std::vector<SolveItem> items(2);
    const size_t at = large_first ? 1 : 0;
    items[at] = {.factorization = one, .rhs = small.data(), .solution = small.data(), .num_rhs = 2};
    items[1 - at] = {
        .factorization = other, .rhs = large.data(), .solution = large.data(), .num_rhs = 3000};
    const std::vector<SolveOutcome> outcomes = solver().Solve(items);
    EXPECT_TRUE(outcomes[at].status.ok()) << outcomes[at].status;
    EXPECT_EQ(outcomes[1 - at].status.code(), absl::StatusCode::kResourceExhausted);
    EXPECT_EQ(small, MustSolve(solver(), one, few, 2));
    EXPECT_EQ(large, many);
  }
}

// In any place of the batch.
TEST_P(WorkspaceTest, WhoIsCancelledFirstStopsNobodyElse) {
  const HostMatrix matrix(problems::Mpc(60, 8, 1), scalar());
  const PlanPtr plan = Cut(matrix.shape(), {9, 3});
  const std::atomic<bool> cancelled = true;
  std::vector<FactorItem> items(2);
  for (FactorItem& item : items) item.matrix = matrix.view();
  items[0].cancelled = &cancelled;
  const std::vector<FactorOutcome> outcomes = solver().Factor(plan, items);
  EXPECT_EQ(outcomes[0].status.code(), absl::StatusCode::kCancelled) << outcomes[0].status;
  ASSERT_TRUE(outcomes[1].status.ok()) << outcomes[1].status;
  const Columns rhs(problems::RandomColumns(480, 2, 1), scalar());
  std::vector<Columns> x(2, rhs);
  const auto other = MustFactor(solver(), matrix, plan);
  std::vector<SolveItem> solves(2);
  for (size_t k = 0; k < 2; ++k) {
    solves[k] = {.factorization = k == 0 ? other : outcomes[1].factorization,
                 .rhs = x[k].data(),
                 .solution = x[k].data(),
                 .num_rhs = 2};
  }
  solves[0].cancelled = &cancelled;
  const std::vector<SolveOutcome> solved = solver().Solve(solves);
  EXPECT_EQ(solved[0].status.code(), absl::StatusCode::kCancelled) << solved[0].status;
  EXPECT_TRUE(solved[1].status.ok()) << solved[1].status;
  EXPECT_LE(BackwardError(matrix.view(), x[1].values(), rhs.values()), ErrorBound(matrix.shape()));
}

TEST_P(WorkspaceTest, MemoryOfAnotherSizeIsNotTakenForAFactor) {
  const HostMatrix small(problems::Mpc(20, 6, 1), scalar());
  const HostMatrix large(problems::Mpc(40, 6, 1), scalar());
  for (const auto& [from, to] : {std::pair{&small, &large}, std::pair{&large, &small}}) {
    DeviceBuffer old = Factorization::Recycle(MustFactor(solver(), *from));
    ASSERT_TRUE(old);
    const void* const memory = old.data();
    FactorItem item;
    item.matrix = to->view();
    item.recycle = &old;
    const auto plan = solver().Plan(to->shape());
    ASSERT_TRUE(plan.ok());
    const std::vector<FactorOutcome> outcomes = solver().Factor(*plan, {&item, 1});
    ASSERT_TRUE(outcomes[0].status.ok()) << outcomes[0].status;
    EXPECT_EQ(old.data(), memory);
    EXPECT_NE(outcomes[0].factorization->data(), memory);
    EXPECT_EQ(outcomes[0].factorization->bytes(), (*plan)->factor_bytes());
  }
}

TEST_P(WorkspaceTest, AStagedMatrixOfAnotherShapeIsRefused) {
  const HostMatrix matrix(problems::Poisson(4, 3), scalar());
  absl::StatusOr<StagedMatrix> staged = solver().Stage(matrix.form());
  ASSERT_TRUE(staged.ok()) << staged.status();
  FactorItem item;
  item.staged = &*staged;
  const std::vector<FactorOutcome> outcomes =
      solver().Factor(Cut({5, 3, scalar()}, {}), {&item, 1});
  EXPECT_EQ(outcomes[0].status.code(), absl::StatusCode::kInvalidArgument) << outcomes[0].status;
  EXPECT_THAT(std::string(outcomes[0].status.message()), HasSubstr("N=4 n=3"));
}

// Diagonal blocks from a palette beside couplings that are not, and the other way round.
TEST_P(WorkspaceTest, OnePaletteNeedsNoOther) {
  const problems::Problem problem =
      problems::KalmanPalette({.states = 7, .observations = 9, .steps = 11});
  const HostMatrix palette(problem, scalar(), {.palette = true});
  const HostMatrix whole(problem, scalar());
  const Columns rhs(problems::RandomColumns(77, 2, 1), scalar());
  for (const bool diagonal : {false, true}) {
    BlockTridiagonalView view = whole.view();
    if (diagonal) {
      view.form.diagonal_palette = palette.form().diagonal_palette;
      view.diagonal = palette.view().diagonal;
      view.diagonal_index = palette.view().diagonal_index;
    } else {
      view.form.coupling_palette = palette.form().coupling_palette;
      view.coupling = palette.view().coupling;
      view.coupling_index = palette.view().coupling_index;
    }
    ASSERT_TRUE(CheckView(view).ok()) << CheckView(view);
    FactorItem item;
    item.matrix = view;
    item.keep_matrix = true;
    const std::vector<FactorOutcome> outcomes = solver().Factor(Cut(view.shape(), {3}), {&item, 1});
    ASSERT_TRUE(outcomes[0].status.ok()) << outcomes[0].status;
    EXPECT_EQ(outcomes[0].factorization->matrix().bytes(), StagedMatrix::BufferBytes(view.form));
    Columns x = rhs;
    SolveItem solve{.factorization = outcomes[0].factorization,
                    .rhs = rhs.bytes().data(),
                    .solution = x.data()};
    solve.num_rhs = 2;
    solve.residual = true;
    const std::vector<SolveOutcome> solved = solver().Solve({&solve, 1});
    ASSERT_TRUE(solved[0].status.ok()) << solved[0].status;
    EXPECT_LE(BackwardError(whole.view(), x.values(), rhs.values()), ErrorBound(view.shape()));
    EXPECT_LE(*solved[0].backward_error, ErrorBound(view.shape()));
  }
}

INSTANTIATE_TEST_SUITE_P(EveryTarget, WorkspaceTest, ::testing::ValuesIn(Targets()), TargetName);

TEST(StagedMatrixTest, LaysItsPartsOneAfterAnother) {
  for (const int64_t diagonal : {0, 2}) {
    for (const int64_t coupling : {0, 3}) {
      MatrixForm form;
      form.shape = {100, 5, Scalar::kFloat64};
      form.diagonal_palette = diagonal;
      form.coupling_palette = coupling;
      const int64_t at = MemoryPool::Rounded((diagonal ? diagonal : 100) * 25 * 8);
      const int64_t index = at + MemoryPool::Rounded((coupling ? coupling : 99) * 25 * 8);
      const int64_t second = index + (diagonal ? MemoryPool::Rounded(400) : 0);
      EXPECT_EQ(StagedMatrix::Offset(form, MatrixPart::kCoupling), at);
      EXPECT_EQ(StagedMatrix::DiagonalIndexOffset(form), index);
      EXPECT_EQ(StagedMatrix::CouplingIndexOffset(form), second);
      EXPECT_EQ(StagedMatrix::BufferBytes(form),
                second + (coupling ? MemoryPool::Rounded(396) : 0));
    }
  }
}

// Counts the systems of each solve.
class CountingBackend : public HookedBackend {
 public:
  explicit CountingBackend(std::unique_ptr<Backend> inner)
      : HookedBackend(std::move(inner), CostModel(), std::make_shared<Gate>()) {}
  absl::Status Solve(Track track, const SolveBatch& batch,
                     absl::FunctionRef<bool()> wanted) override {
    std::vector<int64_t> columns;
    for (const SolveSystem& system : batch.systems) columns.push_back(system.num_rhs);
    solves_.push_back(columns);
    return HookedBackend::Solve(track, batch, wanted);
  }
  // The columns of each system of each solve so far.
  const std::vector<std::vector<int64_t>>& solves() const { return solves_; }

 private:
  std::vector<std::vector<int64_t>> solves_;
};

TEST(SharedPassTest, ItemsOfOneFactorizationAreOneSystem) {
  absl::StatusOr<std::unique_ptr<Backend>> cpu =
      CreateBackend("cpu", {.memory_bytes = 64 << 20, .cpu_threads = 2});
  ASSERT_TRUE(cpu.ok()) << cpu.status();
  auto made = std::make_unique<CountingBackend>(*std::move(cpu));
  const CountingBackend& backend = *made;
  Solver solver(std::move(made));
  const HostMatrix matrix(problems::Poisson(12, 5), Scalar::kFloat64);
  const auto one = MustFactor(solver, matrix, nullptr, true), other = MustFactor(solver, matrix);
  std::vector<Columns> x;
  std::vector<SolveItem> items(5);
  for (int64_t k = 0; k < 5; ++k) x.emplace_back(problems::RandomColumns(60, k + 1, k), Scalar{});
  for (int64_t k = 0; k < 5; ++k) {
    items[k] = {.factorization = k == 1 ? other : one,
                .rhs = x[k].data(),
                .solution = x[k].data(),
                .num_rhs = k + 1};
  }
  items[3].residual = true;  // goes by itself
  for (const SolveOutcome& outcome : solver.Solve(items)) {
    EXPECT_TRUE(outcome.status.ok()) << outcome.status;
  }
  EXPECT_THAT(backend.solves(), ElementsAre(ElementsAre(1 + 3 + 5, 2, 4)));
}

TEST(CpuBackendTest, IsWhatItsOptionsSay) {
  absl::StatusOr<std::unique_ptr<Backend>> backend =
      CreateBackend("cpu", {.memory_bytes = 1 << 20, .cpu_threads = 3, .cpu_lanes = 5});
  ASSERT_TRUE(backend.ok()) << backend.status();
  EXPECT_EQ((*backend)->device().backend, "cpu");
  EXPECT_EQ((*backend)->device().parallelism, 3);
  EXPECT_GT((*backend)->device().memory_bytes, int64_t{1} << 28);
  EXPECT_TRUE((*backend)->reads_host_memory());
  const CostModel wide = (*backend)->costs({4, 4, Scalar::kFloat64});
  const CostModel narrow = (*backend)->costs({4, 4, Scalar::kFloat32});
  EXPECT_EQ(wide.lanes, 5);
  EXPECT_EQ(wide.solve_lanes, 5);
  EXPECT_EQ(wide.device_flops_per_second, 5 * wide.lane_flops_per_second);
  EXPECT_EQ(narrow.lane_flops_per_second, 2 * wide.lane_flops_per_second);
  EXPECT_EQ(narrow.device_flops_per_second, 2 * wide.device_flops_per_second);
}

TEST(CpuBackendTest, TakesMostOfTheMemoryAndEveryProcessorUnlessTold) {
  absl::StatusOr<std::unique_ptr<Backend>> backend = CreateBackend("cpu", {});
  ASSERT_TRUE(backend.ok()) << backend.status();
  const int64_t all = (*backend)->device().memory_bytes;
  EXPECT_LE((*backend)->pool().stats().capacity_bytes, all / 4 * 3);
  EXPECT_GT((*backend)->pool().stats().capacity_bytes, 0);
  EXPECT_GE((*backend)->device().parallelism, 1);
  EXPECT_EQ((*backend)->costs({1, 1, Scalar::kFloat64}).lanes, (*backend)->device().parallelism);
}

TEST(CpuBackendTest, RunsTheInstructionsThatItIsLimitedTo) {
  const char* const limit = std::getenv("BLOCKD_CPU_INSTRUCTIONS");
  absl::StatusOr<std::unique_ptr<Backend>> backend =
      CreateBackend("cpu", {.memory_bytes = 1 << 20});
  ASSERT_TRUE(backend.ok()) << backend.status();
  const std::string& name = (*backend)->device().name;
  if (limit == nullptr) {
    EXPECT_THAT(
        name, ::testing::AnyOf(HasSubstr("(avx512)"), HasSubstr("(avx2)"), HasSubstr("(generic)")));
#if defined(__x86_64__)
    EXPECT_EQ(__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"),
              name.find("(generic)") == std::string::npos);
#endif
  } else {
    EXPECT_THAT(
        name, ::testing::AnyOf(HasSubstr(std::string("(") + limit + ")"), HasSubstr("(generic)")));
  }
}

TEST(CpuBackendTest, RefusesOptionsBelowZero) {
  const BackendOptions all[] = {
      {.memory_bytes = -1}, {.cpu_threads = -1}, {.cpu_lanes = -1}, {.device = -1}};
  for (const BackendOptions& options : all) {
    EXPECT_EQ(CreateBackend("cpu", options).status().code(), absl::StatusCode::kInvalidArgument);
  }
}

}  // namespace
}  // namespace blockd::test
