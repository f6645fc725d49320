// Device code: blocks that come from global memory to tiles in shared memory, and go there.
#ifndef BLOCKD_ENGINE_GPU_TILE_TILE_COPIES_H_
#define BLOCKD_ENGINE_GPU_TILE_TILE_COPIES_H_

#include "engine/gpu/tile/chain.h"
#include "engine/gpu/tile/tile_inverter.h"

namespace blockd::gpu {

// Copies of n x n blocks by thread blocks of kThreads threads, of which this one is the
// `thread`-th. kFull: n is kTile.
template <typename T, int kTile, bool kFull, int kThreads>
class TileCopies {
  static constexpr int kLead = kLd<T, kTile>;

 public:
  __device__ static void LoadDiagonal(T* out, const DiagonalSource<T>& source, int n, int thread) {
    constexpr int kVector = 16 / sizeof(T), kVectors = kTile / kVector;
    if (kFull && source.second) {
      // Both are aligned: with small blocks whose rows are a tile's, a chain's blocks are.
      constexpr int kPieces = kTile * kVectors, kMine = (kPieces + kThreads - 1) / kThreads;
      if (kPieces < kThreads && thread >= kPieces) return;
      T first[kMine][kVector], second[kMine][kVector];
#pragma unroll
      for (int u = 0; u < kMine; ++u) {
        const int piece = thread + u * kThreads;
        const int row = piece % kVectors * kVector, column = piece / kVectors;
        // Loads under a condition would wait for one another.
        const int at = column / 8 > row / 8 ? 0 : piece * kVector;
        LoadVector(first[u], source.first + at);
        LoadVector(second[u], source.second + at);
      }
#pragma unroll
      for (int u = 0; u < kMine; ++u) {
        const int piece = thread + u * kThreads;
        const int row = piece % kVectors * kVector, column = piece / kVectors;
#pragma unroll
        for (int i = 0; i < kVector; ++i) first[u][i] += second[u][i];
        if (column / 8 <= row / 8) StoreVector(out + column * kLead + row, first[u]);
      }
      return;
    }
    if (source.second) {
      ForEach(thread, kThreads, [&](int row, int column) {
        if (column / 8 > row / 8) return;
        T value = row == column ? T{1} : T{0};
        if (row < n && column < n) value = source.At(row, column);
        out[column * kLead + row] = value;
      });
      return;
    }
    ForEach(thread, kThreads, [&](int row, int column) {
      // Above the diagonal only the 8 x 8 tiles on it are used.
      if (column / 8 > row / 8) return;
      T* to = out + column * kLead + row;
      if (row >= n || column >= n) {
        *to = row == column ? T{1} : T{0};
      } else {
        CopyAsync(to, source.first + source.Index(row, column));
      }
    });
  }

  // By `threads` threads of which this one is the `thread`-th.
  __device__ static void LoadCoupling(T* out, const CouplingSource<T>& source, int n, int thread,
                                      int threads) {
    const bool by_rows = source.row_stride != 1;
    if (kFull && !by_rows && reinterpret_cast<uintptr_t>(source.data) % 16 == 0) {
      constexpr int kVector = 16 / sizeof(T), kVectors = kTile / kVector;
#pragma unroll 4
      for (int piece = thread; piece < kVectors * kTile; piece += threads) {
        CopyAsync16(out + piece / kVectors * kLead + piece % kVectors * kVector,
                    source.data + piece * kVector);
      }
      return;
    }
    ForEach(thread, threads, [&](int fast, int slow) {
      const int row = by_rows ? slow : fast, column = by_rows ? fast : slow;
      T* to = out + column * kLead + row;
      if (row < n && column < n) {
        CopyAsync(to, source.data + slow * n + fast);
      } else {
        *to = T{0};
      }
    });
  }

 private:
  // body(row, column), by `threads` threads of which this one is the `thread`-th.
  template <typename Body>
  __device__ static void ForEach(int thread, int threads, const Body& body) {
#pragma unroll 2
    for (int i = thread; i < kTile * kTile; i += threads) body(i % kTile, i / kTile);
  }
};

}  // namespace blockd::gpu

#endif  // BLOCKD_ENGINE_GPU_TILE_TILE_COPIES_H_
