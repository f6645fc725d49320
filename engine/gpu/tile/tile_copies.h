// Device code: blocks that come from global memory to tiles in shared memory, and go there.
#ifndef BLOCKD_ENGINE_GPU_TILE_TILE_COPIES_H_
#define BLOCKD_ENGINE_GPU_TILE_TILE_COPIES_H_

#include <algorithm>

#include "engine/gpu/tile/chain.h"
#include "engine/gpu/tile/tile_inverter.h"

namespace blockd::gpu {

// Of n x n blocks, by thread blocks of kThreads threads, of which this one is the `thread`-th.
// kFull: n is kTile.
template <typename T, int kTile, bool kFull, int kThreads>
class TileCopies {
  static constexpr int kLead = kLd<T, kTile>;

 public:
  __device__ static void LoadDiagonal(T* out, const DiagonalSource<T>& source, int n, int thread) {
    constexpr int kVector = 16 / sizeof(T), kVectors = kTile / kVector;
    if (kFull && source.second) {
      // Both are aligned: with small blocks whose rows are a tile's, a chain's blocks are.
      constexpr int kMine = kEntries / kVector;
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

  // A column is 32 lanes', or fewer that have it all. By the first kBy threads.
  template <int kBy>
  __device__ static void StoreInverse(T* inverse, const T* tile, int n, int thread) {
    constexpr int kVector = 16 / sizeof(T), kVectors = kTile / kVector;
    if constexpr (kFull && kBy == 8 * kVectors) {
      // A panel at a time.
      Renew(thread);  // else a register keeps each place
      const unsigned row = thread % unsigned{kVectors} * kVector;
      const unsigned column = thread / unsigned{kVectors} % 8;
      const T* const from = tile + column * kLead + row;
      T* const to = inverse + column * kTile + row;
#pragma unroll
      for (unsigned first = 0; first < kTile; first += 8) {
        if (row < first) break;
        T entries[kVector];
        LoadVector(entries, from + first * kLead);
        StoreVector(to + (first * kTile - first / 2 * (first - 8) - first - first * column),
                    entries);
      }
    } else if constexpr (kFull) {
      // Above the diagonal are zeros, as far as it is kept.
#pragma unroll
      for (int u = 0; u < kTile * kTile / kBy / kVector; ++u) {
        const int piece = thread + u * kBy;
        const int row = piece % kVectors * kVector, column = piece / kVectors;
        const int panel = column / 8, first = panel * 8;
        if (row < first) continue;
        T entries[kVector];
        LoadVector(entries, tile + column * kLead + row);
        const int before = panel * (8 * kTile - 32 * (panel - 1));
        StoreVector(inverse + before + (column - first) * (kTile - first) + row - first, entries);
      }
    } else {
#pragma unroll 4
      for (int column = thread / kLanes; column < n; column += kBy / kLanes) {
        const int panel = column / 8, first = panel * 8;
        T* const out =
            inverse + panel * (8 * n - 32 * (panel - 1)) + (column - first) * (n - first);
#pragma unroll
        for (int part = 0; part < kTile; part += kLanes) {
          const int row = first + part + thread % kLanes;
          if (row < n) out[row - first] = row < column ? T{0} : tile[column * kLead + row];
        }
      }
    }
  }

 private:
  static constexpr int kLanes = std::min(kTile, kWarp);  // of a warp, that have a column
  // Entries of a tile that a thread has.
  static constexpr int kEntries = kTile * kTile / kThreads;

  // body(row, column), by `threads` threads of which this one is the `thread`-th.
  template <typename Body>
  __device__ static void ForEach(int thread, int threads, const Body& body) {
#pragma unroll 2
    for (int i = thread; i < kTile * kTile; i += threads) body(i % kTile, i / kTile);
  }
};

}  // namespace blockd::gpu

#endif  // BLOCKD_ENGINE_GPU_TILE_TILE_COPIES_H_
