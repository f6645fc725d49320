// Device code: a thread block of four warps forms a 64 x 64 tile of a product A B', its operands
// streamed from global memory through shared memory, 16 columns at a time, a few stages ahead.
#ifndef BLOCKD_ENGINE_GPU_BLOCK_PRODUCT_H_
#define BLOCKD_ENGINE_GPU_BLOCK_PRODUCT_H_

#include "blockd/engine/gpu/tile.h"

namespace blockd::gpu {

inline constexpr int kBlock = 64;  // rows and columns of a product's tile
inline constexpr int kDepth = 16;  // columns of the operands a stage
inline constexpr int kProductWarps = 4;
inline constexpr int kProductThreads = kProductWarps * kWarp;
inline constexpr int kStageScalars = kDepth * kLd<kBlock>;
inline constexpr int kStages = 4;
inline constexpr int kProductScalars = 2 * kStages * kStageScalars;  // of A and of B

// Rows of an operand: entry (row, k) is data[row * row_stride + k * k_stride] for row < rows and
// k < depth, else 0. A triangle is stored in block columns (LevelShape's n in `triangle`), `row0`
// being the tile's first row.
template <typename T>
struct Operand {
  const T* data = nullptr;
  int64_t row_stride = 1;
  int64_t k_stride = 0;
  int64_t rows = 0;
  int64_t depth = 0;
  int64_t triangle = 0;
  int64_t row0 = 0;

  __device__ const T* At(int64_t row, int64_t k) const {
    if (row >= rows || k >= depth) return nullptr;
    if (triangle == 0) return data + row * row_stride + k * k_stride;
    const int64_t panel = k / kPanelColumns, first = panel * kPanelColumns;
    const int64_t in_panel = row0 + row - first;
    if (in_panel < 0) return nullptr;
    return data + PanelOffset(triangle, panel) + (k - first) * (triangle - first) + in_panel;
  }
};

// True if a stage is full and its columns can be copied 16 bytes at a time.
template <typename T>
__device__ inline bool IsWhole(const Operand<T>& operand, int64_t k0) {
  const bool full = operand.rows >= kBlock && k0 + kDepth <= operand.depth &&
                    operand.row_stride == 1 && reinterpret_cast<uintptr_t>(operand.data) % 16 == 0;
  if (operand.triangle == 0) return full && operand.k_stride * sizeof(T) % 16 == 0;
  return full && operand.triangle * sizeof(T) % 16 == 0 && operand.row0 >= k0 + kDepth;
}

template <typename T>
__device__ inline void FetchStage(const Operand<T>& operand, int64_t k0, T* stage) {
  if (IsWhole(operand, k0)) {
    constexpr int kVector = 16 / sizeof(T), kPieces = kBlock / kVector;
#pragma unroll
    for (int e = 0; e < kPieces * kDepth / kProductThreads; ++e) {
      const int i = static_cast<int>(threadIdx.x) + e * kProductThreads;
      const int row = i % kPieces * kVector, k = i / kPieces;
      CopyAsync16(stage + k * kLd<kBlock> + row, operand.At(row, k0 + k));
    }
    return;
  }
  const bool along_k = operand.row_stride != 1;
#pragma unroll 4
  for (int e = 0; e < kBlock * kDepth / kProductThreads; ++e) {
    const int i = static_cast<int>(threadIdx.x) + e * kProductThreads;
    const int row = along_k ? i / kDepth : i % kBlock;
    const int k = along_k ? i % kDepth : i / kBlock;
    const T* from = operand.At(row, k0 + k);
    T* to = stage + k * kLd<kBlock> + row;
    if (from) {
      CopyAsync(to, from);
    } else {
      *to = T{0};
    }
  }
}

// What a thread has of the tile: warp (w / 2, w % 2) has 32 x 32.
class ProductTile {
 public:
  // this += A B' over `depth` columns. Every thread calls it; `shared` has kProductScalars, and is
  // free again when it returns.
  template <typename T>
  __device__ void Multiply(const Operand<T>& a, const Operand<T>& b, int64_t depth, T* shared) {
    constexpr int kLead = kLd<kBlock>;
    const int row0 = WarpIndex() / 2 * 32, column0 = WarpIndex() % 2 * 32;
    const auto fetch = [&](int64_t index) {
      if (index * kDepth < depth) {
        T* to = shared + index % kStages * 2 * kStageScalars;
        FetchStage(a, index * kDepth, to);
        FetchStage(b, index * kDepth, to + kStageScalars);
      }
      CopyCommit();
    };
    for (int64_t index = 0; index < kStages - 1; ++index) fetch(index);
    for (int64_t index = 0; index * kDepth < depth; ++index) {
      CopyWaitBut<kStages - 2>();
      __syncthreads();
      fetch(index + kStages - 1);
      const int64_t stage = index % kStages;
      const T* left = shared + stage * 2 * kStageScalars + row0;
      const T* right = shared + stage * 2 * kStageScalars + kStageScalars + column0;
#pragma unroll
      for (int k = 0; k < kDepth; k += 8) {
        double rows[2][4], columns[4][2];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          rows[i][0] = RowFragment<kLead>(left + i * 16, k);
          rows[i][1] = RowFragment<kLead>(left + i * 16 + 8, k);
          rows[i][2] = RowFragment<kLead>(left + i * 16, k + 4);
          rows[i][3] = RowFragment<kLead>(left + i * 16 + 8, k + 4);
        }
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          columns[j][0] = RowFragment<kLead>(right + j * 8, k);
          columns[j][1] = RowFragment<kLead>(right + j * 8, k + 4);
        }
#pragma unroll
        for (int i = 0; i < 2; ++i) {
#pragma unroll
          for (int j = 0; j < 4; ++j) Mma16x8x8(c[i][j], rows[i], columns[j]);
        }
      }
    }
    __syncthreads();
  }

  // Each entry becomes start(row, column) - itself. All of start's loads come before any store.
  template <typename Start>
  __device__ void SubtractFrom(const Start& start) {
    ForEachPlace([&](int row, int column, double& value) { value = start(row, column) - value; });
  }

  // body(row, column, value) for each entry that this thread has.
  template <typename Body>
  __device__ void ForEach(const Body& body) const {
    const_cast<ProductTile*>(this)->ForEachPlace(
        [&](int row, int column, double& value) { body(row, column, value); });
  }

 private:
  template <typename Body>
  __device__ void ForEachPlace(const Body& body) {
    const int row0 = WarpIndex() / 2 * 32 + (Lane() >> 2);
    const int column0 = WarpIndex() % 2 * 32 + 2 * (Lane() & 3);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          body(row0 + i * 16 + (e / 2) * 8, column0 + j * 8 + e % 2, c[i][j][e]);
        }
      }
    }
  }

  double c[2][4][4] = {};
};

}  // namespace blockd::gpu

#endif  // BLOCKD_ENGINE_GPU_BLOCK_PRODUCT_H_
