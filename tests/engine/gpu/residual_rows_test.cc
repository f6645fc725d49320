// The residual's kernel on the host's threads: every form of a matrix, more columns than a thread
// block has at a time, and what is not finite.
#include "engine/gpu/vectors/residual_rows.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "engine/gpu/plan/plan_args.h"
#include "engine/problems/problems.h"
#include "tests/support/host_matrix.h"

namespace blockd::gpu {
namespace {

using test::HostMatrix;

struct Norms {
  double residual, matrix, solution, rhs;
};

// The norms that kParts thread blocks leave together, as ResidualKernel and LargestKernel do.
template <typename T, int kColumns>
std::vector<Norms> Residual(const HostMatrix& matrix, const std::vector<T>& x,
                            const std::vector<T>& b, std::vector<T>& r, int64_t columns) {
  using Rows = ResidualRows<T, kColumns>;
  const Shape& shape = matrix.shape();
  const MatrixArgs args = {EntryOf(matrix.view(), nullptr, nullptr), shape.num_blocks,
                           shape.block_size};
  constexpr int64_t kParts = 3;
  std::vector<double> partial(columns * kParts * 4, -1);
  for (int64_t first = 0; first < columns; first += kColumns) {
    const int mine = static_cast<int>(std::min<int64_t>(kColumns, columns - first));
    const ResidualVectors<T> vectors = {x.data(), b.data(), r.data(), columns, first, mine};
    for (int64_t part = 0; part < kParts; ++part) {
      HostThreadBlock block(Rows::kThreads, sizeof(typename Rows::Memory));
      block.Run([&](int) {
        Rows rows(args, vectors, *reinterpret_cast<typename Rows::Memory*>(block.shared()));
        const int64_t strips = (shape.block_size + Rows::kRows - 1) / Rows::kRows;
        for (int64_t i = part; i < shape.num_blocks * strips; i += kParts) {
          rows.Form(i / strips, static_cast<int>(i % strips) * Rows::kRows);
        }
        rows.StoreNorms(partial.data() + (first * kParts + part) * 4, kParts * 4);
      });
    }
  }
  std::vector<Norms> norms(columns, Norms{0, 0, 0, 0});
  for (int64_t c = 0; c < columns; ++c) {
    for (int64_t part = 0; part < kParts; ++part) {
      const double* const p = partial.data() + (c * kParts + part) * 4;
      norms[c].residual = LargerOrNaN(p[0], norms[c].residual);
      norms[c].matrix = LargerOrNaN(p[1], norms[c].matrix);
      norms[c].solution = LargerOrNaN(p[2], norms[c].solution);
      norms[c].rhs = LargerOrNaN(p[3], norms[c].rhs);
    }
  }
  return norms;
}

// Entry (row, k) of the block (i, j) of A.
template <typename T>
double EntryOfBlock(const HostMatrix& matrix, int64_t i, int64_t j, int64_t row, int64_t k) {
  if (i == j) return matrix.Diagonal(i, std::max(row, k), std::min(row, k));
  if (i < j) return EntryOfBlock<T>(matrix, j, i, k, row);
  const BlockTridiagonalView view = matrix.view();
  const int64_t n = matrix.shape().block_size;
  const int64_t stored = view.coupling_index ? view.coupling_index[j] : j;
  const T* const block = static_cast<const T*>(view.coupling) + stored * n * n;
  return view.form.coupling == CouplingForm::kSubdiagonal ? block[k * n + row] : block[row * n + k];
}

template <typename T, int kColumns>
void ExpectRight(const test::FormOptions& form, int64_t n, int64_t columns) {
  SCOPED_TRACE(testing::Message() << "n " << n << " columns " << columns << " at once "
                                  << kColumns);
  constexpr Scalar kScalar = sizeof(T) == 4 ? Scalar::kFloat32 : Scalar::kFloat64;
  const int64_t blocks = 4;
  const problems::Problem problem =
      form.palette ? problems::KalmanPalette({.states = n, .observations = n + 1, .steps = blocks})
                   : problems::Mpc(blocks, n, 3);
  const HostMatrix matrix(problem, kScalar, form);
  const auto draw = [&](uint64_t seed) {
    const std::vector<double> values = problems::RandomColumns(blocks * n, columns, seed);
    return std::vector<T>(values.begin(), values.end());
  };
  const std::vector<T> x = draw(1), b = draw(2);
  std::vector<T> r(x.size());
  const std::vector<Norms> norms = Residual<T, kColumns>(matrix, x, b, r, columns);
  double of_matrix = 0;
  for (int64_t c = 0; c < columns; ++c) {
    Norms expected = {0, 0, 0, 0};
    for (int64_t i = 0; i < blocks; ++i) {
      for (int64_t row = 0; row < n; ++row) {
        const int64_t at = (i * columns + c) * n + row;
        double sum = b[at], absolute = 0;
        for (int64_t j = std::max<int64_t>(i - 1, 0); j < std::min(i + 2, blocks); ++j) {
          for (int64_t k = 0; k < n; ++k) {
            const double a = static_cast<T>(EntryOfBlock<T>(matrix, i, j, row, k));
            sum -= a * x[(j * columns + c) * n + k];
            absolute += std::abs(a);
          }
        }
        of_matrix = std::max(of_matrix, absolute);
        ASSERT_NEAR(r[at], sum, 1e-6 * (1 + std::abs(sum))) << i << " " << row << " " << c;
        expected.residual = std::max(expected.residual, std::abs(sum));
        expected.solution = std::max<double>(expected.solution, std::abs(x[at]));
        expected.rhs = std::max<double>(expected.rhs, std::abs(b[at]));
      }
    }
    EXPECT_NEAR(norms[c].residual, expected.residual, 1e-12 * (1 + expected.residual));
    EXPECT_EQ(norms[c].solution, expected.solution);
    EXPECT_EQ(norms[c].rhs, expected.rhs);
  }
  EXPECT_NEAR(norms[0].matrix, of_matrix, 1e-12 * of_matrix);
}

TEST(ResidualRowsTest, IsRightInEveryForm) {
  for (const CouplingForm coupling : {CouplingForm::kSubdiagonal, CouplingForm::kSuperdiagonal}) {
    for (const DiagonalForm diagonal : {DiagonalForm::kFull, DiagonalForm::kPackedLower}) {
      const test::FormOptions form = {.diagonal = diagonal, .coupling = coupling};
      ExpectRight<double, 8>(form, 70, 5);
      ExpectRight<float, 8>(form, 33, 8);
    }
  }
  ExpectRight<double, 8>({.palette = true}, 9, 2);
}

TEST(ResidualRowsTest, ReadsTheMatrixOnceForManyColumns) {
  ExpectRight<double, 1>({}, 40, 1);
  ExpectRight<double, 32>({}, 40, 70);
  ExpectRight<float, 32>({}, 5, 32);
}

// A number that is not finite shows in the norms of its column, and of no other.
TEST(ResidualRowsTest, WhatIsNotFiniteShows) {
  const HostMatrix matrix(problems::Mpc(3, 6, 3), Scalar::kFloat64);
  const double nan = std::nan(""), infinity = std::numeric_limits<double>::infinity();
  constexpr int64_t kColumnCount = 4, kSize = 3 * 6 * kColumnCount;
  for (const double bad : {nan, infinity, -infinity}) {
    for (const bool in_x : {false, true}) {
      for (const int64_t block : {0, 2}) {
        std::vector<double> x(kSize, 1), b(kSize, 1), r(kSize);
        (in_x ? x : b)[(block * kColumnCount + 1) * 6 + 5] = bad;
        const std::vector<Norms> norms = Residual<double, 8>(matrix, x, b, r, kColumnCount);
        for (int64_t c = 0; c < kColumnCount; ++c) {
          EXPECT_EQ(std::isfinite(norms[c].residual), c != 1) << c;
          EXPECT_EQ(std::isfinite(norms[c].solution), c != 1 || !in_x) << c;
          EXPECT_EQ(std::isfinite(norms[c].rhs), c != 1 || in_x) << c;
        }
      }
    }
  }
}

}  // namespace
}  // namespace blockd::gpu
