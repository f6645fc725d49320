// Device code on square tiles in shared memory: column-major, leading dimension kLd<kTile>, which
// keeps the fragments of a warp's matrix instructions free of bank conflicts. Arithmetic is in
// double whatever T is.
#ifndef BLOCKD_ENGINE_GPU_TILE_H_
#define BLOCKD_ENGINE_GPU_TILE_H_

#include "blockd/engine/gpu/gpu_runtime.h"
#include "blockd/engine/gpu/level.h"

namespace blockd::gpu {

template <int kTile>
inline constexpr int kLd = kTile + 4;

// Entry (g, k + t) of the rows that `rows` points to: the left operand of Mma8x8x4 or, for a
// product with a transpose, the right one.
template <int kLead, typename T>
__device__ inline double RowFragment(const T* rows, int k) {
  const int lane = Lane();
  return rows[(k + (lane & 3)) * kLead + (lane >> 2)];
}
// Entry (k + t, g) of the columns that `columns` points to: the right operand.
template <int kLead, typename T>
__device__ inline double ColumnFragment(const T* columns, int k) {
  const int lane = Lane();
  return columns[(lane >> 2) * kLead + k + (lane & 3)];
}

// An 8 x 8 accumulator.
struct Accumulator {
  double c[2] = {0, 0};

  template <int kLead, typename T>
  __device__ void Load(const T* tile) {
    const int row = Lane() >> 2, column = 2 * (Lane() & 3);
    c[0] = tile[column * kLead + row];
    c[1] = tile[(column + 1) * kLead + row];
  }
  template <int kLead, typename T>
  __device__ void Store(T* tile) const {
    const int row = Lane() >> 2, column = 2 * (Lane() & 3);
    tile[column * kLead + row] = static_cast<T>(c[0]);
    tile[(column + 1) * kLead + row] = static_cast<T>(c[1]);
  }
};

// One warp: an 8 x 8 symmetric matrix becomes inv(chol), lower triangular with stored zeros. Every
// lane factors all of it, so that no step waits for another lane; and has column lane % 8 of the
// inverse. A pivot that is not a positive normal number is noted in *failed as base + its index,
// if nothing was before.
template <int kLead, typename T>
__device__ inline void InvertDiagonal(T* tile, int base, int* failed) {
  const double kInfinity = __longlong_as_double(0x7ff0000000000000);
  const int mine = Lane() & 7;
  double a[8][8], x[8];
#pragma unroll
  for (int c = 0; c < 8; ++c) {
    x[c] = c == mine ? 1.0 : 0.0;
#pragma unroll
    for (int r = c; r < 8; ++r) a[r][c] = tile[c * kLead + r];
  }
  int bad = 8;
#pragma unroll
  for (int k = 0; k < 8; ++k) {
    const double pivot = a[k][k];
    if (bad == 8 && !(pivot >= 0x1p-1022 && pivot < kInfinity)) bad = k;
    const double scale = ReciprocalRoot(pivot);
    x[k] *= scale;
#pragma unroll
    for (int r = k + 1; r < 8; ++r) a[r][k] *= scale;
#pragma unroll
    for (int c = k + 1; c < 8; ++c) {
      x[c] = fma(-a[c][k], x[k], x[c]);
#pragma unroll
      for (int r = c; r < 8; ++r) a[r][c] = fma(-a[r][k], a[c][k], a[r][c]);
    }
  }
  SyncWarp();
  if (Lane() < 8) {
#pragma unroll
    for (int r = 0; r < 8; ++r) tile[mine * kLead + r] = static_cast<T>(r < mine ? 0.0 : x[r]);
  }
  if (Lane() == 0 && bad < 8 && *failed < 0) *failed = base + bad;
  SyncWarp();
}

// A thread block of kWarps warps: the lower triangle of m (symmetric within its diagonal 8 x 8
// tiles) becomes inv(chol(m)); tiles above the diagonal keep what they had. `panel` has 8 columns.
// Every thread calls it, with m complete; it returns with m complete. Step j turns the 8 columns j
// of A into L, applies them to what is right of them and, in the columns left of j, to the inverse.
template <int kTile, int kWarps, typename T>
__device__ inline void CholeskyInverse(T* m, T* panel, int* failed) {
  constexpr int kLead = kLd<kTile>;
  constexpr int kTiles = kTile / 8, kChunk = kTiles < 4 ? kTiles : 4;
  static_assert(kWarps >= 2);
  const int warp = WarpIndex();
  const auto at = [m](int i, int l) { return m + l * 8 * kLead + i * 8; };
  // Tiles l to l + 3, or to `end`, of row i: their loads first, so that they wait only once.
  const auto update = [&](int i, int l, int end, int j) {
    Accumulator sum[kChunk];
    double left[2], right[kChunk][2];
#pragma unroll
    for (int k = 0; k < 2; ++k) left[k] = -RowFragment<kLead>(panel + i * 8, 4 * k);
#pragma unroll
    for (int e = 0; e < kChunk; ++e) {
      const int t = l + e;
      if (t >= end) break;
      if (t != j) sum[e].template Load<kLead>(at(i, t));
#pragma unroll
      for (int k = 0; k < 2; ++k) {
        right[e][k] = t > j ? RowFragment<kLead>(panel + t * 8, 4 * k)
                            : ColumnFragment<kLead>(at(j, t), 4 * k);
      }
    }
#pragma unroll
    for (int k = 0; k < 2; ++k) {
#pragma unroll
      for (int e = 0; e < kChunk; ++e) {
        if (l + e < end) Mma8x8x4(sum[e].c, left[k], right[e][k]);
      }
    }
#pragma unroll
    for (int e = 0; e < kChunk; ++e) {
      if (l + e < end) sum[e].template Store<kLead>(at(i, l + e));
    }
  };
  if (warp == 0) InvertDiagonal<kLead>(m, 0, failed);
  __syncthreads();
#pragma unroll 1
  for (int j = 0; j < kTiles; ++j) {
    for (int i = warp; i < kTiles; i += kWarps) {
      if (i == j) continue;
      Accumulator product;
#pragma unroll
      for (int k = 0; k < 8; k += 4) {
        if (i > j) {
          Mma8x8x4(product.c, RowFragment<kLead>(at(i, j), k), RowFragment<kLead>(at(j, j), k));
        } else {
          Mma8x8x4(product.c, RowFragment<kLead>(at(j, j), k), ColumnFragment<kLead>(at(j, i), k));
        }
      }
      SyncWarp();
      product.Store<kLead>(i > j ? panel + i * 8 : at(j, i));
    }
    __syncthreads();
    if (j + 1 < kTiles) {
      if (warp == 0) {
        update(j + 1, j + 1, j + 2, j);
        SyncWarp();
        InvertDiagonal<kLead>(at(j + 1, j + 1), 8 * (j + 1), failed);
      } else {
        // Chunks of tiles, row by row; row j + 1 is short of its last tile, which is warp 0's.
        int chunk = warp - 1;
        for (int i = j + 1; i < kTiles; ++i) {
          const int end = i == j + 1 ? i : i + 1, chunks = (end + kChunk - 1) / kChunk;
          for (; chunk < chunks; chunk += kWarps - 1) update(i, chunk * kChunk, end, j);
          chunk -= chunks;
        }
      }
    }
    __syncthreads();
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
