// Device code: what a solve reads of a factor, and its product with vectors in shared memory by the
// FP64 matrix instruction.
//
// A warp multiplies strips of a matrix M: some rows of M (forward, M v) or columns (backward, M'
// v), in pieces of 16 along the other dimension. A strip has 16 rows, or 32 of float with large
// blocks, in units of scalars side by side in memory. The lanes of group g have the unit g of the
// strip, so that what is row g of an instruction's operand is any row of the unit.
//
// The next matrices are known before their vectors are there, so a warp loads ahead, across
// matrices, blocks and barriers: into registers (register_stream.h) or its own part of shared
// memory (ring_stream.h).
#ifndef BLOCKD_ENGINE_GPU_TILE_SPAN_H_
#define BLOCKD_ENGINE_GPU_TILE_SPAN_H_

#include "engine/gpu/arch/arch.h"
#include "engine/gpu/plan/level.h"

namespace blockd::gpu {

inline constexpr int kStrip = 16;
inline constexpr int kUnitOfStrip = kStrip / kOperandRows;
inline constexpr int kStep = 16;    // rows of the vectors that a piece is multiplied by
inline constexpr int kColumns = 8;  // right-hand sides of a set

// Strips and units of large blocks.
template <typename T>
inline constexpr int kWideStrip = 128 / static_cast<int>(sizeof(T));
template <typename T>
inline constexpr int kWideUnit = kWideStrip<T> / kOperandRows;

// Pieces of a strip at begin, begin + step, ... below end. All are multiples of 16, or end is n.
template <typename T>
struct Span {
  const T* matrix = nullptr;
  bool triangle = false;  // inv(L), stored in block columns
  bool forward = false;
  int strip = 0;  // first row or column
  int begin = 0, end = 0;
  int log_slices = 0;  // every 2^log_slices-th piece is this warp's

  __device__ int step() const { return kStep << log_slices; }
  __device__ int pieces() const {
    return begin < end ? (end - begin + step() - 1) >> (log_slices + 4) : 0;
  }
};

// Where (row, column) of a triangle is, in the block column that starts at column `first`.
__device__ inline int TriangleOffset(int row, int column, int first, int n) {
  return first * n - first * (first - kPanelColumns) / 2 + (column - first) * (n - first) + row -
         first;
}

// A lane's part of a piece: four units. Forward, unit 2h + j is of the column 8h + 2t + j. Backward
// a lane has rows of each column of its unit: with kPairs two from 2t on and two from 8 + 2t on,
// column after column for each pair; otherwise the four from 4t on, column after column.
template <typename T, int kUnit>
struct Piece {
  static constexpr bool kPairs = kUnit == 2 && !kIsAmd;
  T v[4][kUnit];

  // The scalar of the unit's row (backward, column) i and the j-th of the two vector rows, in the
  // h-th product of depth 8.
  template <bool kForward>
  __device__ T At(int h, int i, int j) const {
    if (kForward) return v[2 * h + j][i];
    if (kPairs) return v[2 * h + i][j];
    const int at = 4 * i + 2 * h + j;
    return v[at / kUnit][at % kUnit];
  }
  // The first vector row that this lane has of the h-th product.
  template <bool kForward>
  __device__ static int Row(int h) {
    const int t = OperandDepth();
    return kForward || kPairs ? 8 * h + 2 * t : 4 * t + 2 * h;
  }
};
// A strip of a product and kSets times 8 columns. Row r of the m-th tile of 16 rows is row
// kLeftRows m + r / kOperandRows of the unit r % kOperandRows.
template <int kSets, int kUnit = kUnitOfStrip>
struct Sums {
  using Layout = ResultLayout<double>;
  static constexpr int kProducts = (kSets * kColumns + kProductColumns - 1) / kProductColumns;
  static constexpr int kTiles = kUnit / kLeftRows;
  double c[kProducts][kTiles][4] = {};

  // Where this lane's first entry is, and from there entry e of the m-th tile.
  __device__ static int Row() { return kUnit * Layout::Row(); }
  __device__ static int Column() { return Layout::Column(); }
  __device__ static constexpr int Down(int m, int e) {
    const int row = Layout::Down(e);
    return kLeftRows * m + row / kOperandRows + kUnit * (row % kOperandRows);
  }
  // body(row, column, entry) for this lane's entries.
  template <typename Body>
  __device__ void ForEach(const Body& body) {
    const int row = Row(), column = Column();
#pragma unroll
    for (int i = 0; i < kProducts * kTiles * 4; ++i) {
      const int s = i / (4 * kTiles), m = i / 4 % kTiles, e = i % 4;
      body(row + Down(m, e), column + s * kProductColumns + Layout::Across(e), c[s][m][e]);
    }
  }
  // The same of the columns of products of which some are there.
  template <typename Body>
  __device__ void ForEach(int columns, const Body& body) const {
    const int row = Row(), column = Column();
#pragma unroll
    for (int s = 0; s < kProducts; ++s) {
      if (s * kProductColumns + column >= columns) continue;
#pragma unroll
      for (int i = 0; i < 4 * kTiles; ++i) {
        const int m = i / 4, e = i % 4;
        body(row + Down(m, e), s * kProductColumns + column + Layout::Across(e), c[s][m][e]);
      }
    }
  }
  // body(row, column, values) for its runs of kLeftRows rows side by side, of strips of one tile.
  template <typename Body>
  __device__ void ForEachRun(const Body& body) const {
    static_assert(kTiles == 1);
    constexpr int kRuns = 4 / kLeftRows;
#pragma unroll
    for (int i = 0; i < kRuns * kProducts; ++i) {
      const int s = i / kRuns, first = i % kRuns;
      double values[kLeftRows];
#pragma unroll
      for (int r = 0; r < kLeftRows; ++r) values[r] = c[s][0][first + r * kRuns];
      body(Down(0, first), s * kProductColumns + Layout::Across(first), values);
    }
  }
};

// A lane's part of the piece of a span that begins at `begin`, with zeros where nothing is stored
// and beyond n. kWhole: n is a multiple of 16, so that what lies side by side is stored or not.
template <bool kForward, bool kWhole, typename T, int kUnit>
__device__ inline void LoadPiece(Piece<T, kUnit>& piece, const Span<T>& span, int begin, int n) {
  using ThisPiece = Piece<T, kUnit>;
  const int mine = span.strip + kUnit * OperandRow();
  const auto at = [&](int row, int column, bool& stored) {
    const int first = span.triangle ? column & -kPanelColumns : 0;
    stored = column < n && row < n && row >= first;
    const int offset = span.triangle ? TriangleOffset(row, column, first, n) : column * n + row;
    return span.matrix + (stored ? offset : 0);  // loads under a condition wait for one another
  };
  if constexpr (kWhole) {
    constexpr int kRun = kForward ? kUnit : 4;  // scalars of a column
#pragma unroll
    for (int u = 0; u < 4 * kUnit / kRun; ++u) {
      const int column = kForward ? begin + ThisPiece::template Row<true>(u / 2) + u % 2 : mine + u;
      const int row = kForward ? mine : begin + ThisPiece::template Row<false>(0);
      bool stored;
      const T* const from = at(row, column, stored);
      T* const to = &piece.v[0][0] + u * kRun;
#pragma unroll
      for (int e = 0; e < kRun; ++e) to[e] = __ldg(from + e);
#pragma unroll
      for (int e = 0; e < kRun; ++e) to[e] = stored ? to[e] : T{0};
    }
  } else {
#pragma unroll
    for (int i = 0; i < 4 * kUnit; ++i) {
      const int h = kForward ? i / kUnit / 2 : i % 4 / 2, j = kForward ? i / kUnit % 2 : i % 2;
      const int inner = kForward ? i % kUnit : i / 4;
      const int k = begin + ThisPiece::template Row<kForward>(h) + j, s = mine + inner;
      bool stored;
      const T value = __ldg(at(kForward ? s : k, kForward ? k : s, stored));
      piece.v[i / kUnit][i % kUnit] = stored ? value : T{0};
    }
  }
}

__device__ inline void StorePair(double* to, double a, double b) {
  *reinterpret_cast<double2*>(to) = {a, b};
}
__device__ inline void StorePair(float* to, double a, double b) {
  *reinterpret_cast<float2*>(to) = {static_cast<float>(a), static_cast<float>(b)};
}
__device__ inline void ReadPair(double (&pair)[2], const double* from) {
  const double2 value = *reinterpret_cast<const double2*>(from);
  pair[0] = value.x, pair[1] = value.y;
}
__device__ inline void ReadPair(double (&pair)[2], const float* from) {
  const float2 value = *reinterpret_cast<const float2*>(from);
  pair[0] = static_cast<double>(value.x), pair[1] = static_cast<double>(value.y);
}

// sums += piece * v; v is where this lane's column of the piece's vectors begins, `set` from one
// set of columns to the next; column of `there` sets are there. What is `second` further on is
// added to v, if halves.
template <bool kForward, typename T, int kSets, int kUnit>
__device__ inline void MultiplyPiece(Sums<kSets, kUnit>& sums, const Piece<T, kUnit>& piece,
                                     const T* v, int set, int there, int second = 0,
                                     bool halves = false) {
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    using ThisSums = Sums<kSets, kUnit>;
    constexpr int kEntries = 2 * kLeftRows;
    const T* const rows = v + Piece<T, kUnit>::template Row<kForward>(h);
    double a[ThisSums::kTiles][kEntries];
#pragma unroll
    for (int i = 0; i < 2 * kUnit; ++i) {
      const int m = i / kEntries, e = i % kEntries;
      a[m][e] = static_cast<double>(
          piece.template At<kForward>(h, m * kLeftRows + e % kLeftRows, e / kLeftRows));
    }
#pragma unroll
    for (int s = 0; s < ThisSums::kProducts; ++s) {
      double b[2] = {0, 0};
      if (s < there) ReadPair(b, rows + s * set);
      if (s < there && halves) {
        double added[2];
        ReadPair(added, rows + second + s * set);
        b[0] += added[0], b[1] += added[1];
      }
#pragma unroll
      for (int m = 0; m < ThisSums::kTiles; ++m) MmaDepth8(sums.c[s][m], a[m], b);
    }
  }
}

// Rows between columns of vectors in shared memory: no two columns' reads meet in a bank.
BLOCKD_HOST_DEVICE constexpr int64_t VectorLead(int64_t rows) { return (rows + 31) / 32 * 32 + 8; }

}  // namespace blockd::gpu

#endif  // BLOCKD_ENGINE_GPU_TILE_SPAN_H_
