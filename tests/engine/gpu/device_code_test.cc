// Kernels' code for small blocks on the host's threads: what one thread block does with a segment,
// one segment after the other, and what the host tells it of a plan. The answers are right,
// failures are named, and the thread sanitizer sees who waits for whom.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/gpu/arch/arch.h"
#include "engine/gpu/inverse/segment_walk.h"
#include "engine/gpu/segment/level_args.h"
#include "engine/gpu/segment/matrix_segment.h"
#include "engine/gpu/segment/warpgroup_segment.h"
#include "engine/problems/problems.h"
#include "tests/engine/plan/plan_growth.h"
#include "tests/engine/plan/plan_substitution.h"
#include "tests/support/host_matrix.h"
#include "tests/support/oracle.h"

namespace blockd::gpu {
namespace {

using test::HostMatrix;

// The segment for floats with 33 to 64 rows, as segment/factor.cu chooses it.
#if defined(BLOCKD_GPU_LIKE_AMD)
template <typename T, int kTile, bool kFull>
using LargeSegment = MatrixSegment<T, kTile, kFull>;
#else
template <typename T, int kTile, bool kFull>
using LargeSegment = WarpgroupSegment<T, kTile, kFull>;
#endif

template <typename T>
inline constexpr Scalar kScalar = sizeof(T) == 4 ? Scalar::kFloat32 : Scalar::kFloat64;

// --- Tiles -------------------------------------------------------------------------------------

template <typename T, int kTile, int kWarps>
void ExpectInverts() {
  SCOPED_TRACE(testing::Message() << kTile << " rows, " << kWarps << " warps, " << sizeof(T));
  constexpr int kLead = kLd<T, kTile>;
  const HostMatrix matrix(problems::RandomSpd(1, kTile, 5, 100), kScalar<T>);
  for (const int bad : {kTile, kTile - 1, kTile / 2 + 1, 0}) {
    HostThreadBlock block(kWarps * kWarp, kTile * kLead * sizeof(T));
    T* const tile = reinterpret_cast<T*>(block.shared());
    // The lower triangle and the tiles of 8 x 8 on the diagonal.
    std::vector<long double> a(kTile * kTile);
    for (int column = 0; column < kTile; ++column) {
      for (int row = 0; row < kTile; ++row) {
        const int low = std::min(row, column), high = std::max(row, column);
        T value = static_cast<T>(matrix.Diagonal(0, high, low));
        if (row == column && row == bad) value = -1;
        a[column * kTile + row] = value;
        if (row / 8 >= column / 8) tile[column * kLead + row] = value;
      }
    }
    int failed = -1;
    block.Run(
        [&](int thread) { TileInverter<kTile, kWarps, T>(tile, &failed, thread / kWarp).Run(); });
    ASSERT_EQ(failed, bad == kTile ? -1 : bad);
    if (failed >= 0) continue;
    // X A X' is the identity.
    const auto x = [&](int row, int column) -> long double {
      return row < column ? 0 : tile[column * kLead + row];
    };
    long double worst = 0;
    for (int i = 0; i < kTile; ++i) {
      std::vector<long double> row(kTile);
      for (int k = 0; k <= i; ++k) {
        for (int j = 0; j < kTile; ++j) row[j] += x(i, k) * a[j * kTile + k];
      }
      for (int j = 0; j < kTile; ++j) {
        long double sum = i == j ? -1 : 0;
        for (int k = 0; k <= j; ++k) sum += row[k] * x(j, k);
        worst = std::max(worst, std::abs(sum));
      }
    }
    EXPECT_LE(worst, 100 * kTile * test::Epsilon(kScalar<T>));
  }
}

TEST(DeviceCodeOnThreadsTest, InvertsTiles) {
  ExpectInverts<double, 16, 1>();
  ExpectInverts<double, 32, 2>();
  ExpectInverts<double, 64, 4>();
  ExpectInverts<double, 64, 8>();
  ExpectInverts<double, 128, 8>();
  ExpectInverts<float, 16, 1>();
  ExpectInverts<float, 32, 2>();
  ExpectInverts<float, 64, 4>();
  ExpectInverts<float, 64, 8>();
  ExpectInverts<float, 128, 8>();
}

// A matrix whose first pivot is 2^exponent is inverted, or its first pivot is refused.
template <typename T, int kTile, int kWarps>
void ExpectLargePivots(int exponent, bool refused) {
  SCOPED_TRACE(testing::Message() << kTile << " rows, 2^" << exponent << ", " << sizeof(T));
  constexpr int kLead = kLd<T, kTile>;
  HostThreadBlock block(kWarps * kWarp, kTile * kLead * sizeof(T));
  T* const tile = reinterpret_cast<T*>(block.shared());
  // The diagonal and, in the first column, half of it: pivots are 1, 3/4, 2/3, ... times
  // 2^exponent.
  const T scale = std::ldexp(T{1}, exponent);
  for (int column = 0; column < kTile; ++column) {
    for (int row = column / 8 * 8; row < kTile; ++row) {
      const bool beside = row == column + 1 || column == row + 1;
      tile[column * kLead + row] = row == column ? scale : beside ? scale / 2 : T{0};
    }
  }
  int failed = -1;
  block.Run(
      [&](int thread) { TileInverter<kTile, kWarps, T>(tile, &failed, thread / kWarp).Run(); });
  if (refused) {
    EXPECT_EQ(failed, 0);
    return;
  }
  ASSERT_EQ(failed, -1);
  const T root = 1 / std::sqrt(scale);
  EXPECT_NEAR(tile[0] / root, 1, 1e-6);
  EXPECT_NEAR(tile[kLead + 1] / root, std::sqrt(4.0 / 3), 1e-6);
  EXPECT_NEAR(tile[1] / root, -std::sqrt(1.0 / 3), 1e-6);
}

// The hardware makes the reciprocal of a larger pivot zero: no such pivot is taken for a good one.
TEST(DeviceCodeOnThreadsTest, PivotsWithoutAReciprocalAreRefused) {
  ExpectLargePivots<float, 64, 4>(125, false);
  // In double too, which all tiles are in with AMD's matrix instructions.
  ExpectLargePivots<float, 64, 4>(126, true);
  ExpectLargePivots<float, 64, 4>(127, true);
  ExpectLargePivots<double, 16, 1>(1021, false);
  ExpectLargePivots<double, 16, 1>(1022, true);
  ExpectLargePivots<double, 32, 2>(1023, true);
}

// --- Segments ----------------------------------------------------------------------------------

// The results of a launch for one system.
template <typename T>
struct Factored {
  std::vector<T> factor;
  SystemOutcome outcome = {-1, 0};
  int64_t word = 0;  // of the segment that failed
};

template <template <typename, int, bool> class Segment, typename T, int kTile, bool kFull>
void RunSegment(const EliminateSegmentsArgs& args, int64_t ticket) {
  using Mine = Segment<T, kTile, kFull>;
  const Assignment assignment(args, ticket, sizeof(T));
  // The first warp is the one that the hardware would name with half of the thread blocks.
  const int first_warp = ticket % 2 == 0 ? 0 : kWarpsOf<kTile> / 4;
  Outcome outcome = {
      .failed = -1, .first = kNobody, .value = 0, .first_warp = first_warp, .growth = 0};
  HostThreadBlock block(kWarpsOf<kTile> * kWarp, Mine::kSharedScalars * sizeof(T));
  block.Run([&](int thread) {
    Mine segment(args, assignment, reinterpret_cast<T*>(block.shared()), &outcome, thread);
    segment.Run();
  });
}

template <template <typename, int, bool> class Segment, typename T, int kTile>
Factored<T> Factor(const EliminationPlan& plan, const BlockTridiagonalView& matrix) {
  const int64_t levels = static_cast<int64_t>(plan.levels().size());
  const int64_t segments = SegmentsBefore(plan, levels);
  Factored<T> out;
  out.factor.assign(plan.factor_bytes() / sizeof(T), T{});
  std::vector<T> chains(plan.chain_scalars());
  std::vector<int64_t> info(segments);
  std::vector<uint32_t> done(segments);
  FactorEntry entry = EntryOf(matrix, out.factor.data(), chains.data());
  entry.info = info.data();
  entry.outcome = &out.outcome;
  EliminateSegmentsArgs args = ArgsOfLevels(plan, 0, kMostLevelsALaunch);
  args.systems = &entry;
  args.num_systems = 1;
  args.done = done.data();
  args.done_stride = segments;
  args.epoch = 7;
  for (int64_t ticket = 0; ticket < segments; ++ticket) {
    if (plan.shape().block_size == kTile) {
      RunSegment<Segment, T, kTile, true>(args, ticket);
    } else {
      RunSegment<Segment, T, kTile, false>(args, ticket);
    }
  }
  if (out.outcome.failed > 0) out.word = info[out.outcome.failed - 1];
  return out;
}

struct Case {
  int64_t num_blocks, n;
  std::vector<int64_t> separators;
};

template <template <typename, int, bool> class Segment, typename T, int kTile>
void ExpectFactors(const Case& chosen, const test::FormOptions& form = {}) {
  const auto& [num_blocks, n, separators] = chosen;
  SCOPED_TRACE(testing::Message() << "N " << num_blocks << " n " << n << " first cut "
                                  << (separators.empty() ? 0 : separators[0]) << ", " << sizeof(T));
  const problems::Problem problem =
      form.palette
          ? problems::KalmanPalette({.states = n, .observations = n + 1, .steps = num_blocks})
          : problems::Mpc(num_blocks, n, 3);
  const HostMatrix matrix(problem, kScalar<T>, form);
  const auto plan = EliminationPlan::MakeWithSeparators(matrix.shape(), separators);
  ASSERT_TRUE(plan.ok()) << plan.status();
  const auto factored = Factor<Segment, T, kTile>(*plan, matrix.view());
  EXPECT_EQ(factored.outcome.failed, 0);
  // The largest parts of several blocks' growth may add up.
  const double growth = std::sqrt(std::bit_cast<float>(factored.outcome.growth));
  const double exact = test::GrowthOf(*plan, matrix.view());
  EXPECT_GE(growth, 0.999 * exact);
  EXPECT_LE(growth, 2 * exact);
  const std::vector<double> b = problems::RandomColumns(matrix.shape().rows(), 1, 1);
  const std::vector<double> x = test::Substitution<T>(*plan, factored.factor).Solve(b);
  EXPECT_LE(test::BackwardError(matrix.view(), x, b), 4 * n * test::Epsilon(kScalar<T>));
}

template <template <typename, int, bool> class Segment, typename T, int kTile>
void ExpectNamesFailures(int64_t n) {
  const Shape shape{7, n, kScalar<T>};
  const auto plan = EliminationPlan::MakeWithSeparators(shape, {2});
  ASSERT_TRUE(plan.ok()) << plan.status();
  const problems::Problem problem = problems::Mpc(shape.num_blocks, n, 3);
  // The last interior of one segment a level fails, in a row of its first or its last part.
  for (size_t l = 0; l < plan->levels().size(); ++l) {
    const Level& level = plan->levels()[l];
    const int64_t s = static_cast<int64_t>(level.segments.size()) / 2;
    const auto& segment = level.segments[s];
    const int64_t interior = segment.count - 1;
    const int64_t block = plan->OriginalBlock(static_cast<int64_t>(l), segment.block(interior));
    for (const int64_t row : {n / 4, n - 1}) {
      SCOPED_TRACE(testing::Message() << "n " << n << " level " << l << " row " << row);
      HostMatrix matrix(problem, kScalar<T>);
      matrix.SetDiagonal(block, row, row, -1);
      const auto factored = Factor<Segment, T, kTile>(*plan, matrix.view());
      EXPECT_EQ(factored.outcome.failed, SegmentsBefore(*plan, static_cast<int64_t>(l)) + s + 1);
      EXPECT_EQ(FailureOf(factored.word), 1 + interior * n + row);
    }
  }
}

TEST(DeviceCodeOnThreadsTest, LargeFloatsFactor) {
  for (const Case& chosen :
       std::vector<Case>{{1, 64, {}}, {2, 40, {}}, {5, 64, {1}}, {9, 64, {3, 1}}, {14, 33, {2}}}) {
    ExpectFactors<LargeSegment, float, 64>(chosen);
  }
}

TEST(DeviceCodeOnThreadsTest, MatrixInstructionsFactor) {
  ExpectFactors<MatrixSegment, double, 64>({5, 64, {2}});
  ExpectFactors<MatrixSegment, double, 64>({5, 50, {1}});
  ExpectFactors<MatrixSegment, float, 64>({5, 64, {2}});
  ExpectFactors<MatrixSegment, double, 32>({9, 32, {3, 1}});
  ExpectFactors<MatrixSegment, float, 32>({7, 20, {2}});
  ExpectFactors<MatrixSegment, double, 16>({14, 7, {4, 1}});
  ExpectFactors<MatrixSegment, float, 16>({10, 16, {4, 1}});
  ExpectFactors<MatrixSegment, float, 128>({3, 128, {1}});
  ExpectFactors<MatrixSegment, float, 128>({2, 70, {}});
}

TEST(DeviceCodeOnThreadsTest, EveryFormIsRead) {
  for (const bool palette : {false, true}) {
    for (const DiagonalForm diagonal : {DiagonalForm::kFull, DiagonalForm::kPackedLower}) {
      const test::FormOptions form = {
          .diagonal = diagonal, .coupling = CouplingForm::kSuperdiagonal, .palette = palette};
      ExpectFactors<LargeSegment, float, 64>({4, palette ? 64 : 35, {1}}, form);
      ExpectFactors<MatrixSegment, double, 16>({7, palette ? 16 : 9, {2}}, form);
    }
  }
}

// An open plan has segments without interiors, and meets its last block at the end.
template <template <typename, int, bool> class Segment, typename T, int kTile>
void ExpectOpenPlansEndWithTheLastBlock(int64_t n) {
  const Shape shape{7, n, kScalar<T>};
  const auto plan = EliminationPlan::MakeOpen(shape, {3, 1});
  ASSERT_TRUE(plan.ok()) << plan.status();
  const problems::Problem problem = problems::Mpc(shape.num_blocks, n, 3);
  const HostMatrix good(problem, kScalar<T>);
  EXPECT_EQ((Factor<Segment, T, kTile>(*plan, good.view()).outcome.failed), 0);
  HostMatrix matrix(problem, kScalar<T>);
  matrix.SetDiagonal(6, n - 2, n - 2, -1);
  const auto factored = Factor<Segment, T, kTile>(*plan, matrix.view());
  EXPECT_EQ(factored.outcome.failed, SegmentsBefore(*plan, 2) + 1);
  EXPECT_EQ(FailureOf(factored.word), 1 + (plan->levels()[2].interiors - 1) * n + n - 2);
}

TEST(DeviceCodeOnThreadsTest, OpenPlansEndWithTheLastBlock) {
  ExpectOpenPlansEndWithTheLastBlock<LargeSegment, float, 64>(50);
  ExpectOpenPlansEndWithTheLastBlock<MatrixSegment, double, 16>(9);
}

TEST(DeviceCodeOnThreadsTest, FailuresAreNamed) {
  ExpectNamesFailures<LargeSegment, float, 64>(64);
  ExpectNamesFailures<MatrixSegment, double, 32>(24);
}

// --- Selected inverses -------------------------------------------------------------------------

// Z of each level's chain, diagonal blocks and couplings.
template <typename T>
struct Inverted {
  std::vector<T> diagonal, coupling;
};

template <typename T, int kTile>
std::vector<Inverted<T>> Invert(const EliminationPlan& plan, const std::vector<T>& factor) {
  using Walk = inverse::SegmentWalk<T, kTile>;
  const int64_t square = plan.shape().block_size * plan.shape().block_size;
  std::vector<Inverted<T>> chains(plan.levels().size());
  std::vector<uint32_t> done(SegmentsBefore(plan, static_cast<int64_t>(plan.levels().size())));
  inverse::InvertSegmentsArgs args;
  args.factor = factor.data();
  args.done = done.data();
  args.epoch = 7;
  for (size_t l = plan.levels().size(); l-- > 0;) {
    const Level& level = plan.levels()[l];
    chains[l].diagonal.resize(level.chain_length * square);
    chains[l].coupling.resize(level.chain_length * square);
    inverse::SegmentsLevel& out = args.levels[args.num_levels++];
    out.shape = ShapeOf(plan, level);
    out.inverse_offset = level.inverse_offset;
    out.next_offset = level.next_offset;
    out.fill_offset = level.fill_offset;
    out.out.end = level.chain_length;
    out.out.diagonal = chains[l].diagonal.data();
    out.out.coupling = chains[l].coupling.data();
    out.num_segments = static_cast<int64_t>(level.segments.size());
    out.segments_before = args.segments;
    args.segments += out.num_segments;
  }
  for (int64_t ticket = 0; ticket < args.segments; ++ticket) {
    const inverse::WalkAssignment assignment(args, ticket, sizeof(T));
    HostThreadBlock block(Walk::kThreads, Walk::kSharedScalars * sizeof(T));
    block.Run([&](int) { Walk(args, assignment, reinterpret_cast<T*>(block.shared())).Run(); });
  }
  return chains;
}

template <typename T, int kTile>
void ExpectWalkInverts(const Case& chosen) {
  const auto& [num_blocks, n, separators] = chosen;
  SCOPED_TRACE(testing::Message() << "N " << num_blocks << " n " << n << ", " << sizeof(T));
  const HostMatrix matrix(problems::RandomSpd(num_blocks, n, 5, 10), kScalar<T>);
  const auto plan = EliminationPlan::MakeWithSeparators(matrix.shape(), separators);
  ASSERT_TRUE(plan.ok()) << plan.status();
  constexpr int kFactorTile = std::max(kTile, 16);
  const std::vector<T> factor = Factor<MatrixSegment, T, kFactorTile>(*plan, matrix.view()).factor;
  const Inverted<T> z = Invert<T, kTile>(*plan, factor)[0];
  const test::Substitution<T> substitution(*plan, factor);
  const double bound = 100 * static_cast<double>(n) * test::Epsilon(kScalar<T>);
  for (int64_t c = 0; c < num_blocks * n; ++c) {
    std::vector<double> unit(num_blocks * n);
    unit[c] = 1;
    const std::vector<double> column = substitution.Solve(unit);
    const int64_t b = c / n, at = (b * n + c % n) * n;
    for (int64_t r = 0; r < n; ++r) {
      ASSERT_NEAR(z.diagonal[at + r], column[b * n + r], bound);
      if (b + 1 == num_blocks) continue;
      ASSERT_NEAR(z.coupling[at + r], column[(b + 1) * n + r], bound);
    }
  }
}

TEST(DeviceCodeOnThreadsTest, WalksInvert) {
  ExpectWalkInverts<double, 8>({14, 4, {4, 1}});
  ExpectWalkInverts<float, 8>({9, 8, {2}});
  ExpectWalkInverts<double, 16>({9, 16, {3, 1}});
  ExpectWalkInverts<float, 16>({7, 11, {}});
  ExpectWalkInverts<double, 32>({7, 20, {2}});
  ExpectWalkInverts<float, 32>({5, 32, {1}});
  ExpectWalkInverts<double, 64>({6, 64, {2}});
  ExpectWalkInverts<float, 64>({5, 50, {1}});
}

}  // namespace
}  // namespace blockd::gpu
