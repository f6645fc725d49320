// A segment's forward and backward substitution.
//
// Both walk the stored block columns of inv(L), C and W once, kPanel columns at a time: forward as
// y += M v (vectors along the rows of M, v broadcast), backward as t += M' y (vectors along the
// rows, summed at the end). A column of the right-hand sides is computed with the same operations
// in the same order whatever stands beside it, so batching does not change an answer. A block that
// holds -L is solved by substitution (blockd/engine/elimination_plan.h).
#ifndef BLOCKD_ENGINE_CPU_KERNELS_SUBSTITUTE_H_
#define BLOCKD_ENGINE_CPU_KERNELS_SUBSTITUTE_H_

#include <algorithm>
#include <cstdint>
#include <utility>

#include "engine/cpu/kernels/kernels.h"
#include "engine/cpu/kernels/small_blocks.h"
#include "engine/cpu/kernels/triangles.h"
#include "engine/cpu/kernels/vectors.h"

namespace blockd::cpu::BLOCKD_KERNEL_NAMESPACE {

// kSmall: the block size if it is at most kPanel, else 0.
template <typename T, int kSmall = 0>
class Substitution {
  static constexpr int kWidth = kLanes<T>;
  // How far ahead of its use the factor is asked for, bytes.
  static constexpr int64_t kAhead = 16384;

 public:
  explicit Substitution(const SubstituteTask<T>& task)
      : task_(task),
        segment_(*task.segment),
        n_(kSmall > 0 ? kSmall : task.n),
        columns_(task.columns),
        size_(task.n * task.columns),
        triangle_(TriangleScalars(task.n)) {
    y_ = task.scratch;
    left_ = y_ + size_;
  }

  void Forward() {
    if (segment_.left_separator >= 0) Zero(left_);
    AddRight(segment_.block(0));
    for (int64_t k = 0; k < segment_.count; ++k) {
      if (Stopped()) return;
      T* const x = X(segment_.block(k));
      const T* const triangle = task_.inverse + k * triangle_;
      if (IsSubstituted(triangle)) {
        std::copy_n(x, size_, y_);
        SolveTriangle(triangle, y_);
      } else {
        Zero(y_);
        TriangleTimes<1>(triangle, x, y_);
      }
      std::copy_n(y_, size_, x);
      if (segment_.has_fill()) Times<-1>(task_.fill + k * n_ * n_, y_, left_);
      if (k + 1 < segment_.count) {
        AddRight(segment_.block(k + 1));
        Times<-1>(task_.next + k * n_ * n_, y_, X(segment_.block(k + 1)));
      } else if (segment_.reversed) {
        Times<-1>(task_.next + k * n_ * n_, y_, left_);
      } else if (segment_.right_separator >= 0) {
        const int64_t separator = segment_.first + segment_.count;
        AddRight(separator);
        T* const from_left = task_.from_left.at(segment_.right_separator);
        std::copy_n(X(separator), size_, from_left);
        Times<-1>(task_.next + k * n_ * n_, y_, from_left);
      }
    }
    if (segment_.left_separator >= 0) {
      std::copy_n(left_, size_, task_.from_right.at(segment_.left_separator));
    }
  }

  void Backward() {
    const T* left = nullptr;
    const T* next = nullptr;  // the solution of the block that is eliminated after the one in hand
    if (segment_.left_separator >= 0) left = task_.from_left.at(segment_.left_separator);
    if (segment_.reversed) next = left;
    if (segment_.right_separator >= 0) {
      // Each separator is the right one of one segment, which brings its solution down to this
      // level.
      next = task_.from_left.at(segment_.right_separator);
      std::copy_n(next, size_, X(segment_.first + segment_.count));
    }
    for (int64_t k = segment_.count - 1; k >= 0; --k) {
      if (Stopped()) return;
      T* const x = X(segment_.block(k));
      if (next) TransposeTimes<-1>(task_.next + k * n_ * n_, next, x);
      if (segment_.has_fill()) TransposeTimes<-1>(task_.fill + k * n_ * n_, left, x);
      const T* const triangle = task_.inverse + k * triangle_;
      if (IsSubstituted(triangle)) {
        SolveTransposedTriangle(triangle, x);
      } else {
        std::copy_n(x, size_, y_);
        Zero(x);
        TriangleTransposeTimes<1>(triangle, y_, x);
      }
      next = x;
    }
  }

 private:
  bool Stopped() const { return task_.stop && task_.stop->load(std::memory_order_relaxed); }
  T* X(int64_t block) const { return task_.x.at(block); }
  void Zero(T* vectors) const { std::fill_n(vectors, size_, T{0}); }
  // Above level 0 a right-hand side is the sum of what came from its left and from its right.
  void AddRight(int64_t block) const {
    if (task_.x_right.data == nullptr) return;
    T* const x = X(block);
    const T* const right = task_.x_right.at(block);
    for (int64_t i = 0; i < size_; ++i) x[i] += right[i];
  }

  template <int kSign>
  static Vector<T, 1> Signed(T x) {
    return kSign > 0 ? x : -x;
  }

  // The factor's arrays are read from end to end, but a block column in kPanel short streams, an
  // order in which memory is two to three times slower. So each piece of work on a block column
  // asks for as many bytes, from end to end, of what is read kAhead bytes later: in the same block
  // or, past its end, in the next that is read, `direction` blocks (1 or -1) of `scalars` further
  // on.
  static const T* Ahead(const T* block, int64_t scalars, int64_t offset, int direction) {
    const int64_t later = offset + kAhead / static_cast<int64_t>(sizeof(T));
    return block + direction * (later / scalars) * scalars + later % scalars;
  }

  // y += sign M v, M a block of n x n.
  template <int kSign>
  void Times(const T* m, const T* v, T* y) const {
    if constexpr (kSmall > 0) {
      for (int64_t c = 0; c < size_; c += kSmall) SmallTimes<T, kSign, kSmall>(m, v + c, y + c);
      return;
    }
    int64_t p = 0;
    if (columns_ >= 4) {
      // Two block columns at once: y is loaded and stored half as often. The order of the sums
      // stays.
      for (; p + 2 * kPanel <= n_; p += 2 * kPanel) {
        PanelTimes<kSign, 2 * kPanel>(m + p * n_, n_, 2 * kPanel, n_, v + p, y,
                                      Ahead(m, n_ * n_, p * n_, 1));
      }
    }
    for (; p < n_; p += kPanel) {
      PanelTimes<kSign>(m + p * n_, n_, std::min(kPanel, n_ - p), n_, v + p, y,
                        Ahead(m, n_ * n_, p * n_, 1));
    }
  }
  template <int kSign>
  void TransposeTimes(const T* m, const T* x, T* t) const {
    if constexpr (kSmall > 0) {
      for (int64_t c = 0; c < size_; c += kSmall) {
        SmallTransposeTimes<T, kSign, kSmall>(m, x + c, t + c);
      }
      return;
    }
    for (int64_t p = 0; p < n_; p += kPanel) {
      PanelTransposeTimes<kSign>(m + p * n_, n_, std::min(kPanel, n_ - p), n_, x, t + p,
                                 Ahead(m, n_ * n_, p * n_, -1));
    }
  }
  // The same for the lower triangle in block columns.
  template <int kSign>
  void TriangleTimes(const T* m, const T* v, T* y) const {
    // One block column, which is the whole square.
    if constexpr (kSmall > 0) return Times<kSign>(m, v, y);
    for (int64_t p = 0, offset = 0; p < n_; p += kPanel) {
      const int64_t columns = std::min(kPanel, n_ - p);
      PanelTimes<kSign>(m + offset, n_ - p, columns, n_ - p, v + p, y + p,
                        Ahead(m, triangle_, offset, 1));
      offset += (n_ - p) * columns;
    }
  }
  template <int kSign>
  void TriangleTransposeTimes(const T* m, const T* x, T* t) const {
    if constexpr (kSmall > 0) return TransposeTimes<kSign>(m, x, t);
    for (int64_t p = 0, offset = 0; p < n_; p += kPanel) {
      const int64_t columns = std::min(kPanel, n_ - p);
      PanelTransposeTimes<kSign>(m + offset, n_ - p, columns, n_ - p, x + p, t + p,
                                 Ahead(m, triangle_, offset, -1));
      offset += (n_ - p) * columns;
    }
  }

  // y = inv(L) y, m = -L in block columns: each block column's square first, then the rows below
  // it.
  void SolveTriangle(const T* m, T* y) const {
    for (int64_t p = 0; p < n_; p += kPanel) {
      const int64_t columns = std::min(kPanel, n_ - p), ld = n_ - p, below = ld - columns;
      for (int64_t c = 0; c < size_; c += n_) {
        T* const v = y + c + p;
        for (int64_t j = 0; j < columns; ++j) {
          v[j] /= -m[j * ld + j];
          for (int64_t i = j + 1; i < columns; ++i) v[i] += m[j * ld + i] * v[j];
        }
      }
      if (below > 0)
        PanelTimes<1>(m + columns, ld, columns, below, y + p, y + p + columns, nullptr);
      m += ld * columns;
    }
  }
  // x = inv(L)' x: each block column's rows below its square first, from the last one on.
  void SolveTransposedTriangle(const T* m, T* x) const {
    m += triangle_;
    for (int64_t p = (n_ - 1) / kPanel * kPanel; p >= 0; p -= kPanel) {
      const int64_t columns = std::min(kPanel, n_ - p), ld = n_ - p, below = ld - columns;
      m -= ld * columns;
      if (below > 0) {
        PanelTransposeTimes<1>(m + columns, ld, columns, below, x + p + columns, x + p, nullptr);
      }
      for (int64_t c = 0; c < size_; c += n_) {
        T* const v = x + c + p;
        for (int64_t j = columns; j-- > 0;) {
          for (int64_t i = j + 1; i < columns; ++i) v[j] += m[j * ld + i] * v[i];
          v[j] /= -m[j * ld + j];
        }
      }
    }
  }

  // Asks for the scalars of one step of work, kWide columns of `rows` rows.
  template <int64_t kWide>
  static inline __attribute__((always_inline)) void Ask(const T* ahead, int64_t rows) {
    constexpr int64_t kLine = 64 / sizeof(T);
    BLOCKD_UNROLL(32)
    for (int64_t i = 0; i < kWide * rows / kLine; ++i) __builtin_prefetch(ahead + i * kLine);
  }

  // y(0..rows, c) += sign M v(0..panel_columns, c) for all columns c of the right-hand sides.
  template <int kSign, int64_t kWide = kPanel>
  void PanelTimes(const T* m, int64_t ld, int64_t panel_columns, int64_t rows, const T* v, T* y,
                  const T* ahead) const {
    int64_t c = 0;
    for (; c + 4 <= columns_; c += 4) {
      PanelRows<kSign, 4, kWide>(m, ld, panel_columns, rows, v + c * n_, y + c * n_,
                                 c == 0 ? ahead : nullptr);
    }
    for (; c < columns_; ++c) {
      PanelRows<kSign, 1, kWide>(m, ld, panel_columns, rows, v + c * n_, y + c * n_,
                                 c == 0 ? ahead : nullptr);
    }
  }

  template <int kSign, int kColumns, int64_t kWide>
  void PanelRows(const T* m, int64_t ld, int64_t panel_columns, int64_t rows, const T* v, T* y,
                 const T* ahead) const {
    T scalars[kColumns][kWide];
    for (int c = 0; c < kColumns; ++c) {
      for (int64_t k = 0; k < panel_columns; ++k) scalars[c][k] = Signed<kSign>(v[c * n_ + k]);
    }
    if (panel_columns != kWide) {
      Rows<kColumns, 1, kWidth, kWide>(m, ld, panel_columns, 0, rows, scalars, y, ahead);
      return;
    }
    constexpr int kUnroll = BLOCKD_VECTOR_BYTES == 64 || kColumns == 1 ? 4 : 2;
    Rows<kColumns, kUnroll, kWidth, kWide>(m, ld, kWide, 0, rows, scalars, y, ahead);
  }

  // From row r on in steps of kUnroll vectors of kW, what is left in smaller steps.
  template <int kColumns, int kUnroll, int kW, int64_t kWide>
  inline __attribute__((always_inline)) void Rows(const T* m, int64_t ld, int64_t panel_columns,
                                                  int64_t r, int64_t rows,
                                                  const T (*scalars)[kWide], T* y,
                                                  const T* ahead) const {
    for (; r + kUnroll * kW <= rows; r += kUnroll * kW) {
      if (kW == kWidth && ahead) Ask<kWide>(ahead + r * kWide, kUnroll * kW);
      RowChunk<kColumns, kUnroll, kW, kWide>(m + r, ld, panel_columns, scalars, y + r);
    }
    if constexpr (kUnroll > 1) {
      Rows<kColumns, 1, kW, kWide>(m, ld, panel_columns, r, rows, scalars, y, ahead);
    } else if constexpr (kW > 1) {
      Rows<kColumns, 1, kW / 2, kWide>(m, ld, panel_columns, r, rows, scalars, y, ahead);
    }
  }

  template <int kColumns, int kUnroll, int kW, int64_t kWide>
  inline __attribute__((always_inline)) void RowChunk(const T* m, int64_t ld, int64_t panel_columns,
                                                      const T (*scalars)[kWide], T* y) const {
    // Keeps the compiler from broadcasting all scalars before the loop over the rows, which would
    // spill them, a whole vector each.
    asm volatile("" : : "r"(scalars) : "memory");
    Vector<T, kW> sum[kColumns][kUnroll];
    BLOCKD_UNROLL(4)
    for (int c = 0; c < kColumns; ++c) {
      BLOCKD_UNROLL(4)
      for (int u = 0; u < kUnroll; ++u) sum[c][u] = Load<T, kW>(y + c * n_ + u * kW);
    }
    BLOCKD_UNROLL(16)
    for (int64_t k = 0; k < panel_columns; ++k) {
      BLOCKD_UNROLL(4)
      for (int u = 0; u < kUnroll; ++u) {
        Vector<T, kW> row = Load<T, kW>(m + k * ld + u * kW);
        if constexpr (kColumns > 1) KeepInRegister(row);
        BLOCKD_UNROLL(4)
        for (int c = 0; c < kColumns; ++c) {
          sum[c][u] = MultiplyAdd<T, kW>(row, scalars[c][k], sum[c][u]);
        }
      }
    }
    BLOCKD_UNROLL(4)
    for (int c = 0; c < kColumns; ++c) {
      BLOCKD_UNROLL(4)
      for (int u = 0; u < kUnroll; ++u) Store<T, kW>(y + c * n_ + u * kW, sum[c][u]);
    }
  }

  // t(0..panel_columns, c) += sign M' x(0..rows, c).
  template <int kSign>
  void PanelTransposeTimes(const T* m, int64_t ld, int64_t panel_columns, int64_t rows, const T* x,
                           T* t, const T* ahead) const {
    constexpr int kPair = BLOCKD_VECTOR_BYTES == 64 ? 2 : 1;
    int64_t c = 0;
    for (; panel_columns == kPanel && c + kPair <= columns_; c += kPair) {
      PanelDots<kSign, kPair, kPanel>(m, ld, rows, x + c * n_, t + c * n_,
                                      c == 0 ? ahead : nullptr);
    }
    for (; c < columns_; ++c) {
      if (panel_columns == kPanel) {
        PanelDots<kSign, 1, kPanel>(m, ld, rows, x + c * n_, t + c * n_, c == 0 ? ahead : nullptr);
        continue;
      }
      for (int64_t k = 0; k < panel_columns; ++k) {
        PanelDots<kSign, 1, 1>(m + k * ld, ld, rows, x + c * n_, t + c * n_ + k, nullptr);
      }
    }
  }

  template <int kSign, int kColumns, int kDots>
  void PanelDots(const T* m, int64_t ld, int64_t rows, const T* x, T* t, const T* ahead) const {
    Vector<T, kWidth> sum[kColumns][kDots];
    BLOCKD_UNROLL(4)
    for (int c = 0; c < kColumns; ++c) {
      BLOCKD_UNROLL(8)
      for (int k = 0; k < kDots; ++k) sum[c][k] = Vector<T, kWidth>{};
    }
    int64_t r = 0;
    for (; r + kWidth <= rows; r += kWidth) {
      if (ahead) Ask<kPanel>(ahead + r * kPanel, kWidth);
      Vector<T, kWidth> entries[kColumns];
      BLOCKD_UNROLL(4)
      for (int c = 0; c < kColumns; ++c) entries[c] = Load<T, kWidth>(x + c * n_ + r);
      BLOCKD_UNROLL(8)
      for (int k = 0; k < kDots; ++k) {
        Vector<T, kWidth> column = Load<T, kWidth>(m + k * ld + r);
        if constexpr (kColumns > 1) KeepInRegister(column);
        BLOCKD_UNROLL(4)
        for (int c = 0; c < kColumns; ++c) {
          sum[c][k] = MultiplyAdd<T, kWidth>(column, entries[c], sum[c][k]);
        }
      }
    }
    const int64_t tail = rows - r;
    BLOCKD_UNROLL(4)
    for (int c = 0; c < kColumns; ++c) {
      if (tail > 0) {
        const Vector<T, kWidth> entries = LoadPart(x + c * n_ + r, tail);
        for (int k = 0; k < kDots; ++k) {
          sum[c][k] = MultiplyAdd<T, kWidth>(LoadPart(m + k * ld + r, tail), entries, sum[c][k]);
        }
      }
      T dots[kDots];
      SumLanes<T, kWidth, kDots>(sum[c], dots);
      for (int k = 0; k < kDots; ++k) t[c * n_ + k] += Signed<kSign>(dots[k]);
    }
  }

  // `count` < kWidth scalars, then zeros.
  static inline Vector<T, kWidth> LoadPart(const T* p, int64_t count) {
    T part[kWidth] = {};
    for (int64_t i = 0; i < count; ++i) part[i] = p[i];
    return Load<T, kWidth>(part);
  }

  const SubstituteTask<T>& task_;
  const Segment& segment_;
  const int64_t n_;
  const int64_t columns_;
  const int64_t size_;  // of the columns of one block
  const int64_t triangle_;
  T* y_ = nullptr;
  T* left_ = nullptr;  // forward: the update of the left separator
};

}  // namespace blockd::cpu::BLOCKD_KERNEL_NAMESPACE

#endif  // BLOCKD_ENGINE_CPU_KERNELS_SUBSTITUTE_H_
