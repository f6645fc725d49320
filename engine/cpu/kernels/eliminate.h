// A segment's elimination on packed row panels.
//
// A panel is kRows consecutive rows, stored column after column: [column][kRows]. In that form one
// matrix serves as the left operand of a product (kRows scalars of a column are vectors) and, by
// rows, as the right one (kCols consecutive rows of a column are broadcast). Every product here is
// P Q' summed over columns, so one inner loop does all of the work:
//
//     L(i,j) = (D(i,j) - sum_k C(i,k) C(j,k)' - sum_{k<j} L(i,k) L(j,k)') inv(L(j,j))'
//     W(i,j) = (S(i,j) - sum_{k<j} W(i,k) L(j,k)') inv(L(j,j))',  S(i,j) = -sum_k W(i,k) C(j,k)'
//     C(i,j) = (E(i,j) - sum_{k<j} C(i,k) L(j,k)') inv(L(j,j))'
//     Y(i,j) = (I(i,j) - sum_{k<j} Y(i,k) L(j,k)') inv(L(j,j))',  Y = inv(L)'
//
// where C and W of the right-hand sides are those of the block before, and i, j, k count tiles of
// kRows. Blocks are padded to whole tiles with the identity, in scratch only.
#ifndef BLOCKD_ENGINE_CPU_KERNELS_ELIMINATE_H_
#define BLOCKD_ENGINE_CPU_KERNELS_ELIMINATE_H_

#include <algorithm>
#include <cstdint>

#include "engine/cpu/kernels/chain_tiles.h"
#include "engine/cpu/kernels/kernels.h"
#include "engine/cpu/kernels/vectors.h"

namespace blockd::cpu::BLOCKD_KERNEL_NAMESPACE {

// kVectors vectors a column of a panel.
template <typename T, int kVectors>
class Eliminator : ChainTiles<T, kVectors> {
  using Base = ChainTiles<T, kVectors>;
  using Base::chain_, Base::n_;
  using Base::Coupling, Base::FactorTile, Base::LoadCoupling, Base::LoadDiagonal, Base::LoadPacked,
      Base::Multiply, Base::StorePacked;
  using Base::kCols, Base::kRows, Base::kWidth;
  using typename Base::Tile, typename Base::Vec;

 public:
  static int64_t Padded(int64_t n) { return (n + kRows - 1) / kRows * kRows; }
  static int64_t ScratchScalars(int64_t n, bool fill) {
    const int64_t padded = Padded(n);
    // L, C, a panel and the diagonal tiles of Y, and `squares_`; with fill also two W and their
    // update.
    return (fill ? 5 : 2) * padded * padded + (2 * kRows + 1) * padded;
  }

  explicit Eliminator(const EliminateTask<T>& task)
      : Base(task.chain, task.n),
        task_(task),
        segment_(*task.segment),
        padded_(Padded(task.n)),
        panels_(padded_ / kRows),
        // Whole lines only: columns of every block column start at a multiple of a vector.
        stream_(task.stream && n_ % kRows == 0 && IsAligned(task.inverse) && IsAligned(task.next) &&
                IsAligned(task.fill)) {
    ReadAhead(nullptr, 0, 1);
    T* at = task.scratch;
    const auto take = [&at](int64_t scalars) { return std::exchange(at, at + scalars); };
    l_ = take(padded_ * padded_);
    c_ = take(padded_ * padded_);
    diagonal_ = take(padded_ * kRows);
    y_ = take(padded_ * kRows);
    squares_ = take(padded_);
    if (segment_.has_fill()) {
      w_ = take(padded_ * padded_);
      w_before_ = take(padded_ * padded_);
      update_ = take(padded_ * padded_);
      std::fill(update_, update_ + padded_ * padded_, T{0});
    }
  }

  SegmentReport Run() {
    for (Vec& lane : growth_square_) lane = Vec{} + T{1};
    for (int64_t k = 0; k < segment_.count; ++k) {
      if (task_.stop && task_.stop->load(std::memory_order_relaxed)) return {};
      const int64_t row = Factor(k);
      if (row >= 0) return {k, row, 1};
      if (segment_.has_fill()) Fill(k);
      const bool last = k + 1 == segment_.count;
      if (!last || TargetOf(segment_) >= 0) Next(k);
      Invert(k);
    }
    Finish();
    SegmentReport report;
    for (const Vec& lanes : growth_square_) {
      report.growth_square = Larger<double, 1>(LargestLane<T, kWidth>(lanes), report.growth_square);
    }
    return report;
  }

 private:
  static bool IsAligned(const T* p) {
    return reinterpret_cast<uintptr_t>(p) % BLOCKD_VECTOR_BYTES == 0;
  }

  // Between the panels of a block, where one takes long.
  void MakeWay() const {
    if (panels_ >= 8) task_.MakeWay();
  }

  T* Panel(T* packed, int64_t i) const { return packed + i * kRows * padded_; }

  // tile -= A B', A a panel, B kCols of its rows, over `columns` columns. Each step also asks for
  // the next bytes of what the next phase reads.
  // Vectors of rows before kFirst are left alone.
  template <int kFirst = 0>
  inline __attribute__((always_inline)) void Subtract(Tile& tile, const T* a, const T* b,
                                                      int64_t columns) {
    Tile t = tile;
    const char* ahead = ahead_;
    const int64_t step = ahead_step_;
    for (int64_t k = 0; k < columns; ++k, a += kRows, b += kRows, ahead += step) {
      __builtin_prefetch(ahead);
      Vec rows[kVectors];
      BLOCKD_UNROLL(4)
      for (int v = kFirst; v < kVectors; ++v) rows[v] = Load<T, kWidth>(a + v * kWidth);
      BLOCKD_UNROLL(8)
      for (int j = 0; j < kCols; ++j) {
        const T scalar = b[j];
        BLOCKD_UNROLL(4)
        for (int v = kFirst; v < kVectors; ++v) {
          t.v[j][v] = MultiplyAdd<T, kWidth>(-rows[v], scalar, t.v[j][v]);
        }
      }
    }
    ahead_ = ahead;
    tile = t;
  }

  // Blocks are read tile by tile, in short pieces of many columns, an order in which memory is two
  // to three times slower than from end to end. So the block that the next phase reads is asked for
  // from end to end while this phase computes: `bytes` from `block` on, spread over `steps` steps
  // of Subtract.
  void ReadAhead(const void* block, int64_t bytes, int64_t steps) {
    ahead_ = static_cast<const char*>(block ? block : task_.scratch);
    ahead_step_ = block ? (bytes + steps - 1) / std::max<int64_t>(steps, 1) : 0;
  }

  // While the k-th interior is factored: its coupling block.
  void ReadCouplingAhead(int64_t k) {
    const bool last = k + 1 == segment_.count;
    if (last && TargetOf(segment_) < 0) return ReadAhead(nullptr, 0, 1);
    const int64_t tiles = panels_ * (panels_ + 1) / 2;
    const int64_t columns = (k > 0 ? n_ : 0) + (panels_ - 1) * kRows / 3;
    const int64_t block = segment_.block(k);
    ReadAhead(Coupling(segment_.reversed ? block - 1 : block), n_ * n_ * int64_t{sizeof(T)},
              tiles * (kRows / kCols) * columns);
  }

  // While C of the k-th interior is computed: the diagonal block of the next.
  void ReadDiagonalAhead(int64_t k) {
    const bool last = k + 1 == segment_.count;
    if (last) return ReadAhead(nullptr, 0, 1);
    const int64_t steps = panels_ * (kRows / kCols) * panels_ * (panels_ - 1) / 2 * kRows;
    const int64_t block = segment_.block(k + 1);
    if (chain_.matrix) {
      ReadAhead(DiagonalBlock<T>(*chain_.matrix, block),
                chain_.matrix->form.diagonal_block_scalars() * int64_t{sizeof(T)}, steps);
    } else {
      ReadAhead(chain_.chains + block * 3 * n_ * n_, 2 * n_ * n_ * int64_t{sizeof(T)}, steps);
    }
  }

  // A store to the factor, which is not read again soon if it is larger than the caches: then it
  // need not pass through them.
  inline __attribute__((always_inline)) void StoreOut(T* out, Vec v) const {
    if (stream_) {
      Stream<T, kWidth>(out, v);
    } else {
      Store<T, kWidth>(out, v);
    }
  }

  void StoreBlock(const Tile& tile, T* block, int64_t r, int64_t c) const {
    if (r + kRows <= n_ && c + kCols <= n_) {
      BLOCKD_UNROLL(8)
      for (int j = 0; j < kCols; ++j) {
        BLOCKD_UNROLL(4)
        for (int v = 0; v < kVectors; ++v) {
          StoreOut(block + (c + j) * n_ + r + v * kWidth, tile.v[j][v]);
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

  // Tile (i, j) of a packed P inv(L)': (init - sum_k P(i,k) L(j,k)') inv(L(j,j))' over the tiles k
  // from `first` to j - 1. `block`, if given, gets it in column-major form too.
  template <typename Init>
  void SolveTile(T* packed, int64_t i, int64_t j, int64_t first, T* block, const Init& init) {
    alignas(64) T rest[kRows * kRows];
    const int64_t from = first * kRows;
    const T* row = Panel(packed, i);
    const T* l = Panel(l_, j);
    BLOCKD_UNROLL(1)
    for (int h = 0; h < kRows; h += kCols) {
      Tile tile = init(j * kRows + h);
      Subtract(tile, row + from * kRows, l + from * kRows + h, j * kRows - from);
      StorePacked(tile, rest + h * kRows);
    }
    const T* y = diagonal_ + j * kRows * kRows;
    T* out = Panel(packed, i) + j * kRows * kRows;
    BLOCKD_UNROLL(1)
    for (int h = 0; h < kRows; h += kCols) {
      const Tile tile = Multiply(rest, y + h * kRows, h + kCols);
      StorePacked(tile, out + h * kRows);
      if (block) StoreBlock(tile, block, i * kRows, j * kRows + h);
    }
  }

  // D - C C' of the k-th interior, factored. Returns the row of a pivot that is not positive, or
  // -1.
  int64_t Factor(int64_t k) {
    const int64_t block = segment_.block(k);
    ReadCouplingAhead(k);
    task_.MakeWay();
    for (int64_t j = 0; j < panels_; ++j) {
      MakeWay();
      for (int64_t i = j; i < panels_; ++i) {
        const auto init = [&](int64_t c) {
          Tile tile = LoadDiagonal(block, i * kRows, c);
          if (k > 0) Subtract(tile, Panel(c_, i), Panel(c_, j) + c % kRows, n_);
          return tile;
        };
        if (i > j) {
          SolveTile(l_, i, j, 0, nullptr, init);
          continue;
        }
        const int64_t row = DiagonalTile(block, k, j);
        if (row >= 0) return j * kRows + row;
      }
    }
    return -1;
  }

  int64_t DiagonalTile(int64_t block, int64_t k, int64_t j) {
    const T* panel = Panel(l_, j);
    T* at = Panel(l_, j) + j * kRows * kRows;
    BLOCKD_UNROLL(1)
    for (int h = 0; h < kRows; h += kCols) {
      Tile tile = LoadDiagonal(block, j * kRows, j * kRows + h);
      const T* c = Panel(c_, j);
      // Only the lower triangle counts: right of the first vector's columns, its rows are above it.
      if (kVectors > 1 && h >= kWidth) {
        if (k > 0) Subtract<1>(tile, c, c + h, n_);
        Subtract<1>(tile, panel, panel + h, j * kRows);
      } else {
        if (k > 0) Subtract(tile, c, c + h, n_);
        Subtract(tile, panel, panel + h, j * kRows);
      }
      StorePacked(tile, at + h * kRows);
    }
    for (int64_t r = 0; r < kRows; ++r) squares_[j * kRows + r] = at[r * (kRows + 1)];
    return FactorTile(at, diagonal_ + j * kRows * kRows, std::min<int64_t>(kRows, n_ - j * kRows));
  }

  // C of the k-th interior, toward the next block.
  void Next(int64_t k) {
    const int64_t block = segment_.block(k);
    const int64_t coupling = segment_.reversed ? block - 1 : block;
    T* out = task_.next + k * n_ * n_;
    ReadDiagonalAhead(k);
    for (int64_t j = 0; j < panels_; ++j) {
      MakeWay();
      for (int64_t i = 0; i < panels_; ++i) {
        SolveTile(c_, i, j, 0, out, [&](int64_t c) {
          return LoadCoupling(coupling, segment_.reversed, i * kRows, c);
        });
      }
    }
  }

  // W of the k-th interior, toward the left separator, and W W' onto the separator's update.
  void Fill(int64_t k) {
    T* out = task_.fill + k * n_ * n_;
    for (int64_t j = 0; j < panels_; ++j) {
      MakeWay();
      for (int64_t i = 0; i < panels_; ++i) {
        SolveTile(w_, i, j, 0, out, [&](int64_t c) {
          if (k == 0) return LoadCoupling(segment_.first - 1, true, i * kRows, c);
          Tile tile = {};
          Subtract(tile, Panel(w_before_, i), Panel(c_, j) + c % kRows, n_);
          return tile;
        });
      }
    }
    std::swap(w_, w_before_);
    for (int64_t i = 0; i < panels_; ++i) {
      MakeWay();
      for (int64_t c = 0; c < (i + 1) * kRows; c += kCols) {
        T* at = Panel(update_, i) + c * kRows;
        Tile tile = LoadPacked(at);
        Subtract(tile, Panel(w_before_, i), Panel(w_before_, c / kRows) + c % kRows, n_);
        StorePacked(tile, at);
      }
    }
  }

  // Y = inv(L)' tile by tile, stored as inv(L) in block columns.
  void Invert(int64_t k) {
    T* inverse = task_.inverse + k * TriangleScalars(n_);
    for (int64_t i = 0; i < panels_; ++i) {
      MakeWay();
      // One panel is all that a panel of Y needs of Y.
      std::copy_n(diagonal_ + i * kRows * kRows, kRows * kRows, y_ + i * kRows * kRows);
      StoreInverse(inverse, i, i);
      for (int64_t j = i + 1; j < panels_; ++j) {
        SolveTile(y_, 0, j, i, nullptr, [](int64_t) { return Tile{}; });
        StoreInverse(inverse, i, j);
      }
      NoteGrowth(i);
    }
  }

  // The growth of the rows of panel i: of L their squares are summed by rows, of inv(L) by columns,
  // which are rows of Y. What the tile on the diagonal has of L, `squares_` knows. Padding is the
  // identity, or zeros.
  void NoteGrowth(int64_t i) {
    Vec of_l[kVectors], of_y[2][kVectors] = {};
    const T* l = Panel(l_, i);
    for (int v = 0; v < kVectors; ++v) of_l[v] = Load<T, kWidth>(squares_ + i * kRows + v * kWidth);
    for (int64_t c = 0; c < i * kRows; ++c, l += kRows) AddSquares(l, of_l);
    // Two sums, which do not wait for one another.
    for (int64_t c = i * kRows; c < n_; c += 2) {
      AddSquares(y_ + c * kRows, of_y[0]);
      AddSquares(y_ + (c + 1) * kRows, of_y[1]);
    }
    for (int v = 0; v < kVectors; ++v) {
      growth_square_[v] = Larger<T, kWidth>(of_l[v] * (of_y[0][v] + of_y[1][v]), growth_square_[v]);
    }
  }
  static void AddSquares(const T* column, Vec (&sums)[kVectors]) {
    BLOCKD_UNROLL(4)
    for (int v = 0; v < kVectors; ++v) {
      const Vec rows = Load<T, kWidth>(column + v * kWidth);
      sums[v] = MultiplyAdd<T, kWidth>(rows, rows, sums[v]);
    }
  }

  // Tile (i, j) of Y is tile (j, i) of inv(L), transposed.
  void StoreInverse(T* inverse, int64_t i, int64_t j) const {
    const T* tile = y_ + j * kRows * kRows;
    for (int64_t p = i * kRows; p < std::min((i + 1) * kRows, n_); p += kPanel) {
      T* out = inverse + TrianglePanelOffset(n_, p / kPanel);
      StoreTransposed(tile + p - i * kRows, out, p, j * kRows);
    }
  }

  // Columns p to p + kPanel of inv(L), rows r to r + kRows; out is their block column, which starts
  // at row p, and in[c * kRows + i] its entry in row r + c, column p + i.
  void StoreTransposed(const T* in, T* out, int64_t p, int64_t r) const {
    const int64_t ld = n_ - p;
    if constexpr (kWidth == kPanel) {
      if (r + kRows <= n_ && p <= r) {
        for (int v = 0; v < kVectors; ++v) {
          Vec square[kWidth];
          BLOCKD_UNROLL(8)
          for (int c = 0; c < kWidth; ++c)
            square[c] = Load<T, kWidth>(in + (v * kWidth + c) * kRows);
          Transpose<T, kWidth>(square);
          BLOCKD_UNROLL(8)
          for (int i = 0; i < kWidth; ++i) {
            StoreOut(out + i * ld + r - p + v * kWidth, square[i]);
          }
        }
        return;
      }
    }
    const int64_t end = std::min<int64_t>(r + kRows, n_);
    for (int64_t i = 0; i < std::min(kPanel, n_ - p); ++i) {
      for (int64_t c = std::max(r, p); c < end; ++c) out[i * ld + c - p] = in[(c - r) * kRows + i];
    }
  }

  // Stores the segment's contributions to its separators.
  void Finish() {
    const int64_t target = TargetOf(segment_);
    for (int64_t i = 0; i < panels_; ++i) {
      const int64_t r = i * kRows;
      for (int64_t c = 0; c < std::min<int64_t>(r + kRows, n_); c += kCols) {
        if (target >= 0) {
          Tile tile = segment_.reversed ? Tile{} : LoadDiagonal(target, r, c);
          Subtract(tile, Panel(c_, i), Panel(c_, c / kRows) + c % kRows, n_);
          T* out = segment_.reversed ? task_.left_from_right : task_.right_from_left;
          StoreBlock(tile, out, r, c);
        }
        if (segment_.has_fill()) {
          StoreBlock(LoadPacked(Panel(update_, i) + c * kRows), task_.left_from_right, r, c);
        }
      }
      for (int64_t c = 0; segment_.has_fill() && c < n_; c += kCols) {
        Tile tile = {};
        Subtract(tile, Panel(c_, i), Panel(w_before_, c / kRows) + c % kRows, n_);
        StoreBlock(tile, task_.coupling, r, c);
      }
    }
  }

  const EliminateTask<T>& task_;
  const Segment& segment_;
  const int64_t padded_;
  const int64_t panels_;
  const bool stream_;
  const char* ahead_ = nullptr;  // what is asked for next, and how many bytes a step
  int64_t ahead_step_ = 0;
  T* l_ = nullptr;               // L of the block in hand
  T* c_ = nullptr;               // C of the block before or in hand
  T* diagonal_ = nullptr;        // Y(j,j), tile after tile
  T* y_ = nullptr;               // a panel of Y
  T* squares_ = nullptr;         // of a row of L, the sum of those in the tile on the diagonal
  T* w_ = nullptr;               // W of the block in hand
  T* w_before_ = nullptr;        // and of the block before
  T* update_ = nullptr;          // -sum W W'
  Vec growth_square_[kVectors];  // the largest so far, by rows of a panel
};

}  // namespace blockd::cpu::BLOCKD_KERNEL_NAMESPACE

#endif  // BLOCKD_ENGINE_CPU_KERNELS_ELIMINATE_H_
