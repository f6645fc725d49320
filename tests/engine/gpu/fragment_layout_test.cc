// Matrix instructions on the host, which have operands where the vendors' manuals say, multiply
// what fragment_layout.h says that the lanes have: every entry of every operand, and of the result.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <vector>

#include "engine/gpu/arch/arch.h"

namespace blockd::gpu {
namespace {

// Column-major; no two entries of two of them have the same product.
std::vector<double> Entries(int rows, int columns, int first) {
  std::vector<double> entries(rows * columns);
  for (int i = 0; i < rows * columns; ++i) entries[i] = std::sqrt(first + i);
  return entries;
}

// C + A B of rows x depth and depth x columns matrices.
std::vector<double> Product(std::vector<double> c, const std::vector<double>& a,
                            const std::vector<double>& b, int rows, int depth, int columns) {
  for (int j = 0; j < columns; ++j) {
    for (int i = 0; i < rows; ++i) {
      for (int k = 0; k < depth; ++k) c[j * rows + i] += a[k * rows + i] * b[j * depth + k];
    }
  }
  return c;
}

// multiply(a, b, c) is called by each lane of a warp, and stores its entries of the result in c.
void ExpectProduct(
    int rows, int depth, int columns, double tolerance,
    const std::function<void(const double* a, const double* b, double* c)>& multiply) {
  const std::vector<double> a = Entries(rows, depth, 2), b = Entries(depth, columns, 1000),
                            start = Entries(rows, columns, 5000);
  const std::vector<double> expected = Product(start, a, b, rows, depth, columns);
  std::vector<double> c = start;
  HostThreadBlock block(kWarp, 0);
  block.Run([&](int) { multiply(a.data(), b.data(), c.data()); });
  for (int i = 0; i < rows * columns; ++i) {
    EXPECT_NEAR(c[i], expected[i], tolerance * expected[i])
        << "row " << i % rows << ", column " << i / rows;
  }
}

template <typename Real>
void ExpectDepth8(double tolerance) {
  ExpectProduct(16, 8, kProductColumns, tolerance, [](const double* a, const double* b, double* c) {
    using Layout = ResultLayout<Real>;
    Real left[2 * kLeftRows], right[2], sums[4];
    for (int q = 0; q < 2; ++q) {
      const int k = OperandDepth() + 4 * q;
      for (int i = 0; i < kLeftRows; ++i) {
        left[kLeftRows * q + i] = static_cast<Real>(a[k * 16 + OperandRow() + 8 * i]);
      }
      right[q] = static_cast<Real>(b[OperandRow() * 8 + k]);
    }
    const auto at = [&](int e) -> double& {
      return c[(Layout::Column() + Layout::Across(e)) * 16 + Layout::Row() + Layout::Down(e)];
    };
    for (int e = 0; e < 4; ++e) sums[e] = static_cast<Real>(at(e));
    MmaDepth8(sums, left, right);
    for (int e = 0; e < 4; ++e) at(e) = sums[e];
  });
}

TEST(FragmentLayoutTest, OfEightColumns) {
  ExpectDepth8<double>(1e-14);
  ExpectDepth8<float>(1e-5);
}

TEST(FragmentLayoutTest, OfFourColumns) {
  ExpectProduct(16, 4, kProductColumns, 1e-14, [](const double* a, const double* b, double* c) {
    using Layout = ResultLayout<double>;
    double left[kLeftRows], sums[4];
    for (int i = 0; i < kLeftRows; ++i) left[i] = a[OperandDepth() * 16 + OperandRow() + 8 * i];
    const auto at = [&](int e) -> double& {
      return c[(Layout::Column() + Layout::Across(e)) * 16 + Layout::Row() + Layout::Down(e)];
    };
    for (int e = 0; e < 4; ++e) sums[e] = at(e);
    MmaDepth4(sums, left, b[OperandRow() * 4 + OperandDepth()]);
    for (int e = 0; e < 4; ++e) at(e) = sums[e];
  });
}

TEST(FragmentLayoutTest, OfSmallMatrices) {
  ExpectProduct(8, 8, 8, 1e-14, [](const double* a, const double* b, double* c) {
    double left[2], right[2], sums[SmallLayout::kEntries];
    for (int q = 0; q < 2; ++q) {
      const int k = OperandDepth() + 4 * q;
      left[q] = a[k * 8 + SmallLayout::LeftRow()];
      right[q] = b[SmallLayout::RightColumn() * 8 + k];
    }
    double* const mine = c + SmallLayout::Column() * 8 + SmallLayout::Row();
    for (int e = 0; e < SmallLayout::kEntries; ++e) sums[e] = mine[8 * e];
    MmaSmall(sums, left, right);
    for (int e = 0; e < SmallLayout::kEntries; ++e) mine[8 * e] = sums[e];
  });
}

}  // namespace
}  // namespace blockd::gpu
