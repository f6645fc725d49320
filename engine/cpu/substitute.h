// A segment's forward and backward substitution.
//
// Both walk the stored block columns of inv(L), C and W once, kPanel columns at a time: forward as
// y += M v (vectors along the rows of M, v broadcast), backward as t += M' y (vectors along the
// rows, summed at the end). A column of the right-hand sides is computed with the same operations
// in the same order whatever stands beside it, so batching does not change an answer.
#ifndef BLOCKD_ENGINE_CPU_SUBSTITUTE_H_
#define BLOCKD_ENGINE_CPU_SUBSTITUTE_H_

#include <algorithm>
#include <cstdint>
#include <utility>

#include "blockd/engine/cpu/kernels.h"
#include "blockd/engine/cpu/vectors.h"

namespace blockd::cpu::BLOCKD_KERNEL_NAMESPACE {

template <typename T>
class Substitution {
  static constexpr int kWidth = kLanes<T>;
  // How far ahead of its use the factor is asked for, bytes.
  static constexpr int64_t kAhead = 16384;

 public:
  explicit Substitution(const SubstituteTask<T>& task)
      : task_(task),
        segment_(*task.segment),
        n_(task.n),
        columns_(task.columns),
        triangle_(TriangleScalars(task.n)) {
    v_ = task.scratch;
    y_ = v_ + n_ * columns_;
    left_ = y_ + n_ * columns_;
  }

  void Forward() {
    LoadX(v_, segment_.block(0));
    std::fill(left_, left_ + n_ * columns_, T{0});
    for (int64_t k = 0; k < segment_.count; ++k) {
      if (Stopped()) return;
      std::fill(y_, y_ + n_ * columns_, T{0});
      TriangleTimes<1>(task_.inverse + k * triangle_, v_, y_);
      Copy(X(segment_.block(k)), y_);
      if (segment_.has_fill()) Times<-1>(task_.fill + k * n_ * n_, y_, left_);
      if (k + 1 < segment_.count) {
        LoadX(v_, segment_.block(k + 1));
        Times<-1>(task_.next + k * n_ * n_, y_, v_);
      } else if (segment_.reversed) {
        Times<-1>(task_.next + k * n_ * n_, y_, left_);
      } else if (segment_.right_separator >= 0) {
        LoadX(v_, segment_.first + segment_.count);
        Times<-1>(task_.next + k * n_ * n_, y_, v_);
        Copy(Separator(task_.from_left, segment_.right_separator), v_);
      }
    }
    if (segment_.left_separator >= 0) {
      Copy(Separator(task_.from_right, segment_.left_separator), left_);
    }
  }

  void Backward() {
    const bool has_target =
        segment_.reversed ? segment_.left_separator >= 0 : segment_.right_separator >= 0;
    if (segment_.has_fill()) Copy(left_, Separator(task_.from_left, segment_.left_separator));
    if (has_target) {
      Copy(v_, Separator(task_.from_left,
                         segment_.reversed ? segment_.left_separator : segment_.right_separator));
    }
    // Each separator is the right one of one segment, which brings its solution down to this level.
    if (segment_.right_separator >= 0) {
      Copy(X(segment_.first + segment_.count), v_);
    }
    for (int64_t k = segment_.count - 1; k >= 0; --k) {
      if (Stopped()) return;
      Copy(y_, X(segment_.block(k)));
      if (has_target || k + 1 < segment_.count) {
        TransposeTimes<-1>(task_.next + k * n_ * n_, v_, y_);
      }
      if (segment_.has_fill()) TransposeTimes<-1>(task_.fill + k * n_ * n_, left_, y_);
      std::fill(v_, v_ + n_ * columns_, T{0});
      TriangleTransposeTimes<1>(task_.inverse + k * triangle_, y_, v_);
      Copy(X(segment_.block(k)), v_);
    }
  }

 private:
  struct Columns {
    T* data;
    int64_t stride;
  };

  bool Stopped() const { return task_.stop && task_.stop->load(std::memory_order_relaxed); }
  Columns X(int64_t block) const { return {task_.x.data + block * task_.x.block, task_.x.column}; }
  static Columns Separator(const Vectors<T>& vectors, int64_t i) {
    return {vectors.data + i * vectors.block, vectors.column};
  }
  void LoadX(T* out, int64_t block) const {
    Copy(out, X(block));
    if (task_.x_right.data == nullptr) return;
    const T* right = task_.x_right.data + block * task_.x_right.block;
    for (int64_t c = 0; c < columns_; ++c) {
      for (int64_t r = 0; r < n_; ++r) out[c * n_ + r] += right[c * task_.x_right.column + r];
    }
  }
  void Copy(T* out, Columns in) const {
    for (int64_t c = 0; c < columns_; ++c) std::copy_n(in.data + c * in.stride, n_, out + c * n_);
  }
  void Copy(Columns out, const T* in) const {
    for (int64_t c = 0; c < columns_; ++c) std::copy_n(in + c * n_, n_, out.data + c * out.stride);
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
    for (int64_t p = 0; p < n_; p += kPanel) {
      PanelTimes<kSign>(m + p * n_, n_, std::min(kPanel, n_ - p), n_, v + p, y,
                        Ahead(m, n_ * n_, p * n_, 1));
    }
  }
  template <int kSign>
  void TransposeTimes(const T* m, const T* x, T* t) const {
    for (int64_t p = 0; p < n_; p += kPanel) {
      PanelTransposeTimes<kSign>(m + p * n_, n_, std::min(kPanel, n_ - p), n_, x, t + p,
                                 Ahead(m, n_ * n_, p * n_, -1));
    }
  }
  // The same for the lower triangle in block columns.
  template <int kSign>
  void TriangleTimes(const T* m, const T* v, T* y) const {
    for (int64_t p = 0, offset = 0; p < n_; p += kPanel) {
      const int64_t columns = std::min(kPanel, n_ - p);
      PanelTimes<kSign>(m + offset, n_ - p, columns, n_ - p, v + p, y + p,
                        Ahead(m, triangle_, offset, 1));
      offset += (n_ - p) * columns;
    }
  }
  template <int kSign>
  void TriangleTransposeTimes(const T* m, const T* x, T* t) const {
    for (int64_t p = 0, offset = 0; p < n_; p += kPanel) {
      const int64_t columns = std::min(kPanel, n_ - p);
      PanelTransposeTimes<kSign>(m + offset, n_ - p, columns, n_ - p, x + p, t + p,
                                 Ahead(m, triangle_, offset, -1));
      offset += (n_ - p) * columns;
    }
  }

  // Asks for the scalars of one step of work, kPanel columns of `rows` rows.
  static inline __attribute__((always_inline)) void Ask(const T* ahead, int64_t rows) {
    constexpr int64_t kLine = 64 / sizeof(T);
#pragma GCC unroll 32
    for (int64_t i = 0; i < kPanel * rows / kLine; ++i) __builtin_prefetch(ahead + i * kLine);
  }

  // y(0..rows, c) += sign M v(0..panel_columns, c) for all columns c of the right-hand sides.
  template <int kSign>
  void PanelTimes(const T* m, int64_t ld, int64_t panel_columns, int64_t rows, const T* v, T* y,
                  const T* ahead) const {
    int64_t c = 0;
    for (; c + 4 <= columns_; c += 4) {
      PanelRows<kSign, 4>(m, ld, panel_columns, rows, v + c * n_, y + c * n_,
                          c == 0 ? ahead : nullptr);
    }
    for (; c < columns_; ++c) {
      PanelRows<kSign, 1>(m, ld, panel_columns, rows, v + c * n_, y + c * n_,
                          c == 0 ? ahead : nullptr);
    }
  }

  template <int kSign, int kColumns>
  void PanelRows(const T* m, int64_t ld, int64_t panel_columns, int64_t rows, const T* v, T* y,
                 const T* ahead) const {
    T scalars[kColumns][kPanel];
    for (int c = 0; c < kColumns; ++c) {
      for (int64_t k = 0; k < panel_columns; ++k) scalars[c][k] = Signed<kSign>(v[c * n_ + k]);
    }
    if (panel_columns != kPanel) {
      Rows<kColumns, 1, kWidth>(m, ld, panel_columns, 0, rows, scalars, y, ahead);
      return;
    }
    constexpr int kUnroll = kColumns == 1 ? 4 : 2;
    Rows<kColumns, kUnroll, kWidth>(m, ld, kPanel, 0, rows, scalars, y, ahead);
  }

  // From row r on in steps of kUnroll vectors of kW, what is left in smaller steps.
  template <int kColumns, int kUnroll, int kW>
  inline __attribute__((always_inline)) void Rows(const T* m, int64_t ld, int64_t panel_columns,
                                                  int64_t r, int64_t rows,
                                                  const T (*scalars)[kPanel], T* y,
                                                  const T* ahead) const {
    for (; r + kUnroll * kW <= rows; r += kUnroll * kW) {
      if (kW == kWidth && ahead) Ask(ahead + r * kPanel, kUnroll * kW);
      RowChunk<kColumns, kUnroll, kW>(m + r, ld, panel_columns, scalars, y + r);
    }
    if constexpr (kUnroll > 1) {
      Rows<kColumns, 1, kW>(m, ld, panel_columns, r, rows, scalars, y, ahead);
    } else if constexpr (kW > 1) {
      Rows<kColumns, 1, kW / 2>(m, ld, panel_columns, r, rows, scalars, y, ahead);
    }
  }

  template <int kColumns, int kUnroll, int kW>
  inline __attribute__((always_inline)) void RowChunk(const T* m, int64_t ld, int64_t panel_columns,
                                                      const T (*scalars)[kPanel], T* y) const {
    Vector<T, kW> sum[kColumns][kUnroll];
#pragma GCC unroll 4
    for (int c = 0; c < kColumns; ++c) {
#pragma GCC unroll 4
      for (int u = 0; u < kUnroll; ++u) sum[c][u] = Load<T, kW>(y + c * n_ + u * kW);
    }
#pragma GCC unroll 8
    for (int64_t k = 0; k < panel_columns; ++k) {
#pragma GCC unroll 4
      for (int u = 0; u < kUnroll; ++u) {
        const Vector<T, kW> row = Load<T, kW>(m + k * ld + u * kW);
#pragma GCC unroll 4
        for (int c = 0; c < kColumns; ++c) {
          sum[c][u] = MultiplyAdd<T, kW>(row, scalars[c][k], sum[c][u]);
        }
      }
    }
#pragma GCC unroll 4
    for (int c = 0; c < kColumns; ++c) {
#pragma GCC unroll 4
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
    Vector<T, kWidth> sum[kColumns][kDots] = {};
    int64_t r = 0;
    for (; r + kWidth <= rows; r += kWidth) {
      if (ahead) Ask(ahead + r * kPanel, kWidth);
      Vector<T, kWidth> entries[kColumns];
#pragma GCC unroll 4
      for (int c = 0; c < kColumns; ++c) entries[c] = Load<T, kWidth>(x + c * n_ + r);
#pragma GCC unroll 8
      for (int k = 0; k < kDots; ++k) {
        const Vector<T, kWidth> column = Load<T, kWidth>(m + k * ld + r);
#pragma GCC unroll 4
        for (int c = 0; c < kColumns; ++c) {
          sum[c][k] = MultiplyAdd<T, kWidth>(column, entries[c], sum[c][k]);
        }
      }
    }
    const int64_t tail = rows - r;
    for (int c = 0; c < kColumns; ++c) {
      const Vector<T, kWidth> entries = LoadPart(x + c * n_ + r, tail);
#pragma GCC unroll 8
      for (int k = 0; k < kDots; ++k) {
        if (tail > 0) {
          sum[c][k] = MultiplyAdd<T, kWidth>(LoadPart(m + k * ld + r, tail), entries, sum[c][k]);
        }
        t[c * n_ + k] += Signed<kSign>(Sum<T, kWidth>(sum[c][k]));
      }
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
  const int64_t triangle_;
  T* v_ = nullptr;  // the block in hand
  T* y_ = nullptr;
  T* left_ = nullptr;  // forward: the update of the left separator; backward: its solution
};

}  // namespace blockd::cpu::BLOCKD_KERNEL_NAMESPACE

#endif  // BLOCKD_ENGINE_CPU_SUBSTITUTE_H_
