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

// One warp: the lower triangle of a symmetric matrix of kTiles x kTiles tiles of 8 x 8, kTiles at
// most 4, becomes inv(chol). Step j has kTiles x 8 rows and columns to divide by the diagonal
// tile's factor, one for each lane: what of the inverse is left of that tile, the identity, and
// what of the matrix is below it. The first bad pivot is noted in *failed as base + its index, if
// nothing was before.
template <int kTiles, int kLead, typename Real, typename T>
__device__ inline void InvertSpan(T* m, int base, int* failed) {
  const auto at = [m](int i, int l) { return m + l * 8 * kLead + i * 8; };
  const int group = Lane() / 8 % kTiles, mine = Lane() % 8;
  Real rest[kTiles][kTiles][2];  // tiles (i, l) below the current row
  // Of the last step: rows of L below its diagonal tile, and of the inverse in its row.
  Real rows[kTiles][2], minus[kTiles][2], columns[kTiles][2];
  const auto subtract = [&](int i, int l, const Real(&left)[2], const Real(&right)[2]) {
    Mma8x8x8(rest[i][l], left, right);
  };
#pragma unroll
  for (int j = 0; j < kTiles; ++j) {
    const bool by_column = group <= j;
    T* const vector = by_column ? at(j, group) + mine * kLead : at(group, j) + mine;
    const int stride = by_column ? 1 : kLead;
    Real a[8][8], x[8];
#pragma unroll
    for (int c = 0; c < 8; ++c) {
#pragma unroll
      for (int r = c; r < 8; ++r) a[r][c] = at(j, j)[c * kLead + r];
    }
#pragma unroll
    for (int c = 0; c < 8; ++c) {
      const Real value = vector[c * stride];
      x[c] = group != j ? value : c == mine ? Real{1} : Real{0};
    }
    // What the step before left for later, while those loads are under way.
#pragma unroll
    for (int i = j + 1; j > 0 && i < kTiles; ++i) {
#pragma unroll
      for (int l = 0; l <= i; ++l) {
        if (l != j) subtract(i, l, minus[i], l >= j ? rows[l] : columns[l]);
      }
    }
    const int bad = DivideByFactor(a, x);
    if (bad < 8 && Lane() == 0 && *failed < 0) *failed = base + 8 * j + bad;
    SyncWarp();
    if (Lane() < 8 * kTiles) {
#pragma unroll
      for (int c = 0; c < 8; ++c) vector[c * stride] = static_cast<T>(x[c]);
    }
    SyncWarp();
    if (j + 1 == kTiles) break;
#pragma unroll
    for (int k = 0; k < 2; ++k) {
#pragma unroll
      for (int i = j + 1; i < kTiles; ++i) {
        rows[i][k] = RowFragment<kLead, Real>(at(i, j), 4 * k);
        minus[i][k] = -rows[i][k];
      }
#pragma unroll
      for (int l = 0; l <= j; ++l) columns[l][k] = ColumnFragment<kLead, Real>(at(j, l), 4 * k);
    }
#pragma unroll
    for (int i = j + 1; i < kTiles; ++i) {
      rest[i][j][0] = rest[i][j][1] = 0;
#pragma unroll
      for (int l = 1; j == 0 && l <= i; ++l) LoadTile<kLead>(rest[i][l], at(i, l));
    }
    SyncWarp();
    // What the next step starts from goes first: row and column j + 1.
#pragma unroll
    for (int t = j + 1; t < j + 1 + kTiles; ++t) {
      const int tile = t % kTiles, i = tile > j ? tile : j + 1, l = tile > j ? j + 1 : tile;
      subtract(i, l, minus[i], l > j ? rows[l] : columns[l]);
    }
#pragma unroll
    for (int t = j + 1; t < j + 1 + kTiles; ++t) {
      const int tile = t % kTiles, i = tile > j ? tile : j + 1, l = tile > j ? j + 1 : tile;
      StoreTile<kLead>(at(i, l), rest[i][l]);
    }
    SyncWarp();
  }
}

// A thread block of kWarps warps: a tile of kTile <= 64. One warp inverts spans of 32 rows. With
// X = inv(L) and two spans:
//
//     X(0,0)                    L = A(1,0) X(0,0)'         A(1,1) -= L L'
//     X(1,1)  and  T = L X(0,0), by the other warps        X(1,0) = -X(1,1) T
//
// L stands above the diagonal, T in its own place.
template <int kTile, int kLead, int kWarps, typename Real, typename T>
class TileInverter {
  static constexpr int kSpan = kTile < 32 ? kTile : 32;
  static constexpr int kSpans = kTile / kSpan;
  static_assert(kSpans <= 2);

 public:
  __device__ TileInverter(T* m, int base, int* failed)
      : m_(m),
        below_(m + kSpan),
        above_(m + kSpan * kLead),
        last_(m + kSpan * kLead + kSpan),
        base_(base),
        failed_(failed) {}

  // Every thread calls it, with m complete; it returns with m complete.
  __device__ void Run() const {
    // One copy of the code for both spans: it is large.
#pragma unroll 1
    for (int span = 0;; ++span) {
      if (WarpIndex() == 0) {
        InvertSpan<kSpan / 8, kLead, Real>(span == 0 ? m_ : last_, base_ + span * kSpan, failed_);
      } else if (span == 1 && (WarpIndex() % 4 != 0 || kWarps <= 4)) {
        // Not those that share the arithmetic of warp 0.
        constexpr int kHelpers = kWarps - (kWarps + 3) / 4;
        for (int task = WarpIndex() - 1 - WarpIndex() / 4; task < 8; task += kHelpers) {
          MultiplyBelow(task);
        }
      }
      __syncthreads();
      if (span == kSpans - 1) break;
      for (int task = WarpIndex(); task < 8; task += kWarps) DivideBelow(task);
      __syncthreads();
      for (int task = WarpIndex(); task < 6; task += kWarps) UpdateLast(task);
      __syncthreads();
    }
    if constexpr (kSpans == 2) {
      for (int task = WarpIndex(); task < 4; task += kWarps) MultiplyLast(task);
      __syncthreads();
    }
  }

 private:
  // Tiles of 16 x 8, so that the warps w and w + 4, which share a scheduler, have a short and a
  // long product with a triangle.
  __device__ static int RowOf(int task) { return task / 4 * 16; }
  __device__ static int ColumnOf(int task) { return 8 * (task < 4 ? task : 7 - task); }

  __device__ void DivideBelow(int task) const {
    const int row = RowOf(task), column = ColumnOf(task);
    Real sum[2][4] = {};
#pragma unroll
    for (int k = 0; k < kSpan; k += 8) {
      if (k <= column) Multiply<true>(sum[k / 8 % 2], below_ + row, m_ + column, k);
    }
    StoreSum(above_ + column * kLead + row, sum);
  }

  __device__ void UpdateLast(int task) const {
    const int row = task < 2 ? 0 : 16, column = 8 * (task < 2 ? task : task - 2);
    Real start[4], sum[2][4] = {};
    LoadTile<kLead>(start, last_ + column * kLead + row);
#pragma unroll
    for (int k = 0; k < kSpan; k += 8) {
      Multiply<true>(sum[k / 8 % 2], above_ + row, above_ + column, k);
    }
#pragma unroll
    for (int e = 0; e < 4; ++e) start[e] -= sum[0][e] + sum[1][e];
    StoreTile<kLead>(last_ + column * kLead + row, start);
  }

  __device__ void MultiplyBelow(int task) const {
    const int row = RowOf(task), column = ColumnOf(task);
    Real sum[2][4] = {};
#pragma unroll
    for (int k = 0; k < kSpan; k += 8) {
      if (k >= column) Multiply<false>(sum[k / 8 % 2], above_ + row, m_ + column * kLead, k);
    }
    StoreSum(below_ + column * kLead + row, sum);
  }

  // In place: a warp has 8 whole columns.
  __device__ void MultiplyLast(int task) const {
    T* const t = below_ + task * 8 * kLead;
    Real sum[2][4] = {};
#pragma unroll
    for (int k = 0; k < kSpan; k += 8) {
      const Real right[2] = {-ColumnFragment<kLead, Real>(t, k),
                             -ColumnFragment<kLead, Real>(t, k + 4)};
#pragma unroll
      for (int i = k / 16; i < 2; ++i) {
        Real left[4];
        LoadRows<kLead>(left, last_ + 16 * i, k);
        // The upper tile of a pair on the diagonal is scratch.
        if (k == 16 * i + 8) left[0] = left[2] = 0;
        Mma16x8x8(sum[i], left, right);
      }
    }
    SyncWarp();
#pragma unroll
    for (int i = 0; i < 2; ++i) StoreTile<kLead>(t + 16 * i, sum[i]);
  }

  // sum += A(:, k..k+7) B(k..k+7, :), of which B may be transposed.
  template <bool kTransposed>
  __device__ static void Multiply(Real (&sum)[4], const T* a, const T* b, int k) {
    Real left[4];
    LoadRows<kLead>(left, a, k);
    const Real right[2] = {
        kTransposed ? RowFragment<kLead, Real>(b, k) : ColumnFragment<kLead, Real>(b, k),
        kTransposed ? RowFragment<kLead, Real>(b, k + 4) : ColumnFragment<kLead, Real>(b, k + 4)};
    Mma16x8x8(sum, left, right);
  }
  __device__ static void StoreSum(T* to, Real (&sum)[2][4]) {
#pragma unroll
    for (int e = 0; e < 4; ++e) sum[0][e] += sum[1][e];
    StoreTile<kLead>(to, sum[0]);
  }

  T* const m_;
  T* const below_;
  T* const above_;
  T* const last_;
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
  using Half = TileInverter<kHalf, kLead, kWarps, Real, T>;

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
#pragma unroll
      for (int k = 0; k < kTiles; ++k) {
        const Real right[2] = {-ColumnFragment<kLead, Real>(t, 8 * k),
                               -ColumnFragment<kLead, Real>(t, 8 * k + 4)};
#pragma unroll
        for (int i = k / 2; i < kRows; ++i) {
          Real left[4];
          LoadRows<kLead>(left, last_ + 16 * i, 8 * k);
          // The upper tile of a pair on the diagonal is scratch.
          if (k == 2 * i + 1) left[0] = left[2] = 0;
          Mma16x8x8(sum[i], left, right);
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
    TileInverter<kTile, kLd<kTile>, kWarps, Real, T>(m, 0, failed).Run();
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
