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

// One warp: an 8 x 8 symmetric matrix becomes inv(chol), lower triangular with stored zeros. It is
// an elimination on [A | I], four columns a lane; of each lane's row r = lane % 8. A pivot that is
// not positive is noted in *failed as base + its index, if nothing was before.
template <int kLead, typename T>
__device__ inline void InvertDiagonal(T* tile, int base, int* failed) {
  const int r = Lane() & 7, part = Lane() >> 3;
  double t[4];
#pragma unroll
  for (int c = 0; c < 4; ++c) {
    const int column = (part & 1) * 4 + c;
    t[c] = part < 2 ? static_cast<double>(tile[column * kLead + r]) : (column == r ? 1.0 : 0.0);
  }
#pragma unroll
  for (int k = 0; k < 8; ++k) {
    const int holder = 8 * (k / 4);
    double pivot = Shuffle(t[k % 4], k + holder);
    if (!(pivot > 0) || !isfinite(pivot)) {
      if (Lane() == 0 && *failed < 0) *failed = base + k;
      pivot = 1;
    }
    const double scale = rsqrt(pivot);
    const double mine = Shuffle(t[k % 4], r + holder) * scale;
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      const double row = Shuffle(t[c], k + 8 * part) * scale;
      t[c] = r > k ? fma(-mine, row, t[c]) : (r == k ? row : t[c]);
    }
  }
  if (part >= 2) {
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      tile[((part & 1) * 4 + c) * kLead + r] = static_cast<T>(t[c]);
    }
  }
  SyncWarp();
}

// A thread block of kWarps warps: the lower triangle of m (symmetric within its diagonal 8 x 8
// tiles) becomes inv(chol(m)); tiles above the diagonal keep what they had. `panel` has 8 columns.
// Every thread calls it, with m complete; it returns with m complete. Step j turns the 8 columns j
// of A into L, applies them to what is right of them and, in the columns left of j, to the inverse.
template <int kTile, int kWarps, typename T>
__device__ inline void CholeskyInverse(T* m, T* panel, int* failed) {
  constexpr int kLead = kLd<kTile>;
  constexpr int kTiles = kTile / 8;
  static_assert(kWarps >= 2);
  const int warp = WarpIndex();
  const auto at = [m](int i, int l) { return m + l * 8 * kLead + i * 8; };
  const auto update = [&](int i, int l, int j) {
    Accumulator sum;
    if (l != j) sum.Load<kLead>(at(i, l));
#pragma unroll
    for (int k = 0; k < 8; k += 4) {
      const double right =
          l > j ? RowFragment<kLead>(panel + l * 8, k) : ColumnFragment<kLead>(at(j, l), k);
      Mma8x8x4(sum.c, -RowFragment<kLead>(panel + i * 8, k), right);
    }
    sum.Store<kLead>(at(i, l));
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
        update(j + 1, j + 1, j);
        SyncWarp();
        InvertDiagonal<kLead>(at(j + 1, j + 1), 8 * (j + 1), failed);
      } else {
        int i = j + 1, l = warp - 1;
        for (;;) {
          // Row j + 1 is short of its last tile, which is warp 0's.
          while (i < kTiles && l > (i == j + 1 ? i - 1 : i)) {
            l -= i == j + 1 ? i : i + 1;
            ++i;
          }
          if (i >= kTiles) break;
          update(i, l, j);
          l += kWarps - 1;
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
