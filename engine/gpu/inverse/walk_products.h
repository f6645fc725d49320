// Device code: what one warp multiplies in a walk through a segment, tiles of T in shared memory:
// sums of 16 rows and kProductColumns columns or, where blocks have no more, of 8 and 8.
#ifndef BLOCKD_ENGINE_GPU_INVERSE_WALK_PRODUCTS_H_
#define BLOCKD_ENGINE_GPU_INVERSE_WALK_PRODUCTS_H_

#include "engine/gpu/tile/fragments.h"

namespace blockd::gpu::inverse {

template <typename T, int kTile>
struct WalkProducts {
  using Real = Arithmetic<T, kTile>;  // as factorizations of such blocks
  using Layout = ResultLayout<Real>;
  using Left = LeftOperand<Real>;
  static constexpr int kLead = kLd<T, kTile>;
  static constexpr int kRows = 16, kColumns = kProductColumns;
  static constexpr int kEntries = 4;  // of a sum, that a lane has
  using Sum = Real[kEntries];

  // Eight columns of A from k on, of the rows that `rows` points to.
  __device__ static void LoadLeft(Left& left, const T* rows, int k) {
    LoadRows<kLead, Real>(left, rows, k);
  }
  // The same of A whose rows are the columns that `columns` points to.
  __device__ static void LoadLeftAcross(Left& left, const T* columns, int k) {
#pragma unroll
    for (int i = 0; i < 2 * kLeftRows; ++i) {
      left[i] =
          ColumnFragment<kLead, Real>(columns + i % kLeftRows * 8 * kLead, k + i / kLeftRows * 4);
    }
  }
  // sums += A B of these eight columns of A: side by side, with B' in the rows that `b` points to
  // or, if kAcross, B in its columns.
  template <bool kAcross, int kTiles>
  __device__ static void Multiply(Sum (&sums)[kTiles], const Left& left, const T* b, int k) {
    RightOperand<Real> right[kTiles];
#pragma unroll
    for (int j = 0; j < kTiles; ++j) {
      const T* const from = b + j * kColumns * (kAcross ? kLead : 1);
#pragma unroll
      for (int q = 0; q < 2; ++q) {
        right[j][q] = kAcross ? ColumnFragment<kLead, Real>(from, k + 4 * q)
                              : RowFragment<kLead, Real>(from, k + 4 * q);
      }
    }
    if constexpr (sizeof(Real) == 8) {
#pragma unroll
      for (int j = 0; j < kTiles; ++j) MmaDepth8(sums[j], left, right[j]);
    } else {
      MultiplyTiles(sums, left, right, 0);
    }
  }
  __device__ static int Row(int e) { return Layout::Row() + Layout::Down(e); }
  __device__ static int Column(int e) { return Layout::Column() + Layout::Across(e); }
};

template <typename T>
struct WalkProducts<T, 8> {
  using Real = double;
  using Left = Real[2];
  static constexpr int kLead = kLd<T, 8>;
  static constexpr int kRows = 8, kColumns = 8;
  static constexpr int kEntries = SmallLayout::kEntries;
  using Sum = Real[kEntries];

  __device__ static void LoadLeft(Left& left, const T* rows, int k) {
#pragma unroll
    for (int q = 0; q < 2; ++q) left[q] = SmallLeft<kLead, Real>(rows, k + 4 * q);
  }
  __device__ static void LoadLeftAcross(Left& left, const T* columns, int k) {
#pragma unroll
    for (int q = 0; q < 2; ++q) {
      left[q] = columns[SmallLayout::LeftRow() * kLead + k + 4 * q + OperandDepth()];
    }
  }
  template <bool kAcross, int kTiles>
  __device__ static void Multiply(Sum (&sums)[kTiles], const Left& left, const T* b, int k) {
    static_assert(kTiles == 1);
    RightOperand<Real> right;
#pragma unroll
    for (int q = 0; q < 2; ++q) {
      right[q] = kAcross ? SmallRight<kLead, Real>(b, k + 4 * q)
                         : SmallTransposed<kLead, Real>(b, k + 4 * q);
    }
    MmaSmall(sums[0], left, right);
  }
  __device__ static int Row(int) { return SmallLayout::Row(); }
  __device__ static int Column(int e) { return SmallLayout::Column() + e; }
};

}  // namespace blockd::gpu::inverse

#endif  // BLOCKD_ENGINE_GPU_INVERSE_WALK_PRODUCTS_H_
