// A segment's selected inverse on packed row panels (eliminate.h): every product is P Q' there too.
// Names are those of inverse_task.h, and V = inv(L)':
//
//     G = V C', H = V W'              V is upper triangular, sums begin at its diagonal tile
//     Z(j,r) = -(G Z(r,r)' + H Z(r,l)')
//     Z(j,l) = -(G Z(l,r)' + H Z(l,l)')
//     Z(j,j) = V V' - G Z(j,r)' - H Z(j,l)', of which the lower triangle is computed
//
// Blocks are padded to whole tiles with zeros, in scratch only.
#ifndef BLOCKD_ENGINE_CPU_KERNELS_INVERT_H_
#define BLOCKD_ENGINE_CPU_KERNELS_INVERT_H_

#include <algorithm>
#include <cstdint>
#include <utility>

#include "engine/cpu/kernels/inverse_task.h"
#include "engine/cpu/kernels/tiles.h"
#include "engine/cpu/kernels/vectors.h"

namespace blockd::cpu::BLOCKD_KERNEL_NAMESPACE {

// kVectors vectors a column of a panel.
template <typename T, int kVectors>
class Inverter : Tiles<T, kVectors> {
  using Base = Tiles<T, kVectors>;
  using Base::kCols, Base::kRows, Base::kWidth;
  using Base::StorePacked;
  using typename Base::Tile, typename Base::Vec;

 public:
  static int64_t Padded(int64_t n) { return (n + kRows - 1) / kRows * kRows; }
  static int64_t ScratchScalars(int64_t n, bool fill) {
    const int64_t padded = Padded(n);
    return (fill ? 10 : 5) * padded * padded;
  }

  explicit Inverter(const InverseTask<T>& task)
      : task_(task),
        segment_(*task.segment),
        n_(task.n),
        padded_(Padded(task.n)),
        panels_(padded_ / kRows) {
    T* at = task.scratch;
    const int64_t square = padded_ * padded_;
    for (T** block : {&v_, &work_, &g_, &zrr_, &zjr_}) *block = std::exchange(at, at + square);
    if (!segment_.has_fill()) return;
    for (T** block : {&h_, &zrl_, &zlr_, &zll_, &zjl_}) *block = std::exchange(at, at + square);
  }

  void Run() {
    if (task_.last < segment_.count) Begin();
    for (int64_t k = segment_.count - 1; k >= task_.last; --k) {
      if (task_.IsStopped()) return;
      task_.MakeWay();
      Step(k);
    }
  }

 private:
  void Begin() {
    if (task_.Target() != nullptr) LoadBlock(task_.Target(), zrr_);
    if (!segment_.has_fill()) return;
    LoadBlock(task_.left, zll_);
    LoadBlock(task_.between, zrl_);
    TransposeBlock(zrl_, zlr_);
  }

  void Step(int64_t k) {
    const int64_t square = n_ * n_;
    const bool has_next = task_.HasNext(k);
    LoadInverse(task_.inverse + k * TriangleScalars(n_));
    if (has_next) {
      LoadBlock(task_.next + k * square, work_);
      TimesTriangle(work_, g_);
    }
    if (segment_.has_fill()) {
      LoadBlock(task_.fill + k * square, work_);
      TimesTriangle(work_, h_);
      Couple(zrr_, zrl_, zjr_);
      Couple(zlr_, zll_, zjl_);
    } else if (has_next) {
      Couple(zrr_, nullptr, zjr_);
    }
    FormDiagonal(has_next);
    std::swap(work_, zrr_);
    const int64_t block = segment_.block(k);
    if (T* const out = task_.out.Diagonal(block)) StoreBlock(zrr_, out);
    if (T* const out = task_.out.Entries(block)) {
      for (int64_t i = 0; i < n_; ++i) out[i] = *At(zrr_, i, i);
    }
    bool transposed = false;
    T* const coupling = has_next ? task_.NextCoupling(k, &transposed) : nullptr;
    if (coupling != nullptr && transposed) TransposeBlock(zjr_, v_);
    if (coupling != nullptr) StoreBlock(transposed ? v_ : zjr_, coupling);
    if (!segment_.has_fill()) return;
    if (T* const out = k == 0 ? task_.LeftCoupling() : nullptr) StoreBlock(zjl_, out);
    if (k == task_.last) return;
    std::swap(zrl_, zjl_);
    TransposeBlock(zrl_, zlr_);
  }

  T* Panel(T* packed, int64_t i) const { return packed + i * kRows * padded_; }
  T* At(T* packed, int64_t r, int64_t c) const {
    return Panel(packed, r / kRows) + c * kRows + r % kRows;
  }

  // Between the panels of a block, where one takes long.
  void MakeWay() const {
    if (panels_ >= 8) task_.MakeWay();
  }

  // tile += kSign A B', A a panel, B kCols of its rows, over `columns` columns.
  template <int kSign>
  static inline __attribute__((always_inline)) void Add(Tile& tile, const T* a, const T* b,
                                                        int64_t columns) {
    Tile t = tile;
    for (int64_t k = 0; k < columns; ++k, a += kRows, b += kRows) {
      Vec rows[kVectors];
      BLOCKD_UNROLL(4)
      for (int v = 0; v < kVectors; ++v) {
        const Vec row = Load<T, kWidth>(a + v * kWidth);
        rows[v] = kSign > 0 ? row : -row;
      }
      BLOCKD_UNROLL(8)
      for (int j = 0; j < kCols; ++j) {
        const T scalar = b[j];
        BLOCKD_UNROLL(4)
        for (int v = 0; v < kVectors; ++v) {
          t.v[j][v] = MultiplyAdd<T, kWidth>(rows[v], scalar, t.v[j][v]);
        }
      }
    }
    tile = t;
  }

  // out = V B'.
  void TimesTriangle(T* b, T* out) {
    for (int64_t i = 0; i < panels_; ++i) {
      MakeWay();
      const int64_t from = i * kRows;
      for (int64_t c = 0; c < padded_; c += kCols) {
        Tile tile = {};
        Add<1>(tile, Panel(v_, i) + from * kRows, Panel(b, c / kRows) + from * kRows + c % kRows,
               n_ - from);
        StorePacked(tile, Panel(out, i) + c * kRows);
      }
    }
  }

  // out = -(G P' + H Q').
  void Couple(T* p, T* q, T* out) {
    for (int64_t i = 0; i < panels_; ++i) {
      MakeWay();
      for (int64_t c = 0; c < padded_; c += kCols) {
        Tile tile = {};
        Add<-1>(tile, Panel(g_, i), Panel(p, c / kRows) + c % kRows, n_);
        if (q) Add<-1>(tile, Panel(h_, i), Panel(q, c / kRows) + c % kRows, n_);
        StorePacked(tile, Panel(out, i) + c * kRows);
      }
    }
  }

  // Z(j,j) in work_.
  void FormDiagonal(bool has_next) {
    const bool fill = segment_.has_fill();
    for (int64_t i = 0; i < panels_; ++i) {
      MakeWay();
      const int64_t from = i * kRows;
      for (int64_t c = 0; c < from + kRows; c += kCols) {
        const int64_t panel = c / kRows, row = c % kRows;
        Tile tile = {};
        Add<1>(tile, Panel(v_, i) + from * kRows, Panel(v_, panel) + from * kRows + row, n_ - from);
        if (has_next) Add<-1>(tile, Panel(g_, i), Panel(zjr_, panel) + row, n_);
        if (fill) Add<-1>(tile, Panel(h_, i), Panel(zjl_, panel) + row, n_);
        StorePacked(tile, Panel(work_, i) + c * kRows);
      }
    }
    for (int64_t i = 0; i < panels_; ++i) {
      for (int64_t j = 0; j < i; ++j) TransposeTile(TileAt(work_, i, j), TileAt(work_, j, i));
      T* const tile = TileAt(work_, i, i);
      for (int64_t c = 1; c < kRows; ++c) {
        for (int64_t r = 0; r < c; ++r) tile[c * kRows + r] = tile[r * kRows + c];
      }
    }
  }

  T* TileAt(T* packed, int64_t i, int64_t j) const { return Panel(packed, i) + j * kRows * kRows; }

  // A tile has kRows x kRows scalars.
  static void TransposeTile(const T* in, T* out) {
    for (int r = 0; r < kRows; r += kWidth) {
      for (int c = 0; c < kRows; c += kWidth) {
        Vec square[kWidth];
        BLOCKD_UNROLL(16)
        for (int j = 0; j < kWidth; ++j) square[j] = Load<T, kWidth>(in + (c + j) * kRows + r);
        if constexpr (kWidth > 1) {
          Transpose<T, kWidth>(square);
        }
        BLOCKD_UNROLL(16)
        for (int j = 0; j < kWidth; ++j) {
          Store<T, kWidth>(out + (r + j) * kRows + c, square[j]);
        }
      }
    }
  }
  void TransposeBlock(T* in, T* out) const {
    for (int64_t i = 0; i < panels_; ++i) {
      for (int64_t j = 0; j < panels_; ++j) TransposeTile(TileAt(in, i, j), TileAt(out, j, i));
    }
  }

  // A column-major block. It is read from end to end, the order in which memory is fastest.
  void LoadBlock(const T* block, T* packed) const {
    for (int64_t c = 0; c < padded_; ++c) {
      for (int64_t i = 0; i < panels_; ++i) {
        const int64_t rows = c < n_ ? std::min<int64_t>(kRows, n_ - i * kRows) : 0;
        LoadColumn(block + c * n_ + i * kRows, rows, Panel(packed, i) + c * kRows);
      }
    }
  }
  // `rows` scalars, then zeros up to kRows.
  static void LoadColumn(const T* from, int64_t rows, T* to) {
    if (rows == kRows) {
      for (int v = 0; v < kVectors; ++v) {
        Store<T, kWidth>(to + v * kWidth, Load<T, kWidth>(from + v * kWidth));
      }
      return;
    }
    for (int64_t r = 0; r < kRows; ++r) to[r] = r < rows ? from[r] : T{0};
  }

  // V of a stored triangle: columns of inv(L) are rows of V.
  void LoadInverse(const T* x) {
    alignas(64) T tile[kRows * kRows];
    for (int64_t i = 0; i < panels_; ++i) {
      for (int64_t k = i; k < panels_; ++k) {
        for (int64_t a = 0; a < kRows; ++a) {
          const int64_t column = i * kRows + a, first = column / kPanel * kPanel;
          T* const to = tile + a * kRows;
          if (column >= n_) {
            std::fill_n(to, kRows, T{0});
            continue;
          }
          const T* const from = x + TrianglePanelOffset(n_, column / kPanel) +
                                (column - first) * (n_ - first) - first;
          const int64_t row = k * kRows, skip = std::max<int64_t>(first - row, 0);
          if (skip == 0) {
            LoadColumn(from + row, std::min<int64_t>(kRows, n_ - row), to);
            continue;
          }
          for (int64_t b = 0; b < kRows; ++b) {
            to[b] = b < skip || row + b >= n_ ? T{0} : from[row + b];
          }
        }
        TransposeTile(tile, TileAt(v_, i, k));
      }
    }
  }

  void StoreBlock(T* packed, T* block) const {
    for (int64_t i = 0; i < panels_; ++i) {
      const int64_t rows = std::min<int64_t>(kRows, n_ - i * kRows);
      for (int64_t c = 0; c < n_; ++c) {
        std::copy_n(Panel(packed, i) + c * kRows, rows, block + c * n_ + i * kRows);
      }
    }
  }

  const InverseTask<T>& task_;
  const Segment& segment_;
  const int64_t n_;
  const int64_t padded_;
  const int64_t panels_;
  T* v_ = nullptr;
  T* work_ = nullptr;  // C or W, then Z(j,j)
  T* g_ = nullptr;
  T* h_ = nullptr;
  T* zrr_ = nullptr;
  T* zrl_ = nullptr;
  T* zlr_ = nullptr;
  T* zll_ = nullptr;
  T* zjr_ = nullptr;
  T* zjl_ = nullptr;
};

}  // namespace blockd::cpu::BLOCKD_KERNEL_NAMESPACE

#endif  // BLOCKD_ENGINE_CPU_KERNELS_INVERT_H_
