// Device code: where the blocks of a chain are, a system's own or what a level has left.
#ifndef BLOCKD_ENGINE_GPU_TILE_CHAIN_H_
#define BLOCKD_ENGINE_GPU_TILE_CHAIN_H_

#include <cstdint>

#include "engine/gpu/arch/arch.h"
#include "engine/gpu/plan/factor_args.h"

namespace blockd::gpu {

// The block A(i,i) of a chain: entry (row, column) as it stands in the lower triangle.
template <typename T>
struct DiagonalSource {
  const T* first = nullptr;
  const T* second = nullptr;  // added, if there is one
  int64_t n = 0;
  bool packed = false;

  // Int: int is enough for the blocks that shared memory holds.
  template <typename Int>
  __device__ Int Index(Int row, Int column) const {
    const Int low = row < column ? row : column, high = row < column ? column : row;
    const Int size = static_cast<Int>(n);
    return packed ? low * size - low * (low + 1) / 2 + high : low * size + high;
  }
  template <typename Int>
  __device__ T At(Int row, Int column) const {
    const Int i = Index(row, column);
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

#endif  // BLOCKD_ENGINE_GPU_TILE_CHAIN_H_
