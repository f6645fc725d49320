// Tiles of the blocks of a level's chain, wherever and in whatever form they are stored.
#ifndef BLOCKD_ENGINE_CPU_KERNELS_CHAIN_TILES_H_
#define BLOCKD_ENGINE_CPU_KERNELS_CHAIN_TILES_H_

#include <algorithm>
#include <cstdint>

#include "engine/cpu/kernels/kernels.h"
#include "engine/cpu/kernels/tiles.h"
#include "engine/cpu/kernels/vectors.h"

namespace blockd::cpu::BLOCKD_KERNEL_NAMESPACE {

// kVectors vectors a column of a tile. A tile at rows r.. and columns c.. is zero outside of the
// block.
template <typename T, int kVectors>
class ChainTiles : protected Tiles<T, kVectors> {
 protected:
  using Base = Tiles<T, kVectors>;
  using Base::kCols, Base::kRows, Base::kWidth;
  using Base::LoadPacked;
  using typename Base::Tile, typename Base::Vec;

  ChainTiles(const Chain<T>& chain, int64_t n) : chain_(chain), n_(n) {}

  // A tile of the lower triangle of a diagonal block: zero above the diagonal.
  Tile LoadDiagonal(int64_t block, int64_t r, int64_t c) const {
    if (chain_.matrix == nullptr) {
      const T* from_left = chain_.chains + block * 3 * n_ * n_;
      Tile tile = LoadFullLower(from_left, r, c);
      const Tile other = LoadFullLower(from_left + n_ * n_, r, c);
      for (int j = 0; j < kCols; ++j) {
        for (int v = 0; v < kVectors; ++v) tile.v[j][v] += other.v[j][v];
      }
      return tile;
    }
    const T* data = DiagonalBlock<T>(*chain_.matrix, block);
    if (chain_.matrix->form.diagonal == DiagonalForm::kFull) return LoadFullLower(data, r, c);
    // Column j of the packed form starts with its diagonal entry.
    return LoadLower(data, r, c, [this](int64_t j) { return j * n_ - j * (j + 1) / 2; });
  }

  // The coupling block after chain index i, as it is stored.
  const T* Coupling(int64_t i) const {
    return chain_.matrix ? CouplingBlock<T>(*chain_.matrix, i)
                         : chain_.chains + (i * 3 + 2) * n_ * n_;
  }

  // The coupling block between chain index i and i + 1: A(i+1,i), or its transpose.
  Tile LoadCoupling(int64_t i, bool transpose, int64_t r, int64_t c) const {
    const T* block = Coupling(i);
    transpose ^= chain_.matrix && chain_.matrix->form.coupling == CouplingForm::kSuperdiagonal;
    return transpose ? LoadTransposed(block, r, c) : LoadBlock(block, r, c);
  }

  const Chain<T>& chain_;
  const int64_t n_;

 private:
  // Rows r.. and columns c.. of an n x n column-major block, zero outside of it.
  Tile LoadBlock(const T* block, int64_t r, int64_t c) const {
    Tile tile;
    if (r + kRows <= n_ && c + kCols <= n_) {
      BLOCKD_UNROLL(8)
      for (int j = 0; j < kCols; ++j) {
        BLOCKD_UNROLL(4)
        for (int v = 0; v < kVectors; ++v) {
          tile.v[j][v] = Load<T, kWidth>(block + (c + j) * n_ + r + v * kWidth);
        }
      }
      return tile;
    }
    T buffer[kCols * kRows] = {};
    const int64_t rows = std::min<int64_t>(kRows, n_ - r);
    for (int64_t j = 0; j < kCols && c + j < n_; ++j) {
      for (int64_t i = 0; i < rows; ++i) buffer[j * kRows + i] = block[(c + j) * n_ + r + i];
    }
    return LoadPacked(buffer);
  }

  Tile LoadTransposed(const T* block, int64_t r, int64_t c) const {
    if constexpr (kWidth == kCols) {
      if (r + kRows <= n_ && c + kCols <= n_) {
        Tile tile;
        for (int v = 0; v < kVectors; ++v) {
          Vec square[kWidth];
          BLOCKD_UNROLL(8)
          for (int i = 0; i < kWidth; ++i) {
            square[i] = Load<T, kWidth>(block + (r + v * kWidth + i) * n_ + c);
          }
          Transpose<T, kWidth>(square);
          BLOCKD_UNROLL(8)
          for (int j = 0; j < kCols; ++j) tile.v[j][v] = square[j];
        }
        return tile;
      }
    }
    T buffer[kCols * kRows] = {};
    const int64_t rows = std::min<int64_t>(kRows, n_ - r);
    const int64_t columns = std::min<int64_t>(kCols, n_ - c);
    for (int64_t i = 0; i < rows; ++i) {
      for (int64_t j = 0; j < columns; ++j) buffer[j * kRows + i] = block[(r + i) * n_ + c + j];
    }
    return LoadPacked(buffer);
  }

  // The lower triangle of rows r.. and columns c.. of a diagonal block that starts a column j at
  // block + start(j), zero outside of the block and above the diagonal.
  template <typename Start>
  Tile LoadLower(const T* block, int64_t r, int64_t c, const Start& start) const {
    T buffer[kCols * kRows] = {};
    const int64_t end = std::min<int64_t>(r + kRows, n_);
    for (int64_t j = c; j < std::min<int64_t>(c + kCols, n_); ++j) {
      for (int64_t i = std::max(r, j); i < end; ++i) {
        buffer[(j - c) * kRows + i - r] = block[start(j) + i];
      }
    }
    return LoadPacked(buffer);
  }

  // A tile of the lower triangle of a full block: whole tiles below the diagonal need no care.
  Tile LoadFullLower(const T* block, int64_t r, int64_t c) const {
    if (c + kCols <= r) return LoadBlock(block, r, c);
    return LoadLower(block, r, c, [this](int64_t j) { return j * n_; });
  }
};

}  // namespace blockd::cpu::BLOCKD_KERNEL_NAMESPACE

#endif  // BLOCKD_ENGINE_CPU_KERNELS_CHAIN_TILES_H_
