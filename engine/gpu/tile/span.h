// Device code: what a solve reads of a factor, and its product with vectors in shared memory by the
// FP64 matrix instruction.
//
// A warp multiplies strips of a matrix M: some rows of M (forward, M v) or columns (backward, M'
// v), in pieces of 16 along the other dimension. A strip is 8 units of scalars side by side in
// memory, which a lane loads at once: 2 of them, and 16 rows, or 4 of float with large blocks, 32
// rows. Lane 4g + t has the unit g of the strip.
//
// What comes is known before its vectors are, so a warp loads ahead, across matrices, blocks and
// barriers: into registers (register_stream.h) or its own part of shared memory (ring_stream.h).
#ifndef BLOCKD_ENGINE_GPU_TILE_SPAN_H_
#define BLOCKD_ENGINE_GPU_TILE_SPAN_H_

#include "engine/gpu/arch/arch.h"
#include "engine/gpu/plan/level.h"

namespace blockd::gpu {

inline constexpr int kStrip = 16;   // of two scalars a unit
inline constexpr int kStep = 16;    // rows of the vectors that a piece is multiplied by
inline constexpr int kColumns = 8;  // right-hand sides of one matrix instruction

// Scalars of 16 bytes, and rows of a strip of such units.
template <typename T>
inline constexpr int kWideUnit = 16 / static_cast<int>(sizeof(T));
template <typename T>
inline constexpr int kWideStrip = 8 * kWideUnit<T>;

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

// What a lane has of a piece: four units. Forward, unit 2h + j is of the column 8h + 2t + j.
// Backward, a unit of two is 2h + i, of the strip's column 2g + i and the rows from 8h + 2t on; one
// of four is i, of the column 4g + i and the rows from 4t on.
template <typename T, int kUnit>
struct Piece {
  T v[4][kUnit];

  // Of the h-th product of 16 x 8: the scalar of the unit's row (backward, column) i and the j-th
  // of the two vector rows.
  template <bool kForward>
  __device__ T At(int h, int i, int j) const {
    if (kForward) return v[2 * h + j][i];
    return kUnit == 2 ? v[2 * h + i][j] : v[i][2 * h + j];
  }
  // The first vector row that this lane has of the h-th product.
  template <bool kForward>
  __device__ static int Row(int h) {
    const int t = Lane() & 3;
    return kForward || kUnit == 2 ? 8 * h + 2 * t : 4 * t + 2 * h;
  }
};
// A strip of a product and kSets times 8 columns.
template <int kSets, int kUnit = 2>
struct Sums {
  static constexpr int kTiles = kUnit / 2;  // of 16 rows
  double c[kSets][kTiles][4] = {};

  // Row e / 2 of this lane's unit and column e % 2 of its two.
  __device__ double& At(int s, int e) { return c[s][e / 4][e % 4]; }
  __device__ double At(int s, int e) const { return c[s][e / 4][e % 4]; }
  // body(row, column, value), row 0 to 8 kUnit - 1, pairs of columns of which there are some.
  template <typename Body>
  __device__ void ForEach(int columns, const Body& body) const {
    const int row = kUnit * (Lane() >> 2), column = 2 * (Lane() & 3);
#pragma unroll
    for (int s = 0; s < kSets; ++s) {
      if (s * kColumns + column >= columns) continue;
#pragma unroll
      for (int e = 0; e < 2 * kUnit; ++e) {
        body(row + (e >> 1), s * kColumns + column + (e & 1), At(s, e));
      }
    }
  }
};

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
    const T* const rows = v + Piece<T, kUnit>::template Row<kForward>(h);
    double a[kUnit / 2][4];
#pragma unroll
    for (int i = 0; i < 2 * kUnit; ++i) {
      a[i / 4][i % 4] =
          static_cast<double>(piece.template At<kForward>(h, i / 4 * 2 + i % 2, i / 2 % 2));
    }
#pragma unroll
    for (int s = 0; s < kSets; ++s) {
      double b[2] = {0, 0};
      if (s < there) ReadPair(b, rows + s * set);
      if (s < there && halves) {
        double added[2];
        ReadPair(added, rows + second + s * set);
        b[0] += added[0], b[1] += added[1];
      }
#pragma unroll
      for (int m = 0; m < kUnit / 2; ++m) Mma16x8x8(sums.c[s][m], a[m], b);
    }
  }
}

// Rows between columns of vectors in shared memory: no two columns' reads meet in a bank.
BLOCKD_HOST_DEVICE constexpr int64_t VectorLead(int64_t rows) { return (rows + 31) / 32 * 32 + 8; }

}  // namespace blockd::gpu

#endif  // BLOCKD_ENGINE_GPU_TILE_SPAN_H_
