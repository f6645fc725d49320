// Blocks of at most kPanel rows: a block's columns are one vector each, so whole blocks stay in
// registers and the loops over them are unrolled.
#ifndef BLOCKD_ENGINE_CPU_KERNELS_SMALL_BLOCKS_H_
#define BLOCKD_ENGINE_CPU_KERNELS_SMALL_BLOCKS_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "engine/cpu/kernels/kernels.h"
#include "engine/cpu/kernels/vectors.h"

namespace blockd::cpu::BLOCKD_KERNEL_NAMESPACE {

// A column of kN rows, padded with zeros to a vector.
template <typename T, int kN>
struct SmallColumn {
  static constexpr int kWidth = kN <= 4 ? 4 : 8;
  // True if this instruction set has such vectors; else the general code serves.
  static constexpr bool kFits = kWidth * sizeof(T) <= BLOCKD_VECTOR_BYTES;
  using Vec = Vector<T, kWidth>;

  static inline __attribute__((always_inline)) Vec LoadRows(const T* p) {
    Vec v = {};
    std::memcpy(&v, p, kN * sizeof(T));
    return v;
  }
  static inline __attribute__((always_inline)) void StoreRows(T* p, Vec v) {
    std::memcpy(p, &v, kN * sizeof(T));
  }
};

// y += sign M v for one column, M kN x kN column-major.
template <typename T, int kSign, int kN>
inline void SmallTimes(const T* m, const T* v, T* y) {
  using Column = SmallColumn<T, kN>;
  constexpr int kWidth = Column::kWidth;
  typename Column::Vec sum = Column::LoadRows(y);
  BLOCKD_UNROLL(8)
  for (int k = 0; k < kN; ++k) {
    const T scalar = kSign > 0 ? v[k] : -v[k];
    sum = MultiplyAdd<T, kWidth>(Column::LoadRows(m + k * kN), scalar, sum);
  }
  Column::StoreRows(y, sum);
}

// t += sign M' x for one column.
template <typename T, int kSign, int kN>
inline void SmallTransposeTimes(const T* m, const T* x, T* t) {
  using Column = SmallColumn<T, kN>;
  constexpr int kWidth = Column::kWidth;
  typename Column::Vec products[kWidth] = {};
  const typename Column::Vec rows = Column::LoadRows(x);
  BLOCKD_UNROLL(8)
  for (int k = 0; k < kN; ++k) products[k] = Column::LoadRows(m + k * kN) * rows;
  T dots[kWidth];
  SumLanes<T, kWidth, kWidth>(products, dots);
  const typename Column::Vec sum = Column::LoadRows(dots);
  Column::StoreRows(t, kSign > 0 ? Column::LoadRows(t) + sum : Column::LoadRows(t) - sum);
}

// A segment without fill of the first level, as Eliminator does it.
template <typename T, int kN>
class SmallEliminator {
  using Column = SmallColumn<T, kN>;
  static constexpr int kWidth = Column::kWidth;
  using Vec = typename Column::Vec;

 public:
  explicit SmallEliminator(const EliminateTask<T>& task)
      : task_(task), segment_(*task.segment), matrix_(*task.chain.matrix) {}

  SegmentReport Run() {
    for (int k = 0; k < kN; ++k) update_[k] = Vec{};
    growth_square_ = Vec{} + T{1};
    for (int64_t k = 0; k < segment_.count; ++k) {
      if (task_.stop && task_.stop->load(std::memory_order_relaxed)) return {};
      if (k % 256 == 0) task_.MakeWay();
      const int row = Factor(segment_.block(k));
      if (row >= 0) return {k, row, 1};
      if (k + 1 < segment_.count || TargetOf(segment_) >= 0) Next(k);
      Store(task_.inverse + k * kN * kN, Transposed(y_));
    }
    Finish();
    return {-1, 0, LargestLane<T, kWidth>(growth_square_)};
  }

 private:
  struct Block {
    Vec column[kWidth];
  };

  static Block Transposed(const Vec (&in)[kN]) {
    Block block = {};
    for (int k = 0; k < kN; ++k) block.column[k] = in[k];
    Transpose<T, kWidth>(block.column);
    return block;
  }

  static void Store(T* out, const Block& block) {
    BLOCKD_UNROLL(8)
    for (int k = 0; k < kN; ++k) Column::StoreRows(out + k * kN, block.column[k]);
  }

  // The lower triangle of A(i,i), zeros above it.
  void LoadDiagonal(int64_t i, Vec (&d)[kN]) const {
    const T* block = DiagonalBlock<T>(matrix_, i);
    const bool packed = matrix_.form.diagonal == DiagonalForm::kPackedLower;
    BLOCKD_UNROLL(8)
    for (int k = 0; k < kN; ++k) {
      T rows[kWidth] = {};
      std::memcpy(rows + k, block + (packed ? k * kN - k * (k - 1) / 2 : k * kN + k),
                  (kN - k) * sizeof(T));
      d[k] = Load<T, kWidth>(rows);
    }
  }

  // L and Y = inv(L)' of D - update. Returns the row of a pivot that is not positive, or -1.
  int Factor(int64_t block) {
    Vec d[kN];
    LoadDiagonal(block, d);
    T diagonal[kWidth] = {};
    BLOCKD_UNROLL(8)
    for (int k = 0; k < kN; ++k) {
      d[k] -= update_[k];
      diagonal[k] = d[k][k];
      y_[k] = Vec{};
      y_[k][k] = T{1};
    }
    BLOCKD_UNROLL(8)
    for (int k = 0; k < kN; ++k) {
      const T pivot = d[k][k];
      if (!IsPivot(pivot)) return k;
      const T scale = T{1} / std::sqrt(pivot);
      const Vec column = d[k] * scale;
      y_[k] *= scale;
      BLOCKD_UNROLL(8)
      for (int j = k + 1; j < kN; ++j) {
        const T factor = column[j];
        d[j] = MultiplyAdd<T, kWidth>(-column, factor, d[j]);
        y_[j] = MultiplyAdd<T, kWidth>(-y_[k], factor, y_[j]);
      }
    }
    // D(i,i) sum_k Y(i,k)^2, which is 1 for blocks of one row.
    if constexpr (kN > 1) {
      Vec squares = {};
      BLOCKD_UNROLL(8)
      for (int k = 0; k < kN; ++k) squares = y_[k] * y_[k] + squares;
      growth_square_ = Larger<T, kWidth>(squares * Load<T, kWidth>(diagonal), growth_square_);
    }
    return -1;
  }

  // C = E Y, and the update C C' of the next block.
  void Next(int64_t k) {
    const int64_t block = segment_.block(k);
    const T* e = CouplingBlock<T>(matrix_, segment_.reversed ? block - 1 : block);
    const bool super = matrix_.form.coupling == CouplingForm::kSuperdiagonal;
    Vec in[kN];
    BLOCKD_UNROLL(8)
    for (int j = 0; j < kN; ++j) in[j] = Column::LoadRows(e + j * kN);
    Block coupling = {};
    if (segment_.reversed != super) {
      coupling = Transposed(in);
    } else {
      for (int j = 0; j < kN; ++j) coupling.column[j] = in[j];
    }
    Vec c[kN];
    BLOCKD_UNROLL(8)
    for (int j = 0; j < kN; ++j) {
      c[j] = Vec{};
      BLOCKD_UNROLL(8)
      for (int i = 0; i <= j; ++i) {
        c[j] = MultiplyAdd<T, kWidth>(coupling.column[i], y_[j][i], c[j]);
      }
    }
    BLOCKD_UNROLL(8)
    for (int j = 0; j < kN; ++j) Column::StoreRows(task_.next + (k * kN + j) * kN, c[j]);
    BLOCKD_UNROLL(8)
    for (int j = 0; j < kN; ++j) {
      update_[j] = Vec{};
      BLOCKD_UNROLL(8)
      for (int i = 0; i < kN; ++i) {
        update_[j] = MultiplyAdd<T, kWidth>(c[i], c[i][j], update_[j]);
      }
    }
  }

  void Finish() {
    if (TargetOf(segment_) < 0) return;
    Vec d[kN];
    for (int k = 0; k < kN; ++k) d[k] = Vec{};
    if (!segment_.reversed) LoadDiagonal(TargetOf(segment_), d);
    T* out = segment_.reversed ? task_.left_from_right : task_.right_from_left;
    for (int k = 0; k < kN; ++k) Column::StoreRows(out + k * kN, d[k] - update_[k]);
  }

  const EliminateTask<T>& task_;
  const Segment& segment_;
  const BlockTridiagonalView& matrix_;
  Vec y_[kN];
  Vec update_[kN];
  Vec growth_square_;  // by rows
};

// Calls visit(std::integral_constant<int, n>) if blocks of n are small here; false if not.
template <typename T, int kN = 1, typename Visit>
bool VisitSmall(int64_t n, const Visit& visit) {
  // A column of more than kPanel rows is not looked at: it need not have a width.
  if constexpr (kN <= kPanel && SmallColumn<T, std::min<int>(kN, kPanel)>::kFits) {
    if (n != kN) return VisitSmall<T, kN + 1>(n, visit);
    visit(std::integral_constant<int, kN>());
    return true;
  }
  return false;
}

}  // namespace blockd::cpu::BLOCKD_KERNEL_NAMESPACE

#endif  // BLOCKD_ENGINE_CPU_KERNELS_SMALL_BLOCKS_H_
