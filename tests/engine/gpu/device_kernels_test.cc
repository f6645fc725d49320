// The GPU's kernels for large blocks, for few of them, and for solves, on the host: whole launches,
// one thread block after the other. The answers are right, failures are named, in every form, and
// what is not launched early is not read early.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "engine/gpu/arch/arch.h"
#include "engine/gpu/lockstep/launch.h"
#include "engine/gpu/lockstep/sizes.h"
#include "engine/gpu/plan/plan_args.h"
#include "engine/gpu/segment/launch.h"
#include "engine/gpu/task_list/factor_tasks.h"
#include "engine/gpu/task_list/launch.h"
#include "engine/gpu/task_list/solve_tasks.h"
#include "engine/gpu/vectors/launch.h"
#include "engine/problems/problems.h"
#include "tests/engine/plan/plan_growth.h"
#include "tests/engine/plan/plan_substitution.h"
#include "tests/support/backends.h"
#include "tests/support/host_matrix.h"
#include "tests/support/oracle.h"

namespace blockd::gpu {
namespace {

using test::HostMatrix;

template <typename T>
inline constexpr Scalar kScalar = sizeof(T) == 4 ? Scalar::kFloat32 : Scalar::kFloat64;

EliminationPlan Cut(const Shape& shape, const std::vector<int64_t>& separators, bool open = false) {
  const auto plan = open ? EliminationPlan::MakeOpen(shape, separators)
                         : EliminationPlan::MakeWithSeparators(shape, separators);
  EXPECT_TRUE(plan.ok()) << plan.status();
  return *plan;
}

// Scalars that a vector of 16 bytes can be read from.
template <typename T>
class Memory {
 public:
  explicit Memory(int64_t scalars)
      : scalars_(scalars), space_(scalars * sizeof(T) / sizeof(double2) + 1) {
    std::fill_n(data(), scalars, std::numeric_limits<T>::quiet_NaN());
  }
  T* data() { return reinterpret_cast<T*>(space_.data()); }
  std::vector<T> values() { return std::vector<T>(data(), data() + scalars_); }

 private:
  const int64_t scalars_;
  std::vector<double2> space_;
};

template <typename T>
struct Factored {
  std::vector<T> factor;
  int64_t position = 0, value = 0;  // 1 + the first segment that failed, and its word
  double growth = 0;
};

// One system, by `eliminate(levels, entry)`. Scratch begins as NaNs, as shared memory does.
template <typename T, typename Eliminate>
Factored<T> Factor(const EliminationPlan& plan, const BlockTridiagonalView& matrix,
                   int64_t scratch_scalars, const Eliminate& eliminate) {
  const auto levels = static_cast<int64_t>(plan.levels().size());
  Memory<T> factor(plan.factor_bytes() / static_cast<int64_t>(sizeof(T)));
  Memory<T> chains(plan.chain_scalars() + 1);
  if (plan.is_open()) std::fill_n(chains.data(), plan.chain_scalars(), T{0});
  Memory<T> scratch(scratch_scalars);
  std::vector<int64_t> info(SegmentsBefore(plan, levels), plan.is_open() ? 0 : -1);
  FactorEntry entry = EntryOf(matrix, factor.data(), chains.data());
  entry.info = info.data();
  entry.scratch = scratch.data();
  std::vector<EliminateArgs> all;
  for (int64_t l = 0; l < levels; ++l) {
    all.push_back(ArgsOfLevel(plan, l));
    all.back().systems = &entry;
    all.back().num_systems = 1;
  }
  eliminate(all, entry);
  Factored<T> out;
  out.factor = factor.values();
  for (size_t i = 0; i < info.size(); ++i) {
    EXPECT_GE(info[i], 0) << "segment " << i << " says nothing";
    if (IsFailure(info[i])) break;  // those after it may never have been reached
  }
  SystemOutcome outcome = {-1, 0};
  entry.outcome = &outcome;
  EXPECT_TRUE(FindOutcomes(&entry, 1, static_cast<int64_t>(info.size()), nullptr).ok());
  out.position = outcome.failed;
  if (outcome.failed > 0) out.value = FailureOf(info[outcome.failed - 1]);
  out.growth = std::sqrt(std::bit_cast<float>(outcome.growth));
  return out;
}

int64_t MostSegments(const EliminationPlan& plan) {
  return static_cast<int64_t>(plan.levels()[0].segments.size());
}

// multiprocessors: many of them make tiles narrow.
template <typename T, int kTile>
Factored<T> FactorInStep(const EliminationPlan& plan, const BlockTridiagonalView& matrix,
                         int64_t multiprocessors) {
  const int64_t scratch = MostSegments(plan) * lockstep::ScratchScalars(plan.shape().block_size);
  return Factor<T>(plan, matrix, scratch, [&](const std::vector<EliminateArgs>& levels, auto&) {
    for (const EliminateArgs& level : levels) {
      lockstep::FactorContext context;
      context.tile = kTile;
      context.parallelism = multiprocessors;
      EXPECT_TRUE(lockstep::Eliminate<T>(level, context).ok());
    }
  });
}

Factored<float> FactorByTasks(const EliminationPlan& plan, const BlockTridiagonalView& matrix,
                              int64_t lanes, bool busy) {
  const int64_t n = plan.shape().block_size;
  const int64_t scratch = MostSegments(plan) * FactorTasks::ScratchScalars(n);
  return Factor<float>(plan, matrix, scratch,
                       [&](const std::vector<EliminateArgs>& levels, const FactorEntry& entry) {
                         const FactorTasks listed(levels, entry.superdiagonal != 0, lanes, busy);
                         ASSERT_TRUE(listed.complete());
                         std::vector<FactorTask> tasks(listed.num_tasks());
                         listed.Write(tasks.data());
                         std::vector<unsigned> counters(listed.num_counters()), stale = {7, 7, 7};
                         unsigned ticket = 0;
                         EliminateTasksArgs args;
                         args.tasks = tasks.data();
                         args.systems = &entry;
                         args.ticket = &ticket;
                         args.counters = counters.data();
                         args.stale = stale.data();
                         args.stale_words = 2;
                         args.num_systems = 1;
                         args.num_counters = static_cast<unsigned>(counters.size());
                         args.n = static_cast<int>(n);
                         args.num_tasks = static_cast<unsigned>(tasks.size());
                         EXPECT_TRUE(task_list::Eliminate(args, nullptr).ok());
                         EXPECT_EQ(stale, (std::vector<unsigned>{0, 0, 7}));
                         EXPECT_EQ(ticket, tasks.size());
                       });
}

template <typename T>
void ExpectRight(const EliminationPlan& plan, const HostMatrix& matrix,
                 const Factored<T>& factored) {
  EXPECT_EQ(factored.position, 0);
  // With large blocks the diagonal of the chain stands for that of D, which it exceeds.
  const double exact = test::GrowthOf(plan, matrix.view());
  EXPECT_GE(factored.growth, 0.999 * exact);
  EXPECT_LE(factored.growth, 8 * exact);
  const std::vector<double> b = problems::RandomColumns(matrix.shape().rows(), 1, 1);
  const std::vector<double> x = test::Substitution<T>(plan, factored.factor).Solve(b);
  EXPECT_LE(test::BackwardError(matrix.view(), x, b),
            4 * static_cast<double>(plan.shape().block_size) * test::Epsilon(kScalar<T>));
}

test::FormOptions Form(bool other) {
  return other ? test::FormOptions{.diagonal = DiagonalForm::kPackedLower,
                                   .coupling = CouplingForm::kSuperdiagonal}
               : test::FormOptions{};
}

template <typename T, int kTile>
void ExpectInStep(int64_t num_blocks, int64_t n, const std::vector<int64_t>& separators,
                  int64_t multiprocessors, bool other_form) {
  SCOPED_TRACE(testing::Message() << sizeof(T) << ", tile " << kTile << ", n " << n);
  const HostMatrix matrix(problems::Mpc(num_blocks, n, 3), kScalar<T>, Form(other_form));
  const EliminationPlan plan = Cut(matrix.shape(), separators);
  ExpectRight(plan, matrix, FactorInStep<T, kTile>(plan, matrix.view(), multiprocessors));
}

TEST(LockstepKernelsTest, Factor) {
  ExpectInStep<double, 64>(7, 70, {3, 1}, 0, false);
  ExpectInStep<double, 64>(3, 66, {1}, 0, true);
  ExpectInStep<float, 64>(5, 70, {2}, 0, true);
  ExpectInStep<double, 128>(3, 132, {1}, 0, false);
  ExpectInStep<double, 128>(3, 130, {1}, 1 << 20, true);
  ExpectInStep<float, 128>(2, 130, {}, 0, true);
  ExpectInStep<float, 128>(5, 132, {2}, 1 << 20, false);
}

TEST(LockstepKernelsTest, NameFailures) {
  const int64_t n = 66;
  const Shape shape{7, n, Scalar::kFloat64};
  const problems::Problem problem = problems::Mpc(7, n, 3);
  const EliminationPlan plan = Cut(shape, {2}), open = Cut(shape, {3, 1}, true);
  for (const int64_t row : {int64_t{5}, n - 1}) {
    HostMatrix matrix(problem, shape.scalar);
    const Segment& middle = plan.levels()[0].segments[1];
    matrix.SetDiagonal(middle.block(middle.count - 1), row, row, -1);
    const auto found = FactorInStep<double, 64>(plan, matrix.view(), 0);
    EXPECT_EQ(found.position, 2);
    EXPECT_EQ(found.value, 1 + (middle.count - 1) * n + row);
    // An open plan meets its last block at the end.
    HostMatrix last(problem, shape.scalar);
    last.SetDiagonal(6, row, row, -1);
    const auto at_end = FactorInStep<double, 64>(open, last.view(), 0);
    const Level& base = open.levels().back();
    EXPECT_EQ(at_end.position, SegmentsBefore(open, 2) + 1);
    EXPECT_EQ(at_end.value, 1 + (base.interiors - 1) * n + row);
  }
}

void ExpectByTasks(int64_t num_blocks, int64_t n, const std::vector<int64_t>& separators,
                   int64_t lanes, bool busy, bool other_form) {
  SCOPED_TRACE(testing::Message() << "n " << n << ", lanes " << lanes << ", busy " << busy);
  const HostMatrix matrix(problems::Mpc(num_blocks, n, 3), Scalar::kFloat32, Form(other_form));
  const EliminationPlan plan = Cut(matrix.shape(), separators);
  ExpectRight(plan, matrix, FactorByTasks(plan, matrix.view(), lanes, busy));
}

TEST(TaskListKernelsTest, Factor) {
  ExpectByTasks(3, 200, {1}, 1, false, false);
  ExpectByTasks(5, 196, {2}, 1000, false, true);
  ExpectByTasks(3, 197, {1}, 1000, true, true);
  ExpectByTasks(2, 260, {}, 1, true, false);
}

TEST(TaskListKernelsTest, NameFailures) {
  const int64_t n = 197;
  const Shape shape{4, n, Scalar::kFloat32};
  HostMatrix matrix(problems::Mpc(4, n, 3), shape.scalar);
  matrix.SetDiagonal(3, 150, 150, -1);
  const EliminationPlan plan = Cut(shape, {1}), open = Cut(shape, {2}, true);
  const auto found = FactorByTasks(plan, matrix.view(), 1, false);
  EXPECT_EQ(found.position, 2);
  EXPECT_EQ(found.value, 1 + 150);
  const auto at_end = FactorByTasks(open, matrix.view(), 1, false);
  EXPECT_EQ(at_end.position, SegmentsBefore(open, 1) + 1);
  EXPECT_EQ(at_end.value, 1 + n + 150);
}

// --- Solves ------------------------------------------------------------------------------------

// One multiprocessor, and so one thread block where all have to run at the same time.
DeviceLimits OneMultiprocessor() {
  DeviceLimits limits;
  limits.multiprocessors = 1;
  limits.shared_bytes = 228 << 10;
  limits.block_shared_bytes = 227 << 10;
  return limits;
}

// With a factor that the CPU has made: launch(args, limits), counters: words for a system and
// panel, all panels of columns in one launch.
template <typename T, typename Launch>
void ExpectSolves(int64_t num_blocks, int64_t n, const std::vector<int64_t>& separators,
                  int64_t columns, int64_t counters, const Launch& launch) {
  SCOPED_TRACE(testing::Message() << sizeof(T) << ", N " << num_blocks << " n " << n << ", "
                                  << columns << " columns");
  const HostMatrix matrix(problems::Mpc(num_blocks, n, 3), kScalar<T>);
  const auto plan = std::make_shared<const EliminationPlan>(Cut(matrix.shape(), separators));
  const std::unique_ptr<Solver> cpu = test::MakeSolver("cpu");
  FactorItem item;
  item.matrix = matrix.view();
  const std::vector<FactorOutcome> factored = cpu->Factor(plan, {&item, 1});
  ASSERT_TRUE(factored[0].status.ok()) << factored[0].status;
  const int64_t rows = matrix.shape().rows();
  const std::vector<double> b = problems::RandomColumns(rows, columns, 2);
  Memory<T> x(rows * columns), chains(plan->solve_chain_scalars(columns) + 1);
  const auto at = [&](int64_t row, int64_t column) {
    return (row / n * columns + column) * n + row % n;
  };
  for (int64_t c = 0; c < columns; ++c) {
    for (int64_t r = 0; r < rows; ++r) x.data()[at(r, c)] = static_cast<T>(b[c * rows + r]);
  }
  const SolveEntry entry = {factored[0].factorization->data(), x.data(), columns, chains.data()};
  SolveArgs args = SolveArgsOf(*plan);
  args.systems = &entry;
  args.num_systems = 1;
  args.panel_columns = columns <= 8 ? 8 : 16;
  args.most_columns = std::min(columns, args.panel_columns);
  args.num_panels = (columns + args.panel_columns - 1) / args.panel_columns;
  std::vector<unsigned> counts(args.num_panels * counters), stale = {7, 7, 7};
  unsigned long long tickets = 0;
  args.tickets = &tickets;
  args.counters = counts.data();
  args.stale = stale.data();
  args.stale_words = 2;
  ASSERT_TRUE(launch(args, OneMultiprocessor()).ok());
  EXPECT_EQ(stale, (std::vector<unsigned>{0, 0, 7}));
  std::vector<double> solution(rows * columns);
  for (int64_t c = 0; c < columns; ++c) {
    for (int64_t r = 0; r < rows; ++r) solution[c * rows + r] = x.data()[at(r, c)];
  }
  std::vector<double> rounded = test::ToDoubles(test::ToScalars(b, kScalar<T>), kScalar<T>);
  EXPECT_LE(test::BackwardError(matrix.view(), solution, rounded),
            4 * static_cast<double>(n) * test::Epsilon(kScalar<T>));
}

template <typename T>
void ExpectSolvesBySegments(int64_t num_blocks, int64_t n, const std::vector<int64_t>& separators,
                            int64_t columns) {
  ExpectSolves<T>(num_blocks, n, separators, columns, 2 * (separators.size() + 1),
                  [](const SolveArgs& args, const DeviceLimits& limits) {
                    return segment::Substitute<T>(args, limits, nullptr);
                  });
}

TEST(SegmentKernelsTest, Solve) {
  ExpectSolvesBySegments<double>(14, 7, {4, 1}, 3);
  ExpectSolvesBySegments<double>(9, 16, {3, 1}, 1);
  ExpectSolvesBySegments<double>(6, 48, {2}, 11);
  ExpectSolvesBySegments<double>(3, 128, {1}, 2);
  ExpectSolvesBySegments<float>(9, 32, {3, 1}, 17);
  ExpectSolvesBySegments<float>(5, 50, {2}, 4);
  ExpectSolvesBySegments<float>(2, 100, {}, 9);
}

template <typename T>
void ExpectSolvesInStep(int64_t num_blocks, int64_t n, const std::vector<int64_t>& separators,
                        int64_t columns) {
  int64_t segments = 1;
  for (const int64_t s : separators) segments += s + 1;
  ExpectSolves<T>(num_blocks, n, separators, columns, 4 * segments,
                  [](const SolveArgs& args, const DeviceLimits& limits) {
                    return lockstep::Substitute<T>(args, limits, nullptr);
                  });
}

TEST(LockstepKernelsTest, Solve) {
  ExpectSolvesInStep<double>(7, 144, {3, 1}, 1);
  ExpectSolvesInStep<double>(5, 150, {2}, 11);
  ExpectSolvesInStep<float>(5, 160, {2}, 3);
  ExpectSolvesInStep<float>(3, 131, {1}, 17);
}

TEST(TaskListKernelsTest, Solve) {
  for (const int64_t columns : {1, 3, 11}) {
    const int64_t n = 132, num_blocks = 5;
    std::vector<SolveTask> tasks;
    std::vector<float> vectors;
    ExpectSolves<float>(num_blocks, n, {2}, columns, 1,
                        [&](SolveArgs args, const DeviceLimits& limits) {
                          const SolveTasks listed(args, columns == 11 ? 2 : 0);
                          tasks = listed.tasks();
                          vectors.assign(listed.num_vectors() * n * args.most_columns, 0);
                          args.tasks = tasks.data();
                          args.num_tasks = static_cast<int64_t>(tasks.size());
                          args.num_vectors = listed.num_vectors();
                          args.counters = reinterpret_cast<unsigned*>(vectors.data());
                          return task_list::Substitute(args, limits, nullptr);
                        });
  }
}

}  // namespace
}  // namespace blockd::gpu
