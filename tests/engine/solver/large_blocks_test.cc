// The BLAS path for large blocks does what the packed panels do, here on blocks small enough to
// test every kind of segment.
#include "engine/cpu/kernels/large_blocks.h"

#include <cmath>
#include <random>
#include <tuple>
#include <vector>

#include "engine/cpu/kernels/kernels.h"
#include "gtest/gtest.h"

namespace blockd::cpu {
namespace {

constexpr int64_t kBlocks = 5;

// A diagonally dominant chain of full blocks.
template <typename T>
struct Chain5 {
  explicit Chain5(int64_t n) : n(n), diagonal(kBlocks * n * n), coupling((kBlocks - 1) * n * n) {
    std::mt19937_64 random(static_cast<uint64_t>(n));
    std::uniform_real_distribution<double> entry(-0.5, 0.5);
    for (T& value : coupling) value = static_cast<T>(entry(random));
    for (int64_t i = 0; i < kBlocks; ++i) {
      for (int64_t c = 0; c < n; ++c) {
        for (int64_t r = c; r < n; ++r) {
          const double value = r == c ? 2.0 * static_cast<double>(n) : entry(random);
          diagonal[(i * n + c) * n + r] = static_cast<T>(value);
        }
        // Above the diagonal nothing may be read.
        for (int64_t r = 0; r < c; ++r) diagonal[(i * n + c) * n + r] = static_cast<T>(NAN);
      }
    }
  }

  BlockTridiagonalView view(CouplingForm form) const {
    BlockTridiagonalView view;
    view.form.shape = {kBlocks, n, sizeof(T) == 8 ? Scalar::kFloat64 : Scalar::kFloat32};
    view.form.coupling = form;
    view.diagonal = diagonal.data();
    view.coupling = coupling.data();
    return view;
  }

  int64_t n;
  std::vector<T> diagonal, coupling;
};

// Everything that a segment writes; only lower triangles of diagonal blocks are compared.
template <typename T>
struct Outputs {
  Outputs(const Segment& segment, int64_t n)
      : inverse(segment.count * TriangleScalars(n)),
        next(segment.count * n * n),
        fill(segment.has_fill() ? segment.count * n * n : 0),
        left(n * n),
        right(n * n),
        coupling(n * n) {}

  EliminateTask<T> Task(const Segment& segment, const BlockTridiagonalView& view) {
    EliminateTask<T> task;
    task.n = view.shape().block_size;
    task.chain.matrix = &view;
    task.segment = &segment;
    task.inverse = inverse.data();
    task.next = next.data();
    if (segment.has_fill()) task.fill = fill.data();
    if (segment.left_separator >= 0) task.left_from_right = left.data();
    if (segment.right_separator >= 0) task.right_from_left = right.data();
    if (segment.has_fill()) task.coupling = coupling.data();
    return task;
  }

  std::vector<T> inverse, next, fill, left, right, coupling;
};

template <typename T>
void ExpectNear(const std::vector<T>& a, const std::vector<T>& b, double tolerance) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) ASSERT_NEAR(a[i], b[i], tolerance) << "scalar " << i;
}

template <typename T>
std::vector<T> Lower(std::vector<T> block, int64_t n) {
  for (int64_t c = 0; c < n; ++c) {
    for (int64_t r = 0; r < c; ++r) block[c * n + r] = 0;
  }
  return block;
}

// Interiors 1 to 3 of the chain; 0 and 4 are separators where the segment has them.
Segment MakeSegment(bool left, bool right) {
  Segment segment;
  segment.first = 1;
  segment.count = 3;
  segment.left_separator = left ? 0 : -1;
  segment.right_separator = right ? 1 : -1;
  segment.fill_slot = left && right ? 0 : -1;
  segment.reversed = left && !right;
  return segment;
}

template <typename T>
void Compare(int64_t n, bool left, bool right, CouplingForm form) {
  const Chain5<T> chain(n);
  const BlockTridiagonalView view = chain.view(form);
  const Segment segment = MakeSegment(left, right);
  Outputs<T> packed(segment, n), large(segment, n);
  EliminateTask<T> task = packed.Task(segment, view);
  std::vector<T> scratch(SelectKernels<T>().scratch_scalars(n, segment.has_fill()));
  task.scratch = scratch.data();
  ASSERT_EQ(SelectKernels<T>().eliminate(task).interior, -1);
  EliminateTask<T> large_task = large.Task(segment, view);
  std::vector<T> large_scratch(LargeScratchScalars(n, segment.has_fill()));
  large_task.scratch = large_scratch.data();
  ASSERT_EQ(EliminateLarge(large_task).interior, -1);

  const double tolerance = (sizeof(T) == 8 ? 1e-14 : 1e-5) * static_cast<double>(n);
  ExpectNear(large.inverse, packed.inverse, tolerance);
  ExpectNear(large.fill, packed.fill, tolerance);
  if (!left && !right) {
    packed.next.resize(2 * n * n);  // the base's last block has no next
    large.next.resize(2 * n * n);
  }
  ExpectNear(large.next, packed.next, tolerance);
  ExpectNear(Lower(large.left, n), Lower(packed.left, n), tolerance);
  ExpectNear(Lower(large.right, n), Lower(packed.right, n), tolerance);
  ExpectNear(large.coupling, packed.coupling, tolerance);
}

// Z of all blocks of the segment and its separators, by one of the two.
template <typename T>
std::vector<T> Inverse(const Outputs<T>& factor, const Segment& segment, int64_t n, bool large) {
  const int64_t square = n * n;
  // The blocks of Z at the separators: any two symmetric blocks, and one between them.
  std::vector<T> separators(3 * square), out((2 * kBlocks - 1) * square);
  for (int64_t c = 0; c < n; ++c) {
    for (int64_t r = 0; r < n; ++r) {
      const auto entry = static_cast<T>(1.0 / static_cast<double>(n + r + c));
      separators[c * n + r] = entry;
      separators[square + c * n + r] = entry + (r == c ? 1 : 0);
      separators[2 * square + c * n + r] = static_cast<T>(r - c) / static_cast<T>(n * n);
    }
  }
  InverseTask<T> task;
  task.n = n;
  task.segment = &segment;
  task.inverse = factor.inverse.data();
  task.next = factor.next.data();
  if (segment.has_fill()) task.fill = factor.fill.data(), task.between = &separators[2 * square];
  if (segment.left_separator >= 0) task.left = separators.data();
  if (segment.right_separator >= 0) task.right = &separators[square];
  task.out = {n, 0, kBlocks, out.data(), nullptr, &out[kBlocks * square]};
  const int64_t scalars = large ? LargeInverseScratchScalars(n, segment.has_fill())
                                : SelectKernels<T>().inverse_scratch_scalars(n, segment.has_fill());
  std::vector<T> scratch(scalars);
  task.scratch = scratch.data();
  large ? InvertLarge(task) : SelectKernels<T>().invert(task);
  return out;
}

template <typename T>
void CompareInverses(int64_t n, bool left, bool right, CouplingForm form) {
  const Chain5<T> chain(n);
  const BlockTridiagonalView view = chain.view(form);
  const Segment segment = MakeSegment(left, right);
  Outputs<T> factor(segment, n);
  EliminateTask<T> task = factor.Task(segment, view);
  std::vector<T> scratch(SelectKernels<T>().scratch_scalars(n, segment.has_fill()));
  task.scratch = scratch.data();
  ASSERT_EQ(SelectKernels<T>().eliminate(task).interior, -1);
  const double tolerance = (sizeof(T) == 8 ? 1e-15 : 1e-6) * static_cast<double>(n);
  ExpectNear(Inverse(factor, segment, n, true), Inverse(factor, segment, n, false), tolerance);
}

class LargeBlocksTest : public testing::TestWithParam<std::tuple<int, bool, bool, CouplingForm>> {};

TEST_P(LargeBlocksTest, EliminatesAsPackedPanelsDo) {
  const auto [n, left, right, form] = GetParam();
  Compare<double>(n, left, right, form);
  Compare<float>(n, left, right, form);
}

TEST_P(LargeBlocksTest, InvertsAsPackedPanelsDo) {
  const auto [n, left, right, form] = GetParam();
  CompareInverses<double>(n, left, right, form);
  CompareInverses<float>(n, left, right, form);
}

INSTANTIATE_TEST_SUITE_P(
    EverySegment, LargeBlocksTest,
    testing::Combine(testing::Values(9, 128, 130, 300), testing::Bool(), testing::Bool(),
                     testing::Values(CouplingForm::kSubdiagonal, CouplingForm::kSuperdiagonal)));

TEST(LargeBlocks, SayWhichPivotFails) {
  for (const int64_t row : {0, 100, 127, 128, 255, 299}) {
    Chain5<double> chain(300);
    chain.diagonal[(2 * 300 + row) * 300 + row] = -1;
    const BlockTridiagonalView view = chain.view(CouplingForm::kSubdiagonal);
    Segment whole;
    whole.count = kBlocks;
    Outputs<double> outputs(whole, 300);
    EliminateTask<double> task = outputs.Task(whole, view);
    std::vector<double> scratch(LargeScratchScalars(300, false));
    task.scratch = scratch.data();
    const SegmentReport failure = EliminateLarge(task);
    EXPECT_EQ(failure.interior, 2);
    EXPECT_EQ(failure.row, row);
  }
}

}  // namespace
}  // namespace blockd::cpu
