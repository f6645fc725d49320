// Device code: the inverse Cholesky factor of a tile in shared memory.
#ifndef BLOCKD_ENGINE_GPU_TILE_TILE_INVERTER_H_
#define BLOCKD_ENGINE_GPU_TILE_TILE_INVERTER_H_

#include <algorithm>

#include "engine/gpu/tile/fragments.h"

namespace blockd::gpu {

// Two warps: the lower triangle of a symmetric matrix of 32 rows of float becomes inv(chol). Each
// lane has a row of the matrix or, from that row's step on, a column of the inverse, and step j has
// panel j, eight rows and columns: the first warp divides what its lanes have there by the diagonal
// tile's factor and subtracts in panel j + 1 what that makes of it; beside its next step the other
// warp does so in the panels after. What a lane has in a panel stands in the lane's column of m,
// where above the diagonal is scratch, once it is the inverse's.
//
// Plain arithmetic: a warp's matrix instructions would wait for those of warpgroups. And two warps,
// as all waits for these.
template <int kLead>
class SpanInverter {
 public:
  static constexpr int kBarrier = 4;  // of the two

  __device__ explicit SpanInverter(float* m)
      : row_(Lane() % kRows), group_(row_ / 8), column_(m + row_ * kLead), m_(m) {}

  // The first warp. Failures as below.
  __device__ void Run(int base, int* failed) const {
    float panel[8], next[8];
#pragma unroll
    for (int c = 0; c < 8; ++c) {
      panel[c] = Entry(c);
      next[c] = Entry(8 + c);
    }
    SyncWarp();
    Share(0, panel);
#pragma unroll 1
    for (int j = 0;; ++j) {
      float a[8][8];
#pragma unroll
      for (int r = 0; r < 8; ++r) LoadEight(a[r], m_ + (8 * j + r) * kLead + 8 * j);
#pragma unroll
      for (int c = 0; c < 8; ++c) {
        if (group_ == j) panel[c] = c == row_ % 8 ? 1.0f : 0.0f;
      }
      const int bad = DivideByFactor<float>(a, panel);
      if (bad < 8 && Lane() == 0 && *failed < 0) *failed = base + 8 * j + bad;
      SyncWarp();
      Keep(j, panel);
      if (j + 1 == kPanels) break;
      Sync();
      if (j > 0) LoadEight(next, column_ + 8 * (j + 1));
      Subtract(j, j + 1, panel, next);
#pragma unroll
      for (int c = 0; c < 8; ++c) panel[c] = next[c];
      Share(j + 1, panel);
    }
  }
  // The other.
  __device__ void Assist() const {
    float rest[2][8];  // of the last two panels
#pragma unroll
    for (int c = 0; c < 16; ++c) rest[c / 8][c % 8] = group_ >= 2 + c / 8 ? Entry(16 + c) : 0;
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      SyncWarp();
      Sync();
      float x[8];
      LoadEight(x, column_ + 8 * j);
#pragma unroll
      for (int p = j; p < 2; ++p) Subtract(j, 2 + p, x, rest[p]);
      Keep(2 + j, rest[j]);
    }
    Sync();
  }

 private:
  static constexpr int kRows = 32, kPanels = kRows / 8;

  __device__ static void Sync() { SyncPart<kBarrier, 2>(); }
  __device__ float Entry(int column) const { return m_[column * kLead + row_]; }
  __device__ void Keep(int panel, const float (&values)[8]) const {
    if (Lane() < kRows) StoreEight(column_ + 8 * panel, values);
  }
  // The diagonal tile's rows.
  __device__ void Share(int j, const float (&panel)[8]) const {
    if (group_ == j) Keep(j, panel);
    SyncWarp();
  }
  // Subtracts step j, which has left x, from a lane's entries in a panel; they begin at zero if the
  // lane's row is of step j.
  __device__ void Subtract(int j, int panel, const float (&x)[8], float (&entries)[8]) const {
    const float* const rows = m_ + 8 * (panel * kLead + j);
#pragma unroll
    for (int c = 0; c < 8; ++c) {
      float factor[8];
      LoadEight(factor, rows + c * kLead);
      float sum = group_ == j ? 0 : entries[c];
#pragma unroll
      for (int k = 0; k < 8; ++k) sum = fma(-factor[k], x[k], sum);
      entries[c] = sum;
    }
  }

  const int row_, group_;
  float* const column_;
  const float* const m_;
};

// One warp: the lower triangle of a symmetric matrix of kTiles x kTiles tiles of 8 x 8, kTiles at
// most 4, becomes inv(chol). Step j has kTiles x 8 rows and columns to divide by the diagonal
// tile's factor, one for each lane: what of the inverse is left of that tile, the identity, and
// what of the matrix is below it. The first bad pivot is noted in *failed as base + its index, if
// nothing was before.
template <int kTiles, int kLead, typename Real, typename T>
__device__ inline void InvertSpan(T* m, int base, int* failed) {
  const auto at = [m](int i, int l) { return m + l * 8 * kLead + i * 8; };
  const int group = Lane() / 8 % kTiles, mine = Lane() % 8;
  SmallResult<Real> rest[kTiles][kTiles];  // tiles (i, l) below the current row
  // Operands from the last step: rows of L below its diagonal tile, and the inverse in its row.
  Real rows[kTiles][2], minus[kTiles][2], columns[kTiles][2];
  const auto subtract = [&](int i, int l, const Real(&left)[2], const Real(&right)[2]) {
    MmaSmall(rest[i][l], left, right);
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
    // Subtracts what the step before left for later, while those loads are under way.
#pragma unroll
    for (int i = j + 1; j > 0 && i < kTiles; ++i) {
#pragma unroll
      for (int l = 0; l <= i; ++l) {
        if (l != j) subtract(i, l, minus[i], l >= j ? rows[l] : columns[l]);
      }
    }
    const int bad = DivideByFactor<T>(a, x);
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
        rows[i][k] = SmallTransposed<kLead, Real>(at(i, j), 4 * k);
        minus[i][k] = -SmallLeft<kLead, Real>(at(i, j), 4 * k);
      }
#pragma unroll
      for (int l = 0; l <= j; ++l) columns[l][k] = SmallRight<kLead, Real>(at(j, l), 4 * k);
    }
#pragma unroll
    for (int i = j + 1; i < kTiles; ++i) {
#pragma unroll
      for (Real& entry : rest[i][j]) entry = 0;
#pragma unroll
      for (int l = 1; j == 0 && l <= i; ++l) LoadSmallTile<kLead, Real>(rest[i][l], at(i, l));
    }
    SyncWarp();
    // Row and column j + 1, from which the next step starts, go first.
#pragma unroll
    for (int t = j + 1; t < j + 1 + kTiles; ++t) {
      const int tile = t % kTiles, i = tile > j ? tile : j + 1, l = tile > j ? j + 1 : tile;
      subtract(i, l, minus[i], l > j ? rows[l] : columns[l]);
    }
#pragma unroll
    for (int t = j + 1; t < j + 1 + kTiles; ++t) {
      const int tile = t % kTiles, i = tile > j ? tile : j + 1, l = tile > j ? j + 1 : tile;
      StoreSmallTile<kLead, Real>(at(i, l), rest[i][l]);
    }
    SyncWarp();
  }
}

// The lower triangle of m becomes X = inv(chol(m)), by spans of 32 rows. When a span is inverted
// its block holds what the spans before leave of it; so do, R, the blocks of its row where those of
// X come. A span s:
//
//     X(s,s)         by one warp
//     all others     L(i,s) = A(i,s) X(s,s)', above the diagonal,   and   X(s,l) = X(s,s) R(s,l)
//     for t > s      A(i,t) -= L(i,s) L(t,s)', i >= t,   and   R(t,l) -= L(t,s) X(s,l), l <= s
//
// of which the next span waits for A(i,s+1) only: other warps do the rest beside it. Above the
// diagonal 8 x 8 tiles, which get stored zeros, is scratch. kWarps warps, from the thread block's
// first on, share the work; kBarrier is their own, 0 if they are all. kKeepsDiagonal: the diagonal
// that m had comes to row kTile, of the padding.
template <int kTile, int kWarps, typename T, int kBarrier = 0, bool kKeepsDiagonal = false>
class TileInverter {
  using Real = Arithmetic<T, kTile>;
  static constexpr int kLead = kLd<T, kTile>;
  static constexpr int kSpan = std::min(kTile, 32), kSpans = kTile / kSpan;
  // True if the last warp assists the first.
  static constexpr bool kAssisted = std::is_same_v<Real, float> && kHasPartBarriers;
  // A unit of work is 16 rows and columns of a product of two blocks, kUnitTiles results of a
  // matrix instruction, or all rows of one instruction's columns.
  static constexpr int kUnits = 4;  // of a product
  static constexpr int kUnitTiles = 16 / kProductColumns;

 public:
  // failed: where the first bad pivot is noted, if nothing was before. warp: this one's number.
  __device__ TileInverter(T* m, int* failed, int warp) : m_(m), failed_(failed), warp_(warp) {}

  // Every thread of these warps calls it, with m complete; it returns with m complete.
  __device__ void Run() const { Run(Alone{}); }
  // The same. While a span is inverted, all warps but the first call beside.Span(its number),
  // having formed what this span's row has of R, and the last one where it is kAssisted, having
  // done its part of the inverse; all call beside.Inverted() when the last span is there, and the
  // blocks of its row are still R.
  template <typename Beside>
  __device__ void Run(const Beside& beside) const {
    const int warp = warp_;
    if constexpr (kKeepsDiagonal) {
      // The next span's is not touched before the first barrier.
      if (warp == 0) KeepDiagonal(0, kSpan);
      if (warp == 1) KeepDiagonal(kSpan, kTile);
    }
#pragma unroll 1
    for (int span = 0;; ++span) {
      if (warp == 0) {
        if constexpr (kAssisted) {
          SpanInverter<kLead>(Block(span, span)).Run(span * kSpan, failed_);
        } else {
          InvertSpan<kSpan / 8, kLead, Real>(Block(span, span), span * kSpan, failed_);
        }
      } else {
        if (kAssisted && warp == kWarps - 1) {
          if constexpr (kAssisted) SpanInverter<kLead>(Block(span, span)).Assist();
        } else if (span > 0 && (warp % 4 != 0 || kWarps <= 4)) {
          // Not those that share the arithmetic of warp 0.
          constexpr int kHelpers = kWarps - (kWarps + 3) / 4 - (kAssisted ? 1 : 0);
          for (int to = span; to < kSpans; ++to) {
            Update(span - 1, to, 0, to == span ? span : kSpans + span - to, warp - 1 - warp / 4,
                   kHelpers);
          }
        }
        beside.Span(span);
      }
      Sync();
      if (span + 1 == kSpans) beside.Inverted();
      if constexpr (kSpans > 1) {
        Divide(span);
        Sync();
        if (span + 1 == kSpans) break;
        Update(span, span + 1, span + 1, kSpans, warp, kWarps);
        Sync();
      } else {
        break;
      }
    }
  }

 private:
  struct Alone {
    __device__ void Span(int) const {}
    __device__ void Inverted() const {}
  };

  // Below the tile, where its columns are padded: for the growth, when it has become the inverse.
  __device__ void KeepDiagonal(int first, int end) const {
#pragma unroll
    for (int i = first + Lane(); i < end; i += kWarp) m_[i * kLead + kTile] = m_[i * (kLead + 1)];
    SyncWarp();
  }

  __device__ T* Block(int row, int column) const { return m_ + kSpan * (column * kLead + row); }

  __device__ static void Sync() { SyncPart<kBarrier, kWarps>(); }

  // Divides all other blocks of the span's row and column by its factor.
  __device__ void Divide(int span) const {
    const T* const x = Block(span, span);
#pragma unroll 1
    for (int unit = warp_; unit < (kSpans - 1) * kUnits; unit += kWarps) {
      const int product = unit / kUnits, part = unit % kUnits;
      if (product < span) {
        const int column = part * kProductColumns;
        if (column < kSpan) DivideColumns(x, Block(span, product) + column * kLead);
      } else {
        const int i = product + 1, row = part % 2 * 16;
        DivideRows(x, Block(i, span) + row, Block(span, i) + row, part / 2 * 16);
      }
    }
  }

  // Subtracts span `from` from span `to`, by the products from first to end - 1: first come those
  // of R, for each span up to `from`, then those of A.
  __device__ void Update(int from, int to, int first, int end, int warp, int warps) const {
    const T* const l = Block(from, to);
#pragma unroll 1
    for (int unit = first * kUnits + warp; unit < end * kUnits; unit += warps) {
      const int product = unit / kUnits, part = unit % kUnits;
      const int row = part % 2 * 16, column = part / 2 * 16;
      if (product <= from) {
        Subtract<false>(l + row, Block(from, product) + column * kLead,
                        Block(to, product) + column * kLead + row, product < from ? -1 : column);
      } else {
        const int i = to + product - from - 1;
        Subtract<true>(Block(from, i) + row, l + column, Block(i, to) + column * kLead + row, -1);
      }
    }
  }

  // out = A X', columns from `column` on; X is a triangle.
  __device__ static void DivideRows(const T* x, const T* a, T* out, int column) {
    Real sums[kUnitTiles][4] = {};
#pragma unroll
    for (int k = 0; k < kSpan; k += 8) {
      if (k > column + 8) break;
      LeftOperand<Real> left;
      LoadRows<kLead, Real>(left, a, k);
#pragma unroll
      for (int j = 0; j < kUnitTiles; ++j) {
        const int tile = column + kProductColumns * j;
        RightOperand<Real> right;
        LoadRight<true>(right, x + tile, k);
        if (k > tile + EightOf()) right[0] = right[1] = 0;
        MmaDepth8(sums[j], left, right);
      }
    }
#pragma unroll
    for (int j = 0; j < kUnitTiles; ++j) {
      StoreTile<kLead>(out + (column + kProductColumns * j) * kLead, sums[j]);
    }
  }

  // Whole columns, as many as an instruction has, become X times them.
  __device__ static void DivideColumns(const T* x, T* columns) {
    Real sums[2][4] = {};
#pragma unroll
    for (int k = 0; k < kSpan; k += 8) {
      RightOperand<Real> right;
      LoadRight<false>(right, columns, k);
#pragma unroll
      for (int i = k / 16; i < 2; ++i) {
        LeftOperand<Real> left;
        LoadRows<kLead, Real>(left, x + 16 * i, k);
        // The upper tile of a pair on the diagonal is scratch.
        if (k == 16 * i + 8) {
#pragma unroll
          for (int e = 0; e < 2 * kLeftRows; ++e) {
            if (IsUpperRow(e % kLeftRows)) left[e] = 0;
          }
        }
        MmaDepth8(sums[i], left, right);
      }
    }
    SyncWarp();
#pragma unroll
    for (int i = 0; i < 2; ++i) StoreTile<kLead>(columns + 16 * i, sums[i]);
  }

  // out -= A B, or A B'. If B is a triangle, of which `triangle` is the first column, nothing of
  // out is there yet.
  template <bool kTransposed>
  __device__ static void Subtract(const T* a, const T* b, T* out, int triangle) {
    Real start[kUnitTiles][4] = {}, sums[kUnitTiles][4] = {};
    if (triangle < 0) {
#pragma unroll
      for (int j = 0; j < kUnitTiles; ++j) {
        LoadTile<kLead>(start[j], out + kProductColumns * j * kLead);
      }
    }
#pragma unroll
    for (int k = 0; k < kSpan; k += 8) {
      LeftOperand<Real> left;
      LoadRows<kLead, Real>(left, a, k);
#pragma unroll
      for (int j = 0; j < kUnitTiles; ++j) {
        const int tile = kProductColumns * j;
        RightOperand<Real> right;
        LoadRight<kTransposed>(right, b + tile * (kTransposed ? 1 : kLead), k);
        if (k < triangle + tile + EightOf() && triangle >= 0) right[0] = right[1] = 0;
        MmaDepth8(sums[j], left, right);
      }
    }
#pragma unroll
    for (int j = 0; j < kUnitTiles; ++j) {
#pragma unroll
      for (int e = 0; e < 4; ++e) sums[j][e] = start[j][e] - sums[j][e];
      StoreTile<kLead>(out + kProductColumns * j * kLead, sums[j]);
    }
  }

  // Where the eight columns begin of which this lane has one.
  __device__ static int EightOf() { return kProductColumns > 8 ? OperandRow() & 8 : 0; }

  template <bool kTransposed>
  __device__ static void LoadRight(RightOperand<Real>& right, const T* b, int k) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      right[h] = kTransposed ? RowFragment<kLead, Real>(b, k + 4 * h)
                             : ColumnFragment<kLead, Real>(b, k + 4 * h);
    }
  }

  T* const m_;
  int* const failed_;
  const int warp_;
};

}  // namespace blockd::gpu

#endif  // BLOCKD_ENGINE_GPU_TILE_TILE_INVERTER_H_
