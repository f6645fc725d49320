// Device code on square tiles in shared memory: column-major, leading dimension kLd<T, kTile>,
// which keeps rows' fragments of a warp's matrix instructions free of bank conflicts.
#ifndef BLOCKD_ENGINE_GPU_TILE_FRAGMENTS_H_
#define BLOCKD_ENGINE_GPU_TILE_FRAGMENTS_H_

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "engine/gpu/arch/arch.h"

namespace blockd::gpu {

template <typename T, int kTile>
inline constexpr int kLd = kTile + (sizeof(T) == 4 ? 8 : 4);

// 16 bytes or 8, aligned.
template <int kBytes>
using Vector = std::conditional_t<kBytes == 16, uint4, uint2>;
template <typename T, int kCount>
__device__ inline void LoadVector(T (&values)[kCount], const T* from) {
  static_assert(sizeof(values) == 16 || sizeof(values) == 8);
  const auto bits = *reinterpret_cast<const Vector<sizeof(values)>*>(from);
  memcpy(values, &bits, sizeof(values));
}
template <typename T, int kCount>
__device__ inline void StoreVector(T* to, const T (&values)[kCount]) {
  static_assert(sizeof(values) == 16 || sizeof(values) == 8);
  Vector<sizeof(values)> bits;
  memcpy(&bits, values, sizeof(values));
  *reinterpret_cast<Vector<sizeof(values)>*>(to) = bits;
}
__device__ inline void LoadEight(float (&values)[8], const float* from) {
  LoadVector(reinterpret_cast<float(&)[4]>(values[0]), from);
  LoadVector(reinterpret_cast<float(&)[4]>(values[4]), from + 4);
}
__device__ inline void StoreEight(float* to, const float* values) {
  StoreVector(to, reinterpret_cast<const float(&)[4]>(values[0]));
  StoreVector(to + 4, reinterpret_cast<const float(&)[4]>(values[4]));
}

// The type of a tile's arithmetic. Small blocks of float are computed in double: they cost no more
// so, and the bound of 4 n eps leaves little room. AMD's matrix instructions are as fast in double
// as in float, so all blocks are in double there.
template <typename T, int kTile>
using Arithmetic =
    std::conditional_t<std::is_same_v<T, float> && (kTile >= 64) && !kIsAmd, float, double>;

// Entry (g, k + t) of the rows that `rows` points to: of the left operand of MmaDepth4 or, for a
// product with a transpose, the right one.
template <int kLead, typename Real = double, typename T>
__device__ inline Real RowFragment(const T* rows, int k) {
  return rows[(k + OperandDepth()) * kLead + OperandRow()];
}
// Entry (k + t, g) of the columns that `columns` points to: the right operand.
template <int kLead, typename Real = double, typename T>
__device__ inline Real ColumnFragment(const T* columns, int k) {
  return columns[OperandRow() * kLead + k + OperandDepth()];
}
// The operands of MmaSmall: the left one, the right one, and the right one of a product with a
// transpose.
template <int kLead, typename Real, typename T>
__device__ inline Real SmallLeft(const T* rows, int k) {
  return rows[(k + OperandDepth()) * kLead + SmallLayout::LeftRow()];
}
template <int kLead, typename Real, typename T>
__device__ inline Real SmallRight(const T* columns, int k) {
  return columns[SmallLayout::RightColumn() * kLead + k + OperandDepth()];
}
template <int kLead, typename Real, typename T>
__device__ inline Real SmallTransposed(const T* rows, int k) {
  return rows[(k + OperandDepth()) * kLead + SmallLayout::RightColumn()];
}

// A lane's part of eight columns of the left operand, and of eight rows of the right one.
template <typename Real>
using LeftOperand = Real[2 * kLeftRows];
template <typename Real>
using RightOperand = Real[2];

// 16 rows and 8 columns of the left operand of MmaDepth8.
template <int kLead, typename Real, typename T>
__device__ inline void LoadRows(LeftOperand<Real>& a, const T* rows, int k) {
#pragma unroll
  for (int i = 0; i < 2 * kLeftRows; ++i) {
    a[i] = RowFragment<kLead, Real>(rows + i % kLeftRows * 8, k + i / kLeftRows * 4);
  }
}
// The result of MmaDepth8.
template <int kLead, typename Real, typename T>
__device__ inline void LoadTile(Real (&c)[4], const T* tile) {
  using Layout = ResultLayout<Real>;
  const int row = Layout::Row(), column = Layout::Column();
#pragma unroll
  for (int e = 0; e < 4; ++e) {
    c[e] = tile[(column + Layout::Across(e)) * kLead + row + Layout::Down(e)];
  }
}
template <int kLead, typename Real, typename T>
__device__ inline void StoreTile(T* tile, const Real (&c)[4]) {
  using Layout = ResultLayout<Real>;
  const int row = Layout::Row(), column = Layout::Column();
#pragma unroll
  for (int e = 0; e < 4; ++e) {
    tile[(column + Layout::Across(e)) * kLead + row + Layout::Down(e)] = static_cast<T>(c[e]);
  }
}
// And of MmaSmall.
template <typename Real>
using SmallResult = Real[SmallLayout::kEntries];
template <int kLead, typename Real, typename T>
__device__ inline void LoadSmallTile(SmallResult<Real>& c, const T* tile) {
  const int row = SmallLayout::Row(), column = SmallLayout::Column();
#pragma unroll
  for (int e = 0; e < SmallLayout::kEntries; ++e) c[e] = tile[(column + e) * kLead + row];
}
template <int kLead, typename Real, typename T>
__device__ inline void StoreSmallTile(T* tile, const SmallResult<Real>& c) {
  const int row = SmallLayout::Row(), column = SmallLayout::Column();
#pragma unroll
  for (int e = 0; e < SmallLayout::kEntries; ++e) {
    tile[(column + e) * kLead + row] = static_cast<T>(c[e]);
  }
}

// c[i][j] += a[i] b[j], tiles of 16 x kProductColumns.
template <int kRows, int kColumns>
__device__ inline void MultiplyTiles(double (&c)[kRows][kColumns][4],
                                     const double (&a)[kRows][kLeftRows],
                                     const double (&b)[kColumns][1]) {
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
#pragma unroll
    for (int j = 0; j < kColumns; ++j) MmaDepth4(c[i][j], a[i], b[j][0]);
  }
}
// The same, tiles b from `first` on.
template <int kRows, int kColumns>
__device__ inline void MultiplyTiles(float (&c)[kRows][kColumns][4],
                                     const float (&a)[kRows][2 * kLeftRows],
                                     const float (&b)[kColumns][2], int first = 0) {
  constexpr int kLeft = 2 * kLeftRows;
  float left[kFloatParts][kRows][kLeft], right[kFloatParts][kColumns][2];
#pragma unroll
  for (int i = 0; i < kLeft * kRows; ++i)
    SplitInto(left, i / kLeft, i % kLeft, a[i / kLeft][i % kLeft]);
#pragma unroll
  for (int j = 0; j < 2 * kColumns; ++j) {
    if (j / 2 >= first) SplitInto(right, j / 2, j % 2, b[j / 2][j % 2]);
  }
  MultiplyParts(c, left, right, first);
}
// And of one row of tiles.
template <int kColumns>
__device__ inline void MultiplyTiles(float (&c)[kColumns][4], const LeftOperand<float>& a,
                                     const float (&b)[kColumns][2], int first) {
  MultiplyTiles(reinterpret_cast<float(&)[1][kColumns][4]>(c),
                reinterpret_cast<const float(&)[1][2 * kLeftRows]>(a), b, first);
}

// The upper 32 bits of a number that is not negative: a larger one has no fewer, and NaN the most.
__device__ inline uint32_t UpperWord(double x) {
  return static_cast<uint32_t>(__double_as_longlong(x) >> 32);
}
__device__ inline uint32_t UpperWord(float x) { return __float_as_uint(x); }
// The least number with these, less than it had by 2^-20 of it at most; NaN and infinity stay.
template <typename T>
__device__ inline T FromUpperWord(uint32_t word) {
  if constexpr (sizeof(T) == 8) {
    const int64_t bits = int64_t{word} << 32;
    return __longlong_as_double(bits);
  } else {
    return __uint_as_float(word);
  }
}

// Less than kAbnormal for a positive number that is normal in the factor's scalar, T, and whose
// reciprocal is normal too, which the hardware would make zero otherwise: from 2^-126 to below
// 2^126, in FP64 2^-1022 and 2^1022. From its bits, which costs the arithmetic nothing.
template <typename Real, typename T>
inline constexpr uint32_t kLeastNormal = sizeof(T) == 8      ? 0x00100000u
                                         : sizeof(Real) == 8 ? 0x38100000u
                                                             : 0x00800000u;
template <typename Real, typename T>
inline constexpr uint32_t kAbnormal = sizeof(T) == 8      ? 0x7fc00000u
                                      : sizeof(Real) == 8 ? 0x0fc00000u
                                                          : 0x7e000000u;
template <typename T, typename Real>
__device__ inline uint32_t Abnormality(Real x) {
  return UpperWord(x) - kLeastNormal<Real, T>;
}

// Every lane of a warp factors the same small matrix `a`, so that no step waits for another lane,
// and turns a row x of its own into x inv(L)'. Returns the first pivot that is abnormal, else
// kSize.
//
// All that follows a pivot waits for its reciprocal. So in FP64 the next pivot is computed straight
// from the reciprocal's guess and the guess's correction; the roots, A = (M D^1/2) (M D^1/2)' with
// a unit triangle M, come at the end.
template <typename T, typename Real, int kSize>
__device__ inline int DivideByFactor(Real (&a)[kSize][kSize], Real (&x)[kSize]) {
  uint32_t worst = 0;
  Real root[kSize];
#pragma unroll
  for (int k = 0; k < kSize; ++k) {
    const Real pivot = a[k][k];
    const uint32_t abnormality = Abnormality<T>(pivot);
    worst = abnormality > worst ? abnormality : worst;
    root[k] = ReciprocalRoot(pivot);
    if (k + 1 == kSize) break;
    const Real below = a[k + 1][k];
    Real reciprocal, next;
    if constexpr (std::is_same_v<Real, float>) {
      reciprocal = Reciprocal(pivot);
      next = fma(-below * reciprocal, below, a[k + 1][k + 1]);
    } else {
      Real guess, correction;
      GuessReciprocal(pivot, guess, correction);
      const Real guessed = below * guess;
      next = fma(-below * guessed, correction, fma(-below, guessed, a[k + 1][k + 1]));
      reciprocal = fma(guess, correction, guess);
    }
#pragma unroll
    for (int c = k + 1; c < kSize; ++c) {
      const Real m = a[c][k] * reciprocal;
      x[c] = fma(-m, x[k], x[c]);
#pragma unroll
      for (int r = c; r < kSize; ++r) a[r][c] = fma(-m, a[r][k], a[r][c]);
    }
    a[k + 1][k + 1] = next;
  }
#pragma unroll
  for (int k = 0; k < kSize; ++k) x[k] *= root[k];
  if (worst < kAbnormal<Real, T>) return kSize;
  int bad = kSize;
#pragma unroll
  for (int k = kSize - 1; k >= 0; --k) {
    if (Abnormality<T>(a[k][k]) >= kAbnormal<Real, T>) bad = k;
  }
  return bad;
}

}  // namespace blockd::gpu

#endif  // BLOCKD_ENGINE_GPU_TILE_FRAGMENTS_H_
