// Device code: what a thread block does in a step of a selected inverse, for one segment.
#ifndef BLOCKD_ENGINE_GPU_INVERSE_STEP_WORK_H_
#define BLOCKD_ENGINE_GPU_INVERSE_STEP_WORK_H_

#include "engine/gpu/inverse/inverse_args.h"
#include "engine/gpu/tile/tile_task.h"

namespace blockd::gpu::inverse {

template <typename T, int kTile>
using TileOf = ProductTile<T, SharedLayout<T, kTile>>;

enum class Phase { kGains, kCouplings, kDiagonal };

// Where the blocks of one segment's step are.
template <typename T>
class Places {
 public:
  // The step-th from the segment's end.
  __device__ Places(const InverseArgs& args, int64_t segment, int64_t step, int64_t slot)
      : args_(args),
        n_(args.level.n),
        range_(args.level.segment(args.first_segment + segment)),
        step_(step),
        k_(range_.count - 1 - step),
        scratch_(static_cast<T*>(args.scratch) + segment * SegmentSquares(args.ahead) * n_ * n_),
        slot_(slot) {}

  __device__ const SegmentRange& range() const { return range_; }
  __device__ bool IsDue() const { return k_ >= LastInterior(range_, args_.out); }
  __device__ bool WalksAtAll() const { return LastInterior(range_, args_.out) < range_.count; }
  __device__ bool HasNext() const { return step_ > 0 || range_.target() >= 0; }
  __device__ bool IsFirst() const { return k_ == 0; }

  __device__ const T* Inverse() const {
    return Factor(args_.inverse_offset) + (range_.slot + k_) * TriangleSize(n_);
  }
  __device__ const T* Next() const {
    return Factor(args_.next_offset) + (range_.slot + k_) * n_ * n_;
  }
  __device__ const T* Fill() const {
    return Factor(args_.fill_offset) + (range_.fill_slot + k_) * n_ * n_;
  }

  // V = inv(L)', G = -V C', H = -V W'.
  __device__ T* Upper() const { return Square(7 + 3 * slot_); }
  __device__ T* G() const { return Square(8 + 3 * slot_); }
  __device__ T* H() const { return Square(9 + 3 * slot_); }

  // j is this step's block, r the one of the step before or the target, l the left separator.
  __device__ T* Zjj() const { return Diagonal(range_.block(k_), step_ % 2); }
  __device__ const T* Zrr() const {
    if (step_ > 0) return Diagonal(range_.block(k_ + 1), (step_ + 1) % 2);
    return Above(range_.reversed ? range_.left : range_.right);
  }
  __device__ const T* Zll() const { return Above(range_.left); }
  __device__ T* Zjr() const { return Square(2); }
  __device__ T* Zrl() const { return Square(step_ % 2 == 0 ? 3 : 5); }
  __device__ T* Zlr() const { return Square(step_ % 2 == 0 ? 4 : 6); }
  __device__ T* Zjl() const { return Square(step_ % 2 == 0 ? 5 : 3); }
  __device__ T* Zlj() const { return Square(step_ % 2 == 0 ? 6 : 4); }

  // Z of a separator, and Z(right, left), in the next level's chain.
  __device__ const T* Above(int64_t separator) const {
    return args_.above.template Diagonal<T>(separator, n_);
  }
  __device__ const T* Between() const { return args_.above.template Coupling<T>(range_.left, n_); }

  // Outputs; null: not wanted.
  __device__ T* Entries(int64_t block) const { return args_.out.template Entries<T>(block, n_); }
  __device__ T* Wanted(int64_t block) const { return args_.out.template Diagonal<T>(block, n_); }
  __device__ T* Entries() const { return Entries(range_.block(k_)); }
  __device__ T* Coupling(int64_t block) const { return args_.out.template Coupling<T>(block, n_); }
  // Where Z(j,r) goes, or its transpose if the segment is not reversed.
  __device__ T* NextCoupling() const {
    const int64_t block = range_.block(k_);
    return Coupling(range_.reversed ? block - 1 : block);
  }
  __device__ T* LeftCoupling() const { return Coupling(range_.first - 1); }

 private:
  __device__ const T* Factor(int64_t offset) const {
    return static_cast<const T*>(args_.factor) + offset;
  }
  __device__ T* Square(int64_t i) const { return scratch_ + i * n_ * n_; }
  __device__ T* Diagonal(int64_t block, int64_t parity) const {
    T* const out = Wanted(block);
    return out ? out : Square(parity);
  }

  const InverseArgs& args_;
  const int64_t n_;
  const SegmentRange range_;
  const int64_t step_;
  const int64_t k_;
  T* const scratch_;
  const int64_t slot_;
};

// A tile of
//
//     gains      G = -V C', H = -V W'
//     couplings  Z(j,r) = G Z(r,r)' + H Z(r,l)', Z(j,l) = G Z(l,r)' + H Z(l,l)'
//     diagonal   Z(j,j) = V V' + G Z(j,r)' + H Z(j,l)', its lower triangle
template <typename T, int kTile, Phase kPhase>
class StepWork {
  using Tile = TileOf<T, kTile>;
  static constexpr int kColumns = Tile::kColumns;
  static_assert(kTile % kColumns == 0);

 public:
  using TileType = Tile;

  // A tile's products, and where it goes; in shared memory.
  struct Task {
    Product<T> first, second, third;
    int row0, column0;
    bool any, negative, lower;
    T* out;         // column-major
    T* transposed;  // the same, transposed; null: not wanted
    T* more;        // a third copy, transposed if more_transposed
    bool more_transposed;
    T* entries;  // its diagonal
  };

  __device__ StepWork(const Places<T>& places, int64_t n)
      : places_(places),
        n_(static_cast<int>(n)),
        tiles_((n_ + kTile - 1) / kTile),
        pieces_((n_ + kColumns - 1) / kColumns) {}

  __device__ void Find(int index, Task& task) const {
    task = Task();
    if (!places_.IsDue()) return;
    if constexpr (kPhase == Phase::kDiagonal) {
      task.any = FindDiagonal(index, task);
    } else {
      const int square = tiles_ * pieces_;
      const bool fill = index >= square;
      if (fill ? !places_.range().has_fill() : !places_.HasNext()) return;
      task.any = true;
      if (fill) index -= square;
      task.row0 = index % tiles_ * kTile;
      task.column0 = index / tiles_ * kColumns;
      kPhase == Phase::kGains ? FindGain(fill, task) : FindCoupling(fill, task);
    }
  }

  __device__ void Work(const Task& task, T* shared) const {
    if (!task.any) return;
    Tile tile;
    tile.Add(task.first, task.second, shared);
    if (kPhase == Phase::kDiagonal && task.third.depth > 0) {
      tile.Add(task.third, Product<T>(), shared);
    }
    tile.Lay(task.negative ? -1 : 1, shared);
    Store(task, shared);
  }

 private:
  __device__ Operand<T> Rows(const T* matrix, int row0, int k0 = 0) const {
    return {matrix + static_cast<int64_t>(k0) * n_ + row0, n_, n_ - row0};
  }
  // The tile of A B'; k0: columns before are zero in one of them.
  __device__ Product<T> Of(const Task& task, const T* a, const T* b, int k0 = 0) const {
    return {Rows(a, task.row0, k0), Rows(b, task.column0, k0), n_ - k0};
  }

  __device__ void FindGain(bool fill, Task& task) const {
    task.first = Of(task, places_.Upper(), fill ? places_.Fill() : places_.Next(), task.row0);
    task.negative = true;
    task.out = fill ? places_.H() : places_.G();
  }

  __device__ void FindCoupling(bool left, Task& task) const {
    const bool has_fill = places_.range().has_fill();
    task.first = Of(task, places_.G(), left ? places_.Zlr() : places_.Zrr());
    if (has_fill) task.second = Of(task, places_.H(), left ? places_.Zll() : places_.Zrl());
    if (left) {
      task.out = places_.Zjl();
      task.transposed = places_.Zlj();
      if (places_.IsFirst()) task.more = places_.LeftCoupling();
    } else {
      task.out = places_.Zjr();
      task.more = places_.NextCoupling();
      task.more_transposed = !places_.range().reversed;
    }
  }

  __device__ bool FindDiagonal(int index, Task& task) const {
    int i = 0;
    constexpr int kPieces = kTile / kColumns;
    while (index >= (i + 1) * kPieces) index -= ++i * kPieces;
    task.row0 = i * kTile;
    task.column0 = index * kColumns;
    if (i >= tiles_ || task.column0 >= n_) return false;
    task.first = Of(task, places_.Upper(), places_.Upper(), task.row0);
    if (places_.HasNext()) task.second = Of(task, places_.G(), places_.Zjr());
    if (places_.range().has_fill()) task.third = Of(task, places_.H(), places_.Zjl());
    task.out = task.transposed = places_.Zjj();
    task.lower = true;
    task.entries = places_.Entries();
    return true;
  }

  __device__ void Store(const Task& task, const T* shared) const {
    const int n = n_, row0 = task.row0, column0 = task.column0;
    const int rows = n - row0, columns = n - column0;
    const int below = task.lower ? row0 - column0 : n;  // columns up to row + below
    const int64_t corner = static_cast<int64_t>(column0) * n + row0;
    const int64_t across = static_cast<int64_t>(row0) * n + column0;
    StoreDown(shared, rows, columns, below, task.out + corner);
    if (T* const out = task.transposed) StoreAcross(shared, rows, columns, below, out + across);
    if (T* const out = task.more) {
      task.more_transposed ? StoreAcross(shared, rows, columns, below, out + across)
                           : StoreDown(shared, rows, columns, below, out + corner);
    }
    if (T* const out = task.entries) {
      Tile::template ForEachLaid<false>(shared, rows, columns, [=](int r, int c, T value) {
        if (row0 + r == column0 + c) out[row0 + r] = value;
      });
    }
  }
  __device__ void StoreDown(const T* shared, int rows, int columns, int below, T* out) const {
    const int n = n_;
    Tile::template ForEachLaid<false>(shared, rows, columns, [=](int r, int c, T value) {
      if (c <= r + below) out[static_cast<int64_t>(c) * n + r] = value;
    });
  }
  __device__ void StoreAcross(const T* shared, int rows, int columns, int below, T* out) const {
    const int n = n_;
    Tile::template ForEachLaid<true>(shared, rows, columns, [=](int r, int c, T value) {
      if (c <= r + below) out[static_cast<int64_t>(r) * n + c] = value;
    });
  }

  const Places<T>& places_;
  const int n_;
  const int tiles_;
  const int pieces_;
};

}  // namespace blockd::gpu::inverse

#endif  // BLOCKD_ENGINE_GPU_INVERSE_STEP_WORK_H_
