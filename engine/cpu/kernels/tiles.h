// Tiles of a packed row panel, in registers and in scratch: see eliminate.h.
#ifndef BLOCKD_ENGINE_CPU_KERNELS_TILES_H_
#define BLOCKD_ENGINE_CPU_KERNELS_TILES_H_

#include <cmath>
#include <cstdint>

#include "engine/cpu/kernels/kernels.h"
#include "engine/cpu/kernels/vectors.h"

namespace blockd::cpu::BLOCKD_KERNEL_NAMESPACE {

// kVectors vectors a column of a panel.
template <typename T, int kVectors>
struct Tiles {
  static constexpr int kWidth = kLanes<T>;
  static constexpr int kRows = kVectors * kWidth;
  static constexpr int kCols = BLOCKD_VECTOR_BYTES == 64 ? 8 : 4;
  static_assert(kRows % kCols == 0);
  static_assert(kRows % kPanel == 0);  // a tile of inv(L) is whole block columns
  using Vec = Vector<T, kWidth>;

  // kRows x kCols in registers.
  struct Tile {
    Vec v[kCols][kVectors];
  };

  // out = A Y, A a tile of `columns` columns in [column][kRows] and Y(k, j) = y[j * kRows + k].
  static inline __attribute__((always_inline)) Tile Multiply(const T* a, const T* y,
                                                             int64_t columns) {
    Tile t = {};
    for (int64_t k = 0; k < columns; ++k, a += kRows) {
      Vec rows[kVectors];
      BLOCKD_UNROLL(4)
      for (int v = 0; v < kVectors; ++v) rows[v] = Load<T, kWidth>(a + v * kWidth);
      BLOCKD_UNROLL(8)
      for (int j = 0; j < kCols; ++j) {
        const T scalar = y[j * kRows + k];
        BLOCKD_UNROLL(4)
        for (int v = 0; v < kVectors; ++v)
          t.v[j][v] = MultiplyAdd<T, kWidth>(rows[v], scalar, t.v[j][v]);
      }
    }
    return t;
  }

  static inline void StorePacked(const Tile& tile, T* out) {
    BLOCKD_UNROLL(8)
    for (int j = 0; j < kCols; ++j) {
      BLOCKD_UNROLL(4)
      for (int v = 0; v < kVectors; ++v)
        Store<T, kWidth>(out + j * kRows + v * kWidth, tile.v[j][v]);
    }
  }

  static inline Tile LoadPacked(const T* in) {
    Tile tile;
    BLOCKD_UNROLL(8)
    for (int j = 0; j < kCols; ++j) {
      BLOCKD_UNROLL(4)
      for (int v = 0; v < kVectors; ++v)
        tile.v[j][v] = Load<T, kWidth>(in + j * kRows + v * kWidth);
    }
    return tile;
  }

  // L and Y = inv(L)' of one tile, column by column; columns from `columns` on become the identity.
  static int64_t FactorTile(T* a, T* y, int64_t columns) {
    for (int64_t j = 0; j < kRows; ++j) {
      for (int64_t i = 0; i < kRows; ++i) y[j * kRows + i] = i == j ? T{1} : T{0};
    }
    for (int64_t j = columns; j < kRows; ++j) {
      for (int64_t i = 0; i < kRows; ++i) a[j * kRows + i] = i == j ? T{1} : T{0};
    }
    for (int64_t k = 0; k < columns; ++k) {
      const T pivot = a[k * kRows + k];
      if (!IsPivot(pivot)) return k;
      const T root = std::sqrt(pivot);
      const T scale = T{1} / root;
      Vec column[kVectors], inverse[kVectors];
      for (int v = 0; v < kVectors; ++v) {
        column[v] = Load<T, kWidth>(a + k * kRows + v * kWidth) * scale;
        inverse[v] = Load<T, kWidth>(y + k * kRows + v * kWidth) * scale;
        Store<T, kWidth>(a + k * kRows + v * kWidth, column[v]);
        Store<T, kWidth>(y + k * kRows + v * kWidth, inverse[v]);
      }
      a[k * kRows + k] = root;
      for (int64_t j = k + 1; j < columns; ++j) {
        const T factor = a[k * kRows + j];
        for (int v = 0; v < kVectors; ++v) {
          T* aj = a + j * kRows + v * kWidth;
          T* yj = y + j * kRows + v * kWidth;
          Store<T, kWidth>(aj, MultiplyAdd<T, kWidth>(-column[v], factor, Load<T, kWidth>(aj)));
          Store<T, kWidth>(yj, MultiplyAdd<T, kWidth>(-inverse[v], factor, Load<T, kWidth>(yj)));
        }
      }
    }
    return -1;
  }
};

}  // namespace blockd::cpu::BLOCKD_KERNEL_NAMESPACE

#endif  // BLOCKD_ENGINE_CPU_KERNELS_TILES_H_
