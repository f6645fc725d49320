// Device code: how much large blocks grow, from their stored inverse factors.
#ifndef BLOCKD_ENGINE_GPU_TILE_GROWTH_H_
#define BLOCKD_ENGINE_GPU_TILE_GROWTH_H_

#include "engine/gpu/tile/chain.h"

namespace blockd::gpu {

// The growth of a block is the largest A(i,i) times the sum of squares of column i of its inverse
// factor; A is the block of the chain, whose diagonal that of the block D that was factored does
// not exceed. This is the square of it, over the columns from `first` to end - 1, for the segment's
// word. By kWarps warps; first: a multiple of eight. Rows from `below` on are summed, all if it is
// `first`; `sums`, if not null, has the columns' sums of the others.
//
// A warp has a panel of the stored triangle at a time, kTogether times 32 rows of it, and those
// after them are under way.
template <typename T, int kWarps, int kTogether>
class GrowthMeter {
 public:
  __device__ GrowthMeter(const T* inverse, const DiagonalSource<T>& diagonal, int first, int end,
                         int below, const T* sums)
      : inverse_(inverse),
        diagonal_(diagonal),
        n_(static_cast<int>(diagonal.n)),
        end_(end),
        below_(below),
        starts_(sums),
        column0_(first + WarpIndex() * kPanelColumns),
        row_(FirstRow()) {}

  __device__ void Note(int64_t* word) {
    Rows even, odd;
    if (column0_ < end_) Load(even);
#pragma unroll 1
    while (column0_ < end_) {
      Add(even, odd);
      if (column0_ < end_) Add(odd, even);
    }
    NoteLargest(GrowthOf(word), __uint_as_float(most_));
  }

 private:
  struct Rows {
    T entries[kTogether][kPanelColumns];
    T diagonal, start;  // of this lane's column, lane % 8
  };

  // In a panel, which begins at its diagonal.
  __device__ int FirstRow() const { return (below_ > column0_ ? below_ - column0_ : 0) + Lane(); }

  __device__ void Load(Rows& rows) const {
    const int height = n_ - column0_, column = column0_ + Lane() % kPanelColumns;
    const T* const panel = inverse_ + PanelOffset(n_, column0_ / kPanelColumns);
    const int mine = column < n_ ? column : column0_;
    // Other thread blocks may have written it in this launch.
    const int at = diagonal_.Index(mine, mine);
    rows.diagonal = LoadFresh(diagonal_.first + at);
    if (diagonal_.second) rows.diagonal += LoadFresh(diagonal_.second + at);
    rows.start = starts_ == nullptr ? T{0} : LoadFresh(starts_ + mine);
    // Loads under a condition would wait for one another.
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
      const int row = row_ + i * kWarp < height ? row_ + i * kWarp : height - 1;
#pragma unroll
      for (int c = 0; c < kPanelColumns; ++c) {
        rows.entries[i][c] = LoadFresh(panel + (c < height ? c : 0) * height + row);
      }
    }
  }
  // Adds `rows` to the sums and loads the rows after them into `next`.
  __device__ void Add(const Rows& rows, Rows& next) {
    const int height = n_ - column0_, row = row_;
    const bool last = row - Lane() + kTogether * kWarp >= height;
    if (last) column0_ += kWarps * kPanelColumns;
    row_ = last ? FirstRow() : row + kTogether * kWarp;
    if (column0_ < end_) Load(next);
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
      const bool inside = row + i * kWarp < height;
#pragma unroll
      for (int c = 0; c < kPanelColumns; ++c) {
        const T entry = inside ? rows.entries[i][c] : T{0};
        sums_[c] = fma(entry, entry, sums_[c]);
      }
    }
    if (!last) return;
    const T square = (SumsOfLanes(sums_) + rows.start) * rows.diagonal;
    const uint32_t bits = __float_as_uint(static_cast<float>(square));  // NaN has the most
    // A column that is not there has the first one's entries and diagonal.
    most_ = bits > most_ ? bits : most_;
#pragma unroll
    for (int c = 0; c < kPanelColumns; ++c) sums_[c] = 0;
  }

  const T* const inverse_;
  const DiagonalSource<T> diagonal_;
  const int n_, end_, below_;
  const T* const starts_;
  int column0_, row_;
  T sums_[kPanelColumns] = {};
  uint32_t most_ = 0;
};

}  // namespace blockd::gpu

#endif  // BLOCKD_ENGINE_GPU_TILE_GROWTH_H_
