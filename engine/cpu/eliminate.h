// A segment's elimination on packed row panels.
//
// A panel is kRows consecutive rows, stored column after column: [column][kRows]. In that form one
// matrix serves as the left operand of a product (kRows scalars of a column are vectors) and, by rows,
// as the right one (kCols consecutive rows of a column are broadcast). Every product here is
// P Q' summed over columns, so one inner loop does all of the work:
//
//     L(i,j) = (D(i,j) - sum_k C(i,k) C(j,k)' - sum_{k<j} L(i,k) L(j,k)') inv(L(j,j))'
//     W(i,j) = (S(i,j) - sum_{k<j} W(i,k) L(j,k)') inv(L(j,j))',  S(i,j) = -sum_k W(i,k) C(j,k)'
//     C(i,j) = (E(i,j) - sum_{k<j} C(i,k) L(j,k)') inv(L(j,j))'
//     Y(i,j) = (I(i,j) - sum_{k<j} Y(i,k) L(j,k)') inv(L(j,j))',  Y = inv(L)'
//
// where C and W of the right-hand sides are those of the block before, and i, j, k count tiles of
// kRows. Blocks are padded to whole tiles with the identity, in scratch only.
#ifndef BLOCKD_ENGINE_CPU_ELIMINATE_H_
#define BLOCKD_ENGINE_CPU_ELIMINATE_H_

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "blockd/engine/cpu/kernels.h"
#include "blockd/engine/cpu/vectors.h"

namespace blockd::cpu::BLOCKD_KERNEL_NAMESPACE {

// kVectors vectors a column of a panel.
template <typename T, int kVectors>
class Eliminator {
  static constexpr int kWidth = kLanes<T>;
  static constexpr int kRows = kVectors * kWidth;
  static constexpr int kCols = BLOCKD_VECTOR_BYTES == 64 ? 8 : 4;
  static_assert(kRows % kCols == 0);
  using Vec = Vector<T, kWidth>;

  // kRows x kCols in registers.
  struct Tile {
    Vec v[kCols][kVectors];
  };

 public:
  static int64_t Padded(int64_t n) { return (n + kRows - 1) / kRows * kRows; }
  static int64_t ScratchScalars(int64_t n, bool fill) {
    const int64_t padded = Padded(n);
    // L, C, the diagonal tiles of Y and one panel of Y or W; with fill also W and its update.
    return (fill ? 4 : 2) * padded * padded + 2 * padded * kRows;
  }

  explicit Eliminator(const EliminateTask<T>& task)
      : task_(task), segment_(*task.segment), n_(task.n), padded_(Padded(task.n)),
        panels_(padded_ / kRows) {
    T* at = task.scratch;
    const auto take = [&at](int64_t scalars) { return std::exchange(at, at + scalars); };
    l_ = take(padded_ * padded_);
    c_ = take(padded_ * padded_);
    diagonal_ = take(padded_ * kRows);
    row_ = take(padded_ * kRows);
    if (segment_.has_fill()) {
      w_ = take(padded_ * padded_);
      update_ = take(padded_ * padded_);
      std::fill(update_, update_ + padded_ * padded_, T{0});
    }
  }

  SegmentFailure Run() {
    for (int64_t k = 0; k < segment_.count; ++k) {
      if (task_.stop && task_.stop->load(std::memory_order_relaxed)) return {};
      const int64_t row = Factor(k);
      if (row >= 0) return {k, row};
      if (segment_.has_fill()) Fill(k);
      const bool last = k + 1 == segment_.count;
      if (!last || Target() >= 0) Next(k);
      if (task_.inverse) Invert(k);
    }
    Finish();
    return {};
  }

 private:
  static constexpr int64_t kNone = -1;

  T* Panel(T* packed, int64_t i) const { return packed + i * kRows * padded_; }

  // The chain index of the block after the k-th interior: the next interior or the separator.
  int64_t Target() const {
    if (segment_.reversed) return segment_.left_separator >= 0 ? segment_.first - 1 : kNone;
    return segment_.right_separator >= 0 ? segment_.first + segment_.count : kNone;
  }

  // tile -= A B', A a panel, B kCols of its rows, over `columns` columns.
  static inline __attribute__((always_inline)) void Subtract(Tile& tile, const T* a, const T* b,
                                                             int64_t columns) {
    Tile t = tile;
    for (int64_t k = 0; k < columns; ++k, a += kRows, b += kRows) {
      Vec rows[kVectors];
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) rows[v] = Load<T, kWidth>(a + v * kWidth);
#pragma GCC unroll 8
      for (int j = 0; j < kCols; ++j) {
        const T scalar = b[j];
#pragma GCC unroll 4
        for (int v = 0; v < kVectors; ++v) t.v[j][v] -= rows[v] * scalar;
      }
    }
    tile = t;
  }

  // out = A Y, A a tile of `columns` columns in [column][kRows] and Y(k, j) = y[j * kRows + k].
  static inline __attribute__((always_inline)) Tile Multiply(const T* a, const T* y, int64_t columns) {
    Tile t = {};
    for (int64_t k = 0; k < columns; ++k, a += kRows) {
      Vec rows[kVectors];
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) rows[v] = Load<T, kWidth>(a + v * kWidth);
#pragma GCC unroll 8
      for (int j = 0; j < kCols; ++j) {
        const T scalar = y[j * kRows + k];
#pragma GCC unroll 4
        for (int v = 0; v < kVectors; ++v) t.v[j][v] += rows[v] * scalar;
      }
    }
    return t;
  }

  static inline void StorePacked(const Tile& tile, T* out) {
#pragma GCC unroll 8
    for (int j = 0; j < kCols; ++j) {
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) Store<T, kWidth>(out + j * kRows + v * kWidth, tile.v[j][v]);
    }
  }

  static inline Tile LoadPacked(const T* in) {
    Tile tile;
#pragma GCC unroll 8
    for (int j = 0; j < kCols; ++j) {
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) tile.v[j][v] = Load<T, kWidth>(in + j * kRows + v * kWidth);
    }
    return tile;
  }

  // Rows r.. and columns c.. of an n x n column-major block, zero outside of it.
  Tile LoadBlock(const T* block, int64_t r, int64_t c) const {
    Tile tile;
    if (r + kRows <= n_ && c + kCols <= n_) {
#pragma GCC unroll 8
      for (int j = 0; j < kCols; ++j) {
#pragma GCC unroll 4
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

  Tile LoadDiagonal(int64_t block, int64_t r, int64_t c) const {
    const Chain<T>& chain = task_.chain;
    if (chain.matrix == nullptr) {
      const T* from_left = chain.chains + block * 3 * n_ * n_;
      Tile tile = LoadFullLower(from_left, r, c);
      const Tile other = LoadFullLower(from_left + n_ * n_, r, c);
      for (int j = 0; j < kCols; ++j) {
        for (int v = 0; v < kVectors; ++v) tile.v[j][v] += other.v[j][v];
      }
      return tile;
    }
    const T* data = DiagonalBlock<T>(*chain.matrix, block);
    if (chain.matrix->form.diagonal == DiagonalForm::kFull) return LoadFullLower(data, r, c);
    // Column j of the packed form starts with its diagonal entry.
    return LoadLower(data, r, c, [this](int64_t j) { return j * n_ - j * (j + 1) / 2; });
  }

  // The coupling block between chain index i and i + 1: A(i+1,i), or its transpose.
  Tile LoadCoupling(int64_t i, bool transpose, int64_t r, int64_t c) const {
    const Chain<T>& chain = task_.chain;
    const T* block = nullptr;
    if (chain.matrix) {
      block = CouplingBlock<T>(*chain.matrix, i);
      transpose ^= chain.matrix->form.coupling == CouplingForm::kSuperdiagonal;
    } else {
      block = chain.chains + (i * 3 + 2) * n_ * n_;
    }
    return transpose ? LoadTransposed(block, r, c) : LoadBlock(block, r, c);
  }

  void StoreBlock(const Tile& tile, T* block, int64_t r, int64_t c) const {
    if (r + kRows <= n_ && c + kCols <= n_) {
#pragma GCC unroll 8
      for (int j = 0; j < kCols; ++j) {
#pragma GCC unroll 4
        for (int v = 0; v < kVectors; ++v) {
          Store<T, kWidth>(block + (c + j) * n_ + r + v * kWidth, tile.v[j][v]);
        }
      }
      return;
    }
    T buffer[kCols * kRows];
    StorePacked(tile, buffer);
    const int64_t rows = std::min<int64_t>(kRows, n_ - r);
    for (int64_t j = 0; j < kCols && c + j < n_; ++j) {
      std::copy_n(buffer + j * kRows, std::max<int64_t>(rows, 0), block + (c + j) * n_ + r);
    }
  }

  // One panel of P inv(L)', tile by tile: out(j) = (init(j) - sum_{k<j} out(k) L(j,k)') inv(L(j,j))'.
  // `out` is the panel, packed; `block`, if given, gets the same in column-major form.
  template <typename Init>
  void SolvePanel(T* out, T* block, int64_t r, int64_t first_tile, const Init& init) {
    for (int64_t j = first_tile; j < panels_; ++j) {
      alignas(64) T rest[kRows * kRows];
      const T* l = Panel(l_, j);
      const int64_t from = first_tile * kRows;
      for (int h = 0; h < kRows; h += kCols) {
        Tile tile = init(j * kRows + h);
        Subtract(tile, out + from * kRows, l + from * kRows + h, j * kRows - from);
        StorePacked(tile, rest + h * kRows);
      }
      const T* y = diagonal_ + j * kRows * kRows;
      for (int h = 0; h < kRows; h += kCols) {
        const Tile tile = Multiply(rest, y + h * kRows, h + kCols);
        StorePacked(tile, out + (j * kRows + h) * kRows);
        if (block) StoreBlock(tile, block, r, j * kRows + h);
      }
    }
  }

  // D - C C' of the k-th interior, factored. Returns the row of a pivot that is not positive, or -1.
  int64_t Factor(int64_t k) {
    const int64_t block = segment_.block(k);
    for (int64_t i = 0; i < panels_; ++i) {
      T* panel = Panel(l_, i);
      const int64_t r = i * kRows;
      const auto init = [&](int64_t c) {
        Tile tile = LoadDiagonal(block, r, c);
        if (k > 0) Subtract(tile, Panel(c_, i), Panel(c_, c / kRows) + c % kRows, n_);
        return tile;
      };
      LowerPanel(panel, i, init);
      const int64_t row = FactorTile(panel + r * kRows, diagonal_ + r * kRows,
                                     std::min<int64_t>(kRows, n_ - r));
      if (row >= 0) return r + row;
    }
    return -1;
  }

  // The tiles of panel i left of the diagonal, as SolvePanel, then the diagonal tile, not factored yet.
  template <typename Init>
  void LowerPanel(T* panel, int64_t i, const Init& init) {
    const int64_t all = panels_;
    panels_ = i;
    SolvePanel(panel, nullptr, 0, 0, init);
    panels_ = all;
    for (int h = 0; h < kRows; h += kCols) {
      Tile tile = init(i * kRows + h);
      Subtract(tile, panel, panel + h, i * kRows);
      StorePacked(tile, panel + (i * kRows + h) * kRows);
    }
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
      if (!(pivot > 0) || !std::isfinite(pivot)) return k;
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
          Store<T, kWidth>(aj, Load<T, kWidth>(aj) - column[v] * factor);
          Store<T, kWidth>(yj, Load<T, kWidth>(yj) - inverse[v] * factor);
        }
      }
    }
    return -1;
  }

  // C of the k-th interior, toward the next block.
  void Next(int64_t k) {
    const int64_t block = segment_.block(k);
    const int64_t coupling = segment_.reversed ? block - 1 : block;
    T* out = task_.next ? task_.next + k * n_ * n_ : nullptr;
    for (int64_t i = 0; i < panels_; ++i) {
      SolvePanel(Panel(c_, i), out, i * kRows, 0, [&](int64_t c) {
        return LoadCoupling(coupling, segment_.reversed, i * kRows, c);
      });
    }
  }

  // W of the k-th interior, toward the left separator, and W W' onto the separator's update.
  void Fill(int64_t k) {
    T* out = task_.fill ? task_.fill + k * n_ * n_ : nullptr;
    for (int64_t i = 0; i < panels_; ++i) {
      T* panel = Panel(w_, i);
      SolvePanel(row_, out, i * kRows, 0, [&](int64_t c) {
        if (k == 0) return LoadCoupling(segment_.first - 1, true, i * kRows, c);
        Tile tile = {};
        Subtract(tile, panel, Panel(c_, c / kRows) + c % kRows, n_);
        return tile;
      });
      std::copy_n(row_, padded_ * kRows, panel);
    }
    for (int64_t i = 0; i < panels_; ++i) {
      for (int64_t c = 0; c < (i + 1) * kRows; c += kCols) {
        T* at = Panel(update_, i) + c * kRows;
        Tile tile = LoadPacked(at);
        Subtract(tile, Panel(w_, i), Panel(w_, c / kRows) + c % kRows, n_);
        StorePacked(tile, at);
      }
    }
  }

  // Y = inv(L)' panel by panel, stored as inv(L) in block columns.
  void Invert(int64_t k) {
    T* inverse = task_.inverse + k * TriangleScalars(n_);
    for (int64_t i = 0; i < panels_; ++i) {
      const int64_t r = i * kRows;
      SolvePanel(row_, nullptr, r, i, [&](int64_t c) {
        Tile tile = {};
        if (c >= r + kRows) return tile;
        T buffer[kCols * kRows] = {};
        for (int j = 0; j < kCols; ++j) buffer[j * kRows + c - r + j] = T{1};
        return LoadPacked(buffer);
      });
      StoreInverse(inverse, r);
    }
  }

  void StoreInverse(T* inverse, int64_t r) const {
    for (int64_t i = r; i < std::min<int64_t>(r + kRows, n_); ++i) {
      const int64_t panel = i / kPanel;
      const int64_t top = panel * kPanel;
      T* out = inverse + TrianglePanelOffset(n_, panel) + (i - top) * (n_ - top);
      for (int64_t c = top; c < n_; ++c) out[c - top] = row_[c * kRows + i - r];
    }
  }

  // What the segment leaves on its separators.
  void Finish() {
    const int64_t target = Target();
    for (int64_t i = 0; i < panels_; ++i) {
      const int64_t r = i * kRows;
      for (int64_t c = 0; c < std::min<int64_t>(r + kRows, n_); c += kCols) {
        if (target >= 0) {
          Tile tile = segment_.reversed ? Tile{} : LoadDiagonal(target, r, c);
          Subtract(tile, Panel(c_, i), Panel(c_, c / kRows) + c % kRows, n_);
          T* out = segment_.reversed ? task_.left_from_right : task_.right_from_left;
          if (out) StoreBlock(tile, out, r, c);
        }
        if (segment_.has_fill()) {
          StoreBlock(LoadPacked(Panel(update_, i) + c * kRows), task_.left_from_right, r, c);
        }
      }
      for (int64_t c = 0; segment_.has_fill() && c < n_; c += kCols) {
        Tile tile = {};
        Subtract(tile, Panel(c_, i), Panel(w_, c / kRows) + c % kRows, n_);
        StoreBlock(tile, task_.coupling, r, c);
      }
    }
  }

  const EliminateTask<T>& task_;
  const Segment& segment_;
  const int64_t n_;
  const int64_t padded_;
  int64_t panels_;
  T* l_ = nullptr;         // L of the block in hand
  T* c_ = nullptr;         // C of the block before or in hand
  T* diagonal_ = nullptr;  // Y(j,j), tile after tile
  T* row_ = nullptr;       // a panel of Y or W
  T* w_ = nullptr;
  T* update_ = nullptr;    // -sum W W'
};

}  // namespace blockd::cpu::BLOCKD_KERNEL_NAMESPACE

#endif  // BLOCKD_ENGINE_CPU_ELIMINATE_H_
