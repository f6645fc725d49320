// Device code: what a thread block does in one step of the elimination of large blocks, for one
// segment; factor.cu says which steps there are and when they come.
#ifndef BLOCKD_ENGINE_GPU_LOCKSTEP_STEP_WORK_H_
#define BLOCKD_ENGINE_GPU_LOCKSTEP_STEP_WORK_H_

#include "engine/gpu/lockstep/sizes.h"
#include "engine/gpu/tile/growth.h"
#include "engine/gpu/tile/tile_task.h"

namespace blockd::gpu::lockstep {

enum class Step { kColumn, kScale, kMultiply, kCarry, kPrepare, kTranspose };

template <typename T, int kTile, Step kStep, bool kNarrow>
using TileOf = ProductTile<
    T, std::conditional_t<kNarrow, NarrowLayout<T>,
                          std::conditional_t<kStep == Step::kColumn, ColumnLayout<T, kTile>,
                                             SharedLayout<T, kTile>>>>;

template <typename T, int kTile, Step kStep, bool kNarrow>
constexpr int64_t SharedBytes() {
  constexpr int kProduct = TileOf<T, kTile, kStep, kNarrow>::kSharedScalars;
  constexpr int kSquare = kTile * kLd<T, kTile>;
  return sizeof(T) * (kStep == Step::kColumn && kSquare > kProduct ? kSquare : kProduct);
}

// Bytes of shared memory that a thread block takes at most.
template <typename T, int kTile>
constexpr int64_t MostShared() {
  constexpr int64_t kColumn = SharedBytes<T, kTile, Step::kColumn, false>();
  if constexpr (!kCanBeNarrow<T, kTile>) return kColumn;
  constexpr int64_t kNarrow = SharedBytes<T, kTile, Step::kScale, true>();
  return kColumn > kNarrow ? kColumn : kNarrow;
}

template <typename T, int kTile, Step kStep, bool kNarrow>
class StepWork {
  using Tile = TileOf<T, kTile, kStep, kNarrow>;
  static constexpr int kColumns = Tile::kColumns;  // of a piece of a row of tiles
  static constexpr int kWarps = Tile::kThreads / kWarp;
  // Rows whose growth is measured together, as registers allow.
  static constexpr int kRegisters = 65536 / (Tile::kThreads * Tile::kResident);
  static constexpr int kTogether = sizeof(T) == 8 && kRegisters < 200 ? 2 : 4;
  static_assert(kTile % kColumns == 0);

 public:
  // One of `tasks` thread blocks of a segment, the launch's `first` one or a later one; blockIdx.y
  // is the system.
  __device__ StepWork(const EliminateArgs& args, int tasks, int first, int k, T* shared,
                      int* failed)
      : args_(args),
        n_(static_cast<int>(args.level.n)),
        tiles_((n_ + kTile - 1) / kTile),
        task_(static_cast<int>(blockIdx.x) % tasks),
        k_(k),
        segment_(args.level.launched(first + static_cast<int>(blockIdx.x) / tasks)),
        system_(args.systems[blockIdx.y]),
        range_(args.level.segment(segment_)),
        reader_{system_, args.level.n, args.chain_offset},
        shared_(shared),
        failed_(failed) {
    inverse_ = static_cast<T*>(system_.scratch) + segment_ * ScratchScalars(n_);
    fill_ = inverse_ + Square();
    transposed_ = fill_ + Square();
    sums_ = transposed_ + args.level.n * 128;
    // L lies where C will come, or where S would.
    lower_ = UsesFill() ? Next(k) : fill_;
  }

  // A tile of E' into S.
  __device__ void Transpose() {
    if (k_ >= range_.count || !UsesFill()) return;
    constexpr int kSide = 64;
    const CouplingSource<T> e =
        reader_.Coupling((range_.reversed ? range_.block(k_) : range_.first) - 1, true);
    const int across = (n_ + kSide - 1) / kSide;
    CopySquare<Tile::kThreads>(e, n_, task_ % across * kSide, task_ / across * kSide, shared_,
                               fill_);
  }

  // The growth of some columns of the block that is multiplied with, if it has several tiles, by
  // the thread blocks after those of the products; false: this is not one of them.
  __device__ bool Grow(bool fills) const {
    const int part = task_ - tiles_ * Columns() * (fills ? 2 : 1);
    if (part < 0) return false;
    AwaitPrevious();
    LetNextStart();
    if (k_ < range_.count) {
      const int end = Minimum(n_, (part + 1) * kTile);
      GrowthMeter<T, kWarps, kTogether>(Kept(), reader_.Diagonal(range_.block(k_)), part * kTile,
                                        end, end, sums_)
          .Note(Word());
    }
    return true;
  }

  // `task` is in shared memory.
  __device__ void Work(int j, bool flag, Task<T>& task) {
    if (threadIdx.x == 0) {
      task = Task<T>();
      task.any = Find(j, flag, task);
    }
    __syncthreads();
    Tile tile;
    const TileTask<T, kTile, Tile> work(task, n_, shared_);
    // The block that a sum starts from was there before the previous kernel began, except for a
    // first column's.
    if (kStep == Step::kColumn && j == 0) AwaitPrevious();
    if (task.any) work.Start(tile);
    AwaitPrevious();
    LetNextStart();
    if (!task.any) return;
    if (task.first.depth + task.second.depth > 0) tile.Add(task.first, task.second, shared_);
    if constexpr (kStep == Step::kColumn) {
      if (task.factor) return FactorDiagonal(j, work, tile);
    }
    work.Lay(tile);
    work.Store();
    if (kStep == Step::kScale && task.out == inverse_) work.StoreInverseTile(inverse_, Kept());
  }

 private:
  // Finds this thread block's task; false: it has none.
  __device__ bool Find(int j, bool flag, Task<T>& task) const {
    if constexpr (kStep == Step::kColumn) return FindColumn(j, flag, task);
    if constexpr (kStep == Step::kScale) return FindScale(j, task);
    if constexpr (kStep == Step::kMultiply) return FindMultiply(task);
    if constexpr (kStep == Step::kCarry) return FindCarry(flag, task);
    if constexpr (kStep == Step::kPrepare) return FindPrepare(task);
  }

  // Tiles (i,j), i >= j, then P(j,l), l < j.
  __device__ bool FindColumn(int j, bool prepared, Task<T>& task) const {
    if (k_ >= range_.count) return false;
    const int column0 = j * kTile;
    if (task_ < tiles_ - j) {
      const int row0 = column0 + task_ * kTile;
      Write(lower_, row0, column0, task);
      task.lower = task.negative = true;
      task.factor = task_ == 0;
      if (prepared) {
        task.start.first = lower_;
      } else {
        task.start = reader_.Diagonal(range_.block(k_));
        if (k_ > 0) task.first = Of(Next(k_ - 1), row0, column0);
      }
      if (j > 0) {
        task.second = {Rows(lower_, row0, 0), Rows(lower_, column0, 0), column0};
      }
      return true;
    }
    // inv(L)' is above the diagonal, and P' where it comes.
    const int l0 = (task_ - (tiles_ - j)) * kTile;
    WriteTransposed(inverse_, column0, l0, task);
    task.first = {Rows(lower_, column0, l0), Rows(transposed_, l0, 0), kTile};
    task.second = {Rows(lower_, column0, l0 + kTile), Rows(inverse_, l0, l0 + kTile),
                   column0 - l0 - kTile};
    return true;
  }

  // inv(L)(j,j) times pieces of P' above tile j, and of L~' below.
  __device__ bool FindScale(int j, Task<T>& task) const {
    if (k_ >= range_.count) return false;
    const int j0 = j * kTile, piece = task_ * kColumns;
    if (piece < j0) {
      Write(inverse_, j0, piece, task);
      task.first = {Rows(inverse_, j0, j0), Rows(inverse_, piece, j0), Minimum(kTile, n_ - j0)};
      task.negative = true;
      return true;
    }
    const int row0 = piece + kTile;
    WriteTransposed(lower_, j0, row0, task);
    task.first = {Rows(inverse_, j0, j0), Rows(lower_, row0, j0), kTile};
    return row0 < n_;
  }

  // Tiles of C, then of W, the deepest first.
  __device__ bool FindMultiply(Task<T>& task) const {
    if (k_ >= range_.count) return false;
    const int half = tiles_ * Columns();
    const bool fill = task_ >= half;
    const int index = fill ? task_ - half : task_;
    if (fill ? !range_.has_fill() : k_ + 1 == range_.count && range_.target() < 0) return false;
    const int row0 = index % tiles_ * kTile, column0 = (Columns() - 1 - index / tiles_) * kColumns;
    Operand<T> left = Rows(fill_, row0, 0);
    if (!fill && !range_.reversed) {
      const CouplingSource<T> e = reader_.Coupling(range_.block(k_), false);
      left.data = e.At(row0, 0);
      left.along = e.row_stride != 1;
    }
    Write(fill ? Fill(k_) : Next(k_), row0, column0, task);
    task.first = {left, Rows(inverse_, column0, 0), Minimum(n_, column0 + kColumns)};
    return true;
  }

  // Tiles that follow from the block before: of S, then of the left separator's update; at a
  // segment's end then of its target's update, or of that alone if `ends`.
  __device__ bool FindCarry(bool ends, Task<T>& task) const {
    const int square = tiles_ * Columns(),
              triangle = tiles_ * (tiles_ + 1) / 2 * (kTile / kColumns);
    const bool last = k_ == range_.count;
    if (k_ > range_.count) return false;
    int index = ends ? task_ + square + triangle : task_;
    if (index >= square + triangle) {
      return last && LowerTile(index - square - triangle, task) && FindTarget(task);
    }
    if (!range_.has_fill()) return false;
    const T* w = Fill(k_ - 1);
    const T* c = Next(k_ - 1);
    task.negative = true;
    if (index < square) {
      const int row0 = index % tiles_ * kTile, column0 = index / tiles_ * kColumns;
      Write(last ? NextChain(range_.left, 2) : fill_, row0, column0, task);
      task.first = {Rows(last ? c : w, row0, 0), Rows(last ? w : c, column0, 0), n_};
      return true;
    }
    if (!LowerTile(index - square, task)) return false;
    Write(NextChain(range_.left, 1), task.row0, task.column0, task);
    task.first = Of(w, task.row0, task.column0);
    task.lower = true;
    if (k_ > 1) task.start.first = task.out;
    return true;
  }

  __device__ bool FindTarget(Task<T>& task) const {
    if (range_.target() < 0 || args_.next_chain_offset < 0) return false;
    Write(range_.reversed ? NextChain(range_.left, 1) : NextChain(range_.right, 0), task.row0,
          task.column0, task);
    task.first = Of(Next(k_ - 1), task.row0, task.column0);
    task.negative = task.lower = true;
    // The segment left of a separator brings the separator's own block along.
    if (!range_.reversed) task.start = reader_.Diagonal(range_.target());
    return true;
  }

  __device__ bool FindPrepare(Task<T>& task) const {
    if (k_ >= range_.count || !LowerTile(task_, task)) return false;
    Write(lower_, task.row0, task.column0, task);
    task.first = Of(Next(k_ - 1), task.row0, task.column0);
    task.negative = task.lower = true;
    task.start = reader_.Diagonal(range_.block(k_));
    return true;
  }

  // True if the place of S is taken, by S or by E'.
  __device__ bool UsesFill() const { return range_.has_fill() || range_.reversed; }
  __device__ static int Minimum(int a, int b) { return a < b ? a : b; }
  __device__ int64_t Square() const { return args_.level.n * args_.level.n; }
  // Pieces of a row of tiles.
  __device__ int Columns() const { return (n_ + kColumns - 1) / kColumns; }
  __device__ T* Factor() const { return static_cast<T*>(system_.factor); }
  __device__ T* Next(int k) const {
    return Factor() + args_.next_offset + (range_.slot + k) * args_.next_stride;
  }
  __device__ T* Fill(int k) const {
    return Factor() + args_.fill_offset + (range_.fill_slot + k) * args_.fill_stride;
  }
  __device__ T* NextChain(int64_t separator, int part) const {
    return static_cast<T*>(system_.chains) + args_.next_chain_offset +
           (separator * 3 + part) * Square();
  }
  __device__ Operand<T> Rows(const T* matrix, int row0, int column0) const {
    return {matrix + static_cast<int64_t>(column0) * n_ + row0, n_, n_ - row0};
  }
  // Rows of m times others of its rows.
  __device__ Product<T> Of(const T* m, int row0, int column0) const {
    return {Rows(m, row0, 0), Rows(m, column0, 0), n_};
  }
  __device__ void Write(T* out, int row0, int column0, Task<T>& task) const {
    task.out = out;
    task.row0 = row0;
    task.column0 = column0;
    task.column_stride = n_;
  }
  __device__ void WriteTransposed(T* out, int row0, int column0, Task<T>& task) const {
    Write(out, row0, column0, task);
    task.row_stride = n_;
    task.column_stride = 1;
  }
  // The index-th piece of the lower triangle.
  __device__ bool LowerTile(int index, Task<T>& task) const {
    int i = 0;
    constexpr int kPieces = kTile / kColumns;
    while (index >= (i + 1) * kPieces) index -= ++i * kPieces;
    task.row0 = i * kTile;
    task.column0 = index * kColumns;
    return i < tiles_ && task.column0 < n_;
  }

  // The segment's word, which says how it went.
  __device__ int64_t* Word() const { return system_.info + args_.segments_before + segment_; }
  // The place of inv(L) in the factor.
  __device__ T* Kept() const {
    return Factor() + args_.inverse_offset + (range_.slot + k_) * args_.inverse_stride;
  }

  // The tile (j,j) of -L L' becomes that of the inverse.
  __device__ void FactorDiagonal(int j, const TileTask<T, kTile, Tile>& work, Tile& tile) const {
    work.Invert(tile, failed_);
    if (threadIdx.x == 0) {
      NoteFailure(Word(), k_ == 0 && j == 0, static_cast<int64_t>(k_) * n_ + j * kTile, *failed_);
    }
    if (tiles_ == 1 && k_ == 0) __syncthreads();  // the segment's word is there
    // All others store theirs meanwhile, which is what takes the time.
    static_assert(2 * kTile <= Tile::kThreads);
    const int column = static_cast<int>(threadIdx.x) - (Tile::kThreads - kTile);
    if (column >= 0) SumColumn(j, column, work);
    work.StoreFactor(j, inverse_, j + 1 < tiles_ ? transposed_ : nullptr, Kept());
  }

  // Sums up the squares of a column of the tile (j,j) of inv(L), for the growth. Called by the
  // threads of whole warps.
  __device__ void SumColumn(int j, int column, const TileTask<T, kTile, Tile>& work) const {
    const bool inside = j * kTile + column < n_;
    const T sum = work.SumOfColumn(inside ? column : 0);
    if (tiles_ > 1) {
      if (inside) sums_[j * kTile + column] = sum;
      return;
    }
    const int mine = inside ? column : 0;
    const T diagonal = reader_.Diagonal(range_.block(k_)).At(mine, mine);
    NoteLargest(GrowthOf(Word()), static_cast<float>(sum * diagonal));
  }

  const EliminateArgs& args_;
  const int n_;
  const int tiles_;
  const int task_;
  const int k_;
  const int64_t segment_;
  const FactorEntry& system_;
  const SegmentRange range_;
  const ChainReader<T> reader_;
  T* const shared_;
  int* const failed_;
  // Squares: inv(L), its tiles below the diagonal transposed above it, where P' is first; S; L. The
  // transposes of inv(L)'s tiles on the diagonal, one below the other. Of these tiles' columns the
  // sums of squares.
  T* inverse_;
  T* fill_;
  T* lower_;
  T* transposed_;
  T* sums_;
};

}  // namespace blockd::gpu::lockstep

#endif  // BLOCKD_ENGINE_GPU_LOCKSTEP_STEP_WORK_H_
