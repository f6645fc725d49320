// Device code on square tiles in shared memory: column-major, leading dimension kLd<kTile>, which
// keeps the fragments of a warp's matrix instructions free of bank conflicts.
#ifndef BLOCKD_ENGINE_GPU_TILE_H_
#define BLOCKD_ENGINE_GPU_TILE_H_

#include <type_traits>

#include "blockd/engine/gpu/gpu_runtime.h"
#include "blockd/engine/gpu/level.h"

namespace blockd::gpu {

template <int kTile>
inline constexpr int kLd = kTile + 4;

// What a tile's arithmetic is in. Small blocks of float are in double: they cost no more so, and
// the bound of 4 n eps leaves little room.
template <typename T, int kTile>
using Arithmetic = std::conditional_t<std::is_same_v<T, float> && (kTile >= 64), float, double>;

// Entry (g, k + t) of the rows that `rows` points to: the left operand of Mma8x8x4 or, for a
// product with a transpose, the right one.
template <int kLead, typename Real = double, typename T>
__device__ inline Real RowFragment(const T* rows, int k) {
  const int lane = Lane();
  return rows[(k + (lane & 3)) * kLead + (lane >> 2)];
}
// Entry (k + t, g) of the columns that `columns` points to: the right operand.
template <int kLead, typename Real = double, typename T>
__device__ inline Real ColumnFragment(const T* columns, int k) {
  const int lane = Lane();
  return columns[(lane >> 2) * kLead + k + (lane & 3)];
}

// 16 rows and 8 columns of the left operand of Mma16x8x8.
template <int kLead, typename Real, typename T>
__device__ inline void LoadRows(Real (&a)[4], const T* rows, int k) {
  a[0] = RowFragment<kLead, Real>(rows, k);
  a[1] = RowFragment<kLead, Real>(rows + 8, k);
  a[2] = RowFragment<kLead, Real>(rows, k + 4);
  a[3] = RowFragment<kLead, Real>(rows + 8, k + 4);
}
// The result of Mma16x8x8.
template <int kLead, typename Real, typename T>
__device__ inline void LoadTile(Real (&c)[4], const T* tile) {
  const int row = Lane() >> 2, column = 2 * (Lane() & 3);
  c[0] = tile[column * kLead + row];
  c[1] = tile[(column + 1) * kLead + row];
  c[2] = tile[column * kLead + row + 8];
  c[3] = tile[(column + 1) * kLead + row + 8];
}
template <int kLead, typename Real, typename T>
__device__ inline void StoreTile(T* tile, const Real (&c)[4]) {
  const int row = Lane() >> 2, column = 2 * (Lane() & 3);
  tile[column * kLead + row] = static_cast<T>(c[0]);
  tile[(column + 1) * kLead + row] = static_cast<T>(c[1]);
  tile[column * kLead + row + 8] = static_cast<T>(c[2]);
  tile[(column + 1) * kLead + row + 8] = static_cast<T>(c[3]);
}
// And of Mma8x8x4.
template <int kLead, typename Real, typename T>
__device__ inline void LoadTile(Real (&c)[2], const T* tile) {
  const int row = Lane() >> 2, column = 2 * (Lane() & 3);
  c[0] = tile[column * kLead + row];
  c[1] = tile[(column + 1) * kLead + row];
}
template <int kLead, typename Real, typename T>
__device__ inline void StoreTile(T* tile, const Real (&c)[2]) {
  const int row = Lane() >> 2, column = 2 * (Lane() & 3);
  tile[column * kLead + row] = static_cast<T>(c[0]);
  tile[(column + 1) * kLead + row] = static_cast<T>(c[1]);
}

// Every lane of a warp factors the same 8 x 8 matrix `a`, so that no step waits for another lane,
// and turns a row x of its own into x inv(L)'. Returns the first pivot that is not a positive
// normal number, else 8.
//
// What follows a pivot waits for its reciprocal. So the next pivot comes straight from the guess
// of that and the guess's correction; the roots, A = (M D^1/2) (M D^1/2)' with a unit triangle M,
// come at the end.
template <typename Real>
__device__ inline int DivideByFactor(Real (&a)[8][8], Real (&x)[8]) {
  int bad = 8;
  Real root[8];
#pragma unroll
  for (int k = 0; k < 8; ++k) {
    const Real pivot = a[k][k];
    Real guess, correction;
    GuessReciprocal(pivot, guess, correction);
    if (bad == 8 && !IsPositiveNormal(pivot)) bad = k;
    root[k] = ReciprocalRoot(pivot);
    if (k == 7) break;
    const Real below = a[k + 1][k], guessed = below * guess;
    const Real next = fma(-below * guessed, correction, fma(-below, guessed, a[k + 1][k + 1]));
    const Real reciprocal = fma(guess, correction, guess);
#pragma unroll
    for (int c = k + 1; c < 8; ++c) {
      const Real m = a[c][k] * reciprocal;
      x[c] = fma(-m, x[k], x[c]);
#pragma unroll
      for (int r = c; r < 8; ++r) a[r][c] = fma(-m, a[r][k], a[r][c]);
    }
    a[k + 1][k + 1] = next;
  }
#pragma unroll
  for (int k = 0; k < 8; ++k) x[k] *= root[k];
  return bad;
}

// A thread block of kWarps warps: the lower triangle of a symmetric matrix of kTiles x kTiles tiles
// of 8 x 8, kTiles at most 8, becomes inv(chol); what is above the tiles on the diagonal is
// scratch. The first bad pivot is noted in *failed as base + its index, if nothing was before.
//
// Step j has 8 kTiles vectors to divide by the factor of the diagonal tile, one for each lane of
// the first warps: columns of what grows to the inverse left of that tile, the identity, and rows
// of the matrix below it, which become L(i,j) and stand in the upper triangle, at (j,i). Each of
// these warps factors the tile for itself. Then
//
//     A(i,l) -= L(i,j) L(l,j)',  j < l <= i         R(i,l) -= L(i,j) X(j,l),  l <= j < i
//
// first in row and column j + 1, by all warps, and elsewhere by the other warps during the next
// step. A tile of R is transposed, so that a lane's vector is a row as in A. The code is small on
// purpose: what does not stay in the instruction cache is read anew at each step.
template <int kTiles, int kLead, int kWarps, typename Real, typename T>
class TileInverter {
 public:
  __device__ TileInverter(T* m, int base, int* failed) : m_(m), base_(base), failed_(failed) {}

  // Every thread calls it, with m complete; it returns with m complete.
  __device__ void Run() const {
    const int helper = Helper();
#pragma unroll 1
    for (int j = 0; j < kTiles; ++j) {
      if (WarpIndex() < kFactorWarps) {
        Divide(j);
      } else {
        if (kFactorWarps > 1 && j == 0) __syncthreads();
        if (j > 0 && helper >= 0) UpdateRest(j - 1, helper);
      }
      __syncthreads();
      if (j + 1 == kTiles) return;
      UpdateNext(j);
      __syncthreads();
    }
  }

 private:
  static constexpr int kFactorWarps = (kTiles + 3) / 4;
  static_assert(kTiles <= 8 && kWarps > kFactorWarps && (kWarps <= 4 || kWarps % 4 == 0));
  // Warps w and w + 4 share a scheduler and its arithmetic: those beside a warp that divides would
  // hold it up.
  static constexpr int kHelpersOfFour = (kWarps < 4 ? kWarps : 4) - kFactorWarps;
  static constexpr int kHelpers = kHelpersOfFour * (kWarps < 4 ? 1 : kWarps / 4);
  __device__ static int Helper() {
    const int lane = WarpIndex() % 4 - kFactorWarps;
    return lane < 0 ? -1 : lane + WarpIndex() / 4 * kHelpersOfFour;
  }

  __device__ T* At(int i, int l) const { return m_ + l * 8 * kLead + i * 8; }
  // The diagonal tile of step j. While one warp stores its inverse another may still read it: so it
  // stands where nothing else does at that time.
  __device__ T* Diagonal(int j) const {
    if (kFactorWarps == 1 || j == 0) return At(j, j);
    return At(j < kTiles - 2 ? kTiles - 2 : 0, kTiles - 1);
  }

  __device__ void Divide(int j) const {
    const int thread = static_cast<int>(threadIdx.x), group = thread / 8, mine = thread % 8;
    const T* const from = (group < j ? At(j, group) : group < kTiles ? At(group, j) : m_) + mine;
    const T* const diagonal = Diagonal(j);
    Real a[8][8], x[8];
#pragma unroll
    for (int c = 0; c < 8; ++c) {
#pragma unroll
      for (int r = c; r < 8; ++r) a[r][c] = diagonal[c * kLead + r];
    }
#pragma unroll
    for (int c = 0; c < 8; ++c) {
      const Real value = from[c * kLead];
      x[c] = group != j ? value : c == mine ? Real{1} : Real{0};
    }
    if (kFactorWarps > 1 && j == 0) __syncthreads();
    const int bad = DivideByFactor(a, x);
    if (bad < 8 && thread == 0 && *failed_ < 0) *failed_ = base_ + 8 * j + bad;
    if (kFactorWarps == 1) SyncWarp();
    if (group >= kTiles) return;
    // Of the inverse a column, else a row.
    T* const to = At(j, group) + (group <= j ? mine * kLead : mine);
    const int stride = group <= j ? 1 : kLead;
#pragma unroll
    for (int c = 0; c < 8; ++c) to[c * stride] = static_cast<T>(x[c]);
  }

  // Row and column j + 1.
  __device__ void UpdateNext(int j) const {
#pragma unroll 1
    for (int task = WarpIndex(); task < kTiles; task += kWarps) {
      const int i = task > j + 1 ? task : j + 1, l = task > j + 1 ? j + 1 : task;
      Real start[2] = {0, 0}, sum[2] = {0, 0}, other[2] = {0, 0}, left[2], right[2];
      if (l != j) LoadPlace(start, At(i, l), l < j);
      LoadLeft(left, i, j);
      LoadRight(right, l, j);
      Mma8x8x4(sum, left[0], right[0]);
      Mma8x8x4(other, left[1], right[1]);
      sum[0] = start[0] - (sum[0] + other[0]), sum[1] = start[1] - (sum[1] + other[1]);
      StorePlace(i == l ? Diagonal(i) : At(i, l), l <= j, sum[0], sum[1]);
    }
  }

  // What is below row j + 1 and not in column j + 1: two rows, kChunk columns at a time, their
  // loads first, so that they wait only once.
  __device__ void UpdateRest(int j, int helper) const {
    constexpr int kChunk = kTiles < 4 ? kTiles : 3;
    int i = j + 2, chunk = helper;
    while (i < kTiles) {
      const bool both = i + 1 < kTiles;
      const int columns = both ? i + 1 : i;  // but for j + 1
      if (chunk * kChunk >= columns) {
        chunk -= (columns + kChunk - 1) / kChunk;
        i += 2;
        continue;
      }
      Real top[2], bottom[2] = {0, 0}, right[kChunk][2], start[kChunk][4] = {}, sum[kChunk][4] = {};
      LoadLeft(top, i, j);
      if (both) LoadLeft(bottom, i + 1, j);
      const Real left[4] = {top[0], bottom[0], top[1], bottom[1]};
      const auto column = [&](int e) {
        const int c = chunk * kChunk + e;
        return c > j ? c + 1 : c;
      };
#pragma unroll
      for (int e = 0; e < kChunk; ++e) {
        const int l = column(e);
        if (l > columns) break;
        LoadRight(right[e], l, j);
        if (l == j) continue;
        Real above[2], below[2] = {0, 0};
        LoadPlace(above, At(i, l), l < j);
        if (both) LoadPlace(below, At(i + 1, l), l < j);
        start[e][0] = above[0], start[e][1] = above[1];
        start[e][2] = below[0], start[e][3] = below[1];
      }
#pragma unroll
      for (int e = 0; e < kChunk; ++e) {
        if (column(e) <= columns) Mma16x8x8(sum[e], left, right[e]);
      }
#pragma unroll
      for (int e = 0; e < kChunk; ++e) {
        const int l = column(e);
        if (l > columns) break;
        if (l <= i) {
          StorePlace(At(i, l), l <= j, start[e][0] - sum[e][0], start[e][1] - sum[e][1]);
        }
        if (both) {
          StorePlace(At(i + 1, l), l <= j, start[e][2] - sum[e][2], start[e][3] - sum[e][3]);
        }
      }
      chunk += kHelpers;
    }
  }

  __device__ void LoadLeft(Real (&left)[2], int i, int j) const {
    left[0] = RowFragment<kLead, Real>(At(j, i), 0);
    left[1] = RowFragment<kLead, Real>(At(j, i), 4);
  }
  __device__ void LoadRight(Real (&right)[2], int l, int j) const {
    const int row = Lane() >> 2, column = Lane() & 3;
    const T* const at = At(j, l) + (l > j ? column * kLead + row : row * kLead + column);
    right[0] = at[0];
    right[1] = at[l > j ? 4 * kLead : 4];
  }
  // The two entries that a lane has of a product, in a tile that may be transposed.
  __device__ static void LoadPlace(Real (&c)[2], const T* tile, bool transposed) {
    const int row = Lane() >> 2, column = 2 * (Lane() & 3);
    const T* const at = tile + (transposed ? row * kLead + column : column * kLead + row);
    c[0] = at[0];
    c[1] = at[transposed ? 1 : kLead];
  }
  __device__ static void StorePlace(T* tile, bool transposed, Real c0, Real c1) {
    const int row = Lane() >> 2, column = 2 * (Lane() & 3);
    T* const at = tile + (transposed ? row * kLead + column : column * kLead + row);
    at[0] = static_cast<T>(c0);
    at[transposed ? 1 : kLead] = static_cast<T>(c1);
  }

  T* const m_;
  const int base_;
  int* const failed_;
};

// The lower triangle of a tile of kTile = 128 from two of half the size, X = inv(L):
//
//     X(0,0)      L(1,0) = A(1,0) X(0,0)'      A(1,1) -= L(1,0) L(1,0)',  T = L(1,0) X(0,0)
//     X(1,1)      X(1,0) = -X(1,1) T
//
// L(1,0) stands above the diagonal, T in its own place.
template <int kTile, int kWarps, typename Real, typename T>
class TwoTileInverter {
  static constexpr int kLead = kLd<kTile>;
  static constexpr int kHalf = kTile / 2;
  static constexpr int kTiles = kHalf / 8;  // columns of 8
  static constexpr int kRows = kHalf / 16;  // rows of 16
  using Half = TileInverter<kTiles, kLead, kWarps, Real, T>;

 public:
  __device__ TwoTileInverter(T* m, int* failed)
      : m_(m),
        below_(m + kHalf),
        above_(m + kHalf * kLead),
        last_(m + kHalf * kLead + kHalf),
        failed_(failed) {}

  __device__ void Run() const {
#pragma unroll 1
    for (int half = 0;; ++half) {
      Half(half == 0 ? m_ : last_, half * kHalf, failed_).Run();
      if (half == 1) break;
      ForEachTile([this](int row, int column) {
        Real sum[4] = {};
        Multiply<true>(sum, below_ + row, m_ + column, 0, column);
        StoreTile<kLead>(above_ + column * kLead + row, sum);
      });
      __syncthreads();
      ForEachTile([this](int row, int column) {
        Real sum[4] = {};
        Multiply<false>(sum, above_ + row, m_ + column * kLead, column, kHalf - 8);
        StoreTile<kLead>(below_ + column * kLead + row, sum);
      });
      UpdateLast();
      __syncthreads();
    }
    MultiplyLast();
    __syncthreads();
  }

 private:
  // body(row, column) for tiles of 16 x 8. Products with a triangle take column / 8 + 1 steps or
  // the opposite number; with 8 warps all have 18.
  template <typename Body>
  __device__ void ForEachTile(const Body& body) const {
    for (int task = WarpIndex(); task < kRows * kTiles; task += kWarps) {
      const int odd = task / kRows % 2, round = task / kRows / 2;
      body(16 * (task % kRows), 8 * (round % 2 ? kTiles - round - odd : round + odd));
    }
  }

  // A(1,1) -= L(1,0) L(1,0)', the lower triangle.
  __device__ void UpdateLast() const {
    for (int task = WarpIndex(); task < kRows * (kRows + 1); task += kWarps) {
      int i = 0, j = task;
      while (j >= 2 * (i + 1)) j -= 2 * ++i;
      T* const tile = last_ + 8 * j * kLead + 16 * i;
      Real rest[4], square[4] = {};
      LoadTile<kLead>(rest, tile);
      Multiply<true>(square, above_ + 16 * i, above_ + 8 * j, 0, kHalf - 8);
#pragma unroll
      for (int e = 0; e < 4; ++e) rest[e] -= square[e];
      StoreTile<kLead>(tile, rest);
    }
  }

  // sum += A B over columns first to last + 7 of A; B may be transposed. The operands of a step are
  // loaded a step ahead.
  template <bool kTransposed>
  __device__ static void Multiply(Real (&sum)[4], const T* a, const T* b, int first, int last) {
    Real left[2][4], right[2][2];
    const auto load = [&](int part, int k) {
      LoadRows<kLead>(left[part], a, k);
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        right[part][h] = kTransposed ? RowFragment<kLead, Real>(b, k + 4 * h)
                                     : ColumnFragment<kLead, Real>(b, k + 4 * h);
      }
    };
    load(0, first);
#pragma unroll 1
    for (int k = first; k <= last; k += 16) {
      load(1, k + 8 <= last ? k + 8 : last);
      Mma16x8x8(sum, left[0], right[0]);
      if (k + 8 > last) break;
      load(0, k + 16 <= last ? k + 16 : last);
      Mma16x8x8(sum, left[1], right[1]);
    }
  }

  // In place: a warp has 8 whole columns.
  __device__ void MultiplyLast() const {
    for (int column = 8 * WarpIndex(); column < kHalf; column += 8 * kWarps) {
      T* const t = below_ + column * kLead;
      Real sum[kRows][4] = {};
#pragma unroll 1
      for (int k = 0; k < kTiles; ++k) {
        const Real right[2] = {-ColumnFragment<kLead, Real>(t, 8 * k),
                               -ColumnFragment<kLead, Real>(t, 8 * k + 4)};
        Real left[kRows][4];
#pragma unroll
        for (int i = 0; i < kRows; ++i) {
          if (2 * i + 1 < k) continue;
          LoadRows<kLead>(left[i], last_ + 16 * i, 8 * k);
          // The upper tile of a pair on the diagonal is scratch.
          if (k == 2 * i + 1) left[i][0] = left[i][2] = 0;
        }
#pragma unroll
        for (int i = 0; i < kRows; ++i) {
          if (2 * i + 1 >= k) Mma16x8x8(sum[i], left[i], right);
        }
      }
      SyncWarp();
#pragma unroll
      for (int i = 0; i < kRows; ++i) StoreTile<kLead>(t + 16 * i, sum[i]);
    }
  }

  T* const m_;
  T* const below_;
  T* const above_;
  T* const last_;
  int* const failed_;
};

// The lower triangle of m becomes inv(chol(m)); above the diagonal 8 x 8 tiles, which get stored
// zeros, is scratch. Every thread of kWarps warps calls it, with m complete; it returns with m
// complete.
template <int kTile, int kWarps, typename T>
__device__ inline void CholeskyInverse(T* m, int* failed) {
  using Real = Arithmetic<T, kTile>;
  if constexpr (kTile <= 64) {
    TileInverter<kTile / 8, kLd<kTile>, kWarps, Real, T>(m, 0, failed).Run();
  } else {
    TwoTileInverter<kTile, kWarps, Real, T>(m, failed).Run();
  }
}

// The block A(i,i) of a chain: entry (row, column) as it stands in the lower triangle.
template <typename T>
struct DiagonalSource {
  const T* first = nullptr;
  const T* second = nullptr;  // added, if there is one
  int64_t n = 0;
  bool packed = false;

  __device__ int64_t Index(int64_t row, int64_t column) const {
    const int64_t low = row < column ? row : column, high = row < column ? column : row;
    return packed ? low * n - low * (low + 1) / 2 + high : low * n + high;
  }
  // The same for the blocks that shared memory holds.
  __device__ int SmallIndex(int row, int column) const {
    const int low = row < column ? row : column, high = row < column ? column : row;
    const int size = static_cast<int>(n);
    return packed ? low * size - low * (low + 1) / 2 + high : low * size + high;
  }
  __device__ T At(int64_t row, int64_t column) const {
    const int64_t i = Index(row, column);
    return second ? first[i] + second[i] : first[i];
  }
};

// A coupling block: entry (row, column) is data[row * row_stride + column * column_stride].
template <typename T>
struct CouplingSource {
  const T* data = nullptr;
  int64_t row_stride = 0, column_stride = 0;
  __device__ const T* At(int64_t row, int64_t column) const {
    return data + row * row_stride + column * column_stride;
  }
};

template <typename T>
struct ChainReader {
  const FactorEntry& system;
  int64_t n;
  int64_t chain_offset;

  __device__ DiagonalSource<T> Diagonal(int64_t block) const {
    DiagonalSource<T> source;
    source.n = n;
    if (chain_offset >= 0) {
      source.first = static_cast<const T*>(system.chains) + chain_offset + block * 3 * n * n;
      source.second = source.first + n * n;
      return source;
    }
    source.packed = system.packed_diagonal != 0;
    const int64_t stored = system.diagonal_index ? system.diagonal_index[block] : block;
    const int64_t scalars = source.packed ? n * (n + 1) / 2 : n * n;
    source.first = static_cast<const T*>(system.diagonal) + stored * scalars;
    return source;
  }
  // Between chain index i and i + 1: A(i+1,i), or its transpose.
  __device__ CouplingSource<T> Coupling(int64_t i, bool transpose) const {
    CouplingSource<T> source;
    if (chain_offset >= 0) {
      source.data = static_cast<const T*>(system.chains) + chain_offset + (i * 3 + 2) * n * n;
    } else {
      const int64_t stored = system.coupling_index ? system.coupling_index[i] : i;
      source.data = static_cast<const T*>(system.coupling) + stored * n * n;
      transpose ^= system.superdiagonal != 0;
    }
    source.row_stride = transpose ? n : 1;
    source.column_stride = transpose ? 1 : n;
    return source;
  }
};

}  // namespace blockd::gpu

#endif  // BLOCKD_ENGINE_GPU_TILE_H_
