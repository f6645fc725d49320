// Device code: a segment of small blocks, walked through by one thread block from its end to its
// beginning with all that a step reads in shared memory. For an interior j with its next block r
// and the left separator l:
//
//     V = inv(L)'    G = -V C'    H = -V W'
//     Z(j,r) = G Z(r,r) + H Z(l,r)        Z(j,l) = G Z(r,l) + H Z(l,l)
//     Z(j,j) = V V' + G Z(j,r)' + H Z(j,l)'
//
// A warp has some rows of G and of Z(j,r), another the same of H and Z(j,l), or the same warp where
// it is the only one. G takes the place of C, H that of W, Z(j,r) that of V and Z(j,l) that of
// Z(r,l).
#ifndef BLOCKD_ENGINE_GPU_INVERSE_SEGMENT_WALK_H_
#define BLOCKD_ENGINE_GPU_INVERSE_SEGMENT_WALK_H_

#include "engine/gpu/inverse/walk_assignment.h"
#include "engine/gpu/inverse/walk_products.h"

namespace blockd::gpu::inverse {

template <typename T, int kTile>
class SegmentWalk {
  using Products = WalkProducts<T, kTile>;
  using Left = typename Products::Left;
  using Sum = typename Products::Sum;
  static constexpr int kLead = kLd<T, kTile>, kSquare = kTile * kLead;
  static constexpr int kRows = Products::kRows, kColumns = Products::kColumns;
  static constexpr int kRowTiles = kTile / kRows, kColumnTiles = kTile / kColumns;
  static constexpr int kSets = WalkSets(kTile);

 public:
  static constexpr int kWarps = kTile / 8, kThreads = kWarps * kWarp;
  static constexpr int kSharedScalars = (3 + 3 * kSets) * kSquare;

  __device__ SegmentWalk(const InvertSegmentsArgs& args, const WalkAssignment& assignment,
                         T* shared)
      : args_(args),
        level_(args.levels[assignment.level_index]),
        assignment_(assignment),
        range_(assignment.range),
        n_(static_cast<int>(level_.shape.n)),
        thread_(static_cast<int>(threadIdx.x)),
        warp_(thread_ / kWarp),
        half_(warp_ / kRowTiles),
        row_(kRowTiles == 1 ? 0 : (half_ == 0 ? warp_ : kWarps - 1 - warp_) * kRows),
        strip_(warp_),
        zrr_(shared) {}

  __device__ void Run() {
    if (assignment_.last == range_.count) {
      AwaitAbove();
      if (HasTarget()) BringDown();
    } else if (range_.has_fill()) {
      Traverse<true>();
    } else {
      Traverse<false>();
    }
    Release();
  }

 private:
  // The products, of two that are alike, that a warp forms, and their column tiles: only half of
  // them if there is one product alone.
  template <bool kFill>
  static constexpr int kProducts = kFill&& kWarps == 1 ? 2 : 1;
  template <bool kFill>
  static constexpr int kStrip = kFill || kColumnTiles == 1 ? kColumnTiles : kColumnTiles / 2;
  template <bool kFill>
  using Strips = Sum[kProducts<kFill>][kStrip<kFill>];

  // A warp's part of the lower triangle of Z(j,j): column tiles of one row of tiles, as many as
  // other warps have, or one fewer. None if row is kTile.
  struct Strip {
    // Tiles of all warps, and of one warp at most.
    static constexpr int kTiles = kRows / kColumns * kRowTiles * (kRowTiles + 1) / 2;
    static constexpr int kMost = (kTiles + kWarps - 1) / kWarps;
    int row = kTile, column = 0, tiles = 0;

    __device__ explicit Strip(int warp) {
      if constexpr (kRowTiles == 1 && kTiles == kWarps) {
        row = 0, column = kColumns * warp, tiles = 1;
        return;
      }
      int tile = kRowTiles - 1;
      while (tile >= 0 && warp >= WarpsOfRow(tile)) warp -= WarpsOfRow(tile--);
      if (tile < 0) return;
      const int begin = TilesOfRow(tile) * warp / WarpsOfRow(tile);
      row = kRows * tile, column = kColumns * begin;
      tiles = TilesOfRow(tile) * (warp + 1) / WarpsOfRow(tile) - begin;
    }
    BLOCKD_HOST_DEVICE static constexpr int TilesOfRow(int tile) {
      return kRows / kColumns * (tile + 1);
    }
    BLOCKD_HOST_DEVICE static constexpr int WarpsOfRow(int tile) {
      return (TilesOfRow(tile) + kMost - 1) / kMost;
    }
  };
  static constexpr int kMost = Strip::kMost;
  using Square = Sum[kMost];
  // Calls form(the sums of the strip's tiles).
  template <typename Form>
  __device__ void WithStrip(Square& square, const Form& form) const {
    if (strip_.tiles == kMost) return form(square);
    if constexpr (kMost > 1) {
      if (strip_.tiles == kMost - 1) form(reinterpret_cast<Sum(&)[kMost - 1]>(square));
    }
  }

  template <bool kFill>
  __device__ void Traverse() {
    const int first = static_cast<int>(range_.count) - 1, last = assignment_.last;
    const bool has_target = HasTarget();
    if (n_ < kTile) Clear();
#pragma unroll 1
    for (int k = first; k > first - kSets; --k) Fetch<kFill>(k);
    CopyWaitBut<kSets - 1>();
    Sync();
    // The work up to AwaitAbove waits for no other segment.
    Square square = {};
    FormSquare(first, square);
    if (has_target) {
      Strips<kFill> gains = {};
      FormGains<kFill>(first, gains);
      Sync();
      KeepGains<kFill>(first, gains);
    }
    AwaitAbove();
    if (has_target) BringDown();
#pragma unroll 1
    for (int k = first;; --k) {
      const bool is_last = k == last, has_next = k < first || has_target;
      if (kSets == 1 && !is_last) Ask(k - 1);
      if (has_next) FormCouplings<kFill>(k);
      if constexpr (kSets > 1) CopyWaitBut<kSets - 2>();  // what the next step multiplies is there
      Sync();
      if (has_next) AddCouplings<kFill>(k, square);
      Square square_next = {};
      Strips<kFill> gains = {};
      if (kSets > 1 && !is_last) {
        FormSquare(k - 1, square_next);
        FormGains<kFill>(k - 1, gains);
      }
      KeepSquare(square);
      if (has_next) StoreBlock(V(k), !range_.reversed, NextCoupling(k));
      Sync();
      Fetch<kFill>(k - kSets);
      StoreDiagonal(k);
      if (is_last) break;
      if (kSets == 1) {
        CopyWait();
        Sync();
        FormSquare(k - 1, square_next);
        FormGains<kFill>(k - 1, gains);
        Sync();
      }
      KeepGains<kFill>(k - 1, gains);
      Sync();
#pragma unroll
      for (int j = 0; j < kMost; ++j) {
#pragma unroll
        for (int e = 0; e < Products::kEntries; ++e) square[j][e] = square_next[j][e];
      }
    }
    if (kFill && last == 0) {
      StoreBlock(zrl(), false, level_.out.template Coupling<T>(range_.first - 1, n_));
    }
  }

  // The barrier of those who share the segment.
  __device__ static void Sync() {
    if constexpr (kWarps == 1) {
      SyncWarp();
    } else {
      __syncthreads();
    }
  }

  // --- What it waits for, and whom it tells -----------------------------------------------------

  // The separators' blocks in the chain above are left by the segments that they are in there.
  __device__ void AwaitAbove() const {
    if (assignment_.level_index > 0 && thread_ < 2) {
      const SegmentsLevel& above = args_.levels[assignment_.level_index - 1];
      const int64_t separator = thread_ == 0 ? range_.left : range_.right;
      if (separator >= 0) {
        const uint32_t* const flag = Done(above, above.shape.segment_of(separator));
        while (!IsRaised(flag, args_.epoch)) {
        }
      }
    }
    Sync();
  }
  __device__ void Release() const {
    if (assignment_.level_index + 1 == args_.num_levels) return;
    SyncToSignal();
    if (thread_ == 0) RaiseFlag(Done(level_, assignment_.segment), args_.epoch);
  }
  __device__ uint32_t* Done(const SegmentsLevel& level, int64_t segment) const {
    return args_.done + level.segments_before + segment - level.first_segment;
  }

  // --- Blocks that come and go ------------------------------------------------------------------

  __device__ T* zrl() const { return zrr_ + kSquare; }
  __device__ T* zll() const { return zrr_ + 2 * kSquare; }
  __device__ T* V(int k) const { return zrr_ + (3 + 3 * (k & (kSets - 1))) * kSquare; }
  __device__ T* C(int k) const { return V(k) + kSquare; }
  __device__ T* W(int k) const { return V(k) + 2 * kSquare; }

  __device__ const Chain& Above() const {
    return assignment_.level_index > 0 ? args_.levels[assignment_.level_index - 1].out
                                       : args_.above;
  }
  __device__ bool HasTarget() const { return range_.target() >= 0; }
  // Where what the k-th interior has goes; null: it is not wanted.
  __device__ T* Wanted(const gpu::Walk& walk, int k) const {
    return walk.at == nullptr || k > assignment_.most ? nullptr : walk.template At<T>(k);
  }
  // Where Z(j,r) goes, or its transpose if the segment is not reversed.
  __device__ T* NextCoupling(int k) const {
    return k < assignment_.most ? Wanted(assignment_.coupling, k) : nullptr;
  }

  // body(row, column) for the entries of a block, a thread's in one row.
  template <typename Body>
  __device__ void ForEach(const Body& body) const {
    constexpr int kAtOnce = kThreads / kTile;
    static_assert(kThreads % kTile == 0 && kTile % kAtOnce == 0);
    const int row = static_cast<int>(threadIdx.x % kTile);
    const int first = static_cast<int>(threadIdx.x / kTile);
    if (row >= n_) return;
#pragma unroll 4
    for (int column = 0; column < kTile; column += kAtOnce) {
      if (column + first < n_) body(row, column + first);
    }
  }
  // Zeros in all tiles: outside of the blocks they stay, whatever takes whose place.
  __device__ void Clear() const {
#pragma unroll 4
    for (int i = thread_; i < kSharedScalars; i += kThreads) zrr_[i] = 0;
    Sync();
  }
  // Starts copies of what the k-th interior has in the factor, a group of them, empty if the walk
  // does not come there.
  template <bool kFill>
  __device__ void Fetch(int k) const {
    if (k >= assignment_.last) {
      LoadTriangle(assignment_.inverse.template At<const T>(k), V(k));
      if (k + 1 < range_.count || HasTarget()) {
        LoadSquare(assignment_.next.template At<const T>(k), C(k));
      }
      if (kFill) LoadSquare(assignment_.fill.template At<const T>(k), W(k));
    }
    CopyCommit();
  }
  // Lets it come closer.
  __device__ void Ask(int k) const {
    Ask(assignment_.inverse.template At<const T>(k), n_ * (n_ + kPanelColumns) / 2);
    Ask(assignment_.next.template At<const T>(k), n_ * n_);
    if (range_.has_fill()) Ask(assignment_.fill.template At<const T>(k), n_ * n_);
  }
  __device__ void Ask(const T* from, int scalars) const {
    constexpr int kLine = 128 / static_cast<int>(sizeof(T));
    for (int i = thread_ * kLine; i < scalars; i += kThreads * kLine) Prefetch(from + i);
  }
  __device__ void LoadSquare(const T* from, T* to) const {
    if (kTile >= 32 && n_ == kTile) {
      constexpr int kVector = 16 / static_cast<int>(sizeof(T)), kVectors = kTile / kVector;
#pragma unroll 4
      for (int i = thread_; i < kVectors * kTile; i += kThreads) {
        CopyAsync16(to + i / kVectors * kLead + i % kVectors * kVector, from + i * kVector);
      }
      return;
    }
    ForEach([&](int row, int column) {
      CopyAsync(to + column * kLead + row, from + column * n_ + row);
    });
  }
  // inv(L), whose columns are the rows of V; zeros above its diagonal as far as those are read.
  __device__ void LoadTriangle(const T* stored, T* to) const {
    ForEach([&](int row, int column) {
      if (row < column / kRows * kRows) return;
      const int first = column / kPanelColumns * kPanelColumns;
      const int at = first * n_ - first * (first - kPanelColumns) / 2 +
                     (column - first) * (n_ - first) + row - first;
      T* const place = to + column * kLead + row;
      if (row >= column) {
        CopyAsync(place, stored + at);
      } else {
        *place = 0;
      }
    });
  }
  // Z of the separators that a walk begins with; the right one's is of this chain too.
  __device__ void BringDown() const {
    const Chain& above = Above();
    LoadSquare(above.template Diagonal<T>(range_.reversed ? range_.left : range_.right, n_), zrr_);
    if (range_.has_fill()) {
      LoadSquare(above.template Coupling<T>(range_.left, n_), zrl());
      LoadSquare(above.template Diagonal<T>(range_.left, n_), zll());
    }
    CopyWait();
    Sync();
    if (range_.right >= 0) StoreDiagonal(static_cast<int>(range_.count));
  }

  // zrr_ as Z(j,j) of the k-th interior or, k = count, of the block after the last one.
  __device__ void StoreDiagonal(int k) const {
    StoreBlock(zrr_, false, Wanted(assignment_.diagonal, k));
    T* const entries = Wanted(assignment_.entries, k);
    if (entries && thread_ < n_) entries[thread_] = zrr_[thread_ * (kLead + 1)];
  }
  __device__ void StoreBlock(const T* tile, bool transposed, T* out) const {
    if (out == nullptr) return;
    const int along = transposed ? kLead : 1, across = transposed ? 1 : kLead;
    ForEach(
        [&](int row, int column) { out[column * n_ + row] = tile[row * along + column * across]; });
  }

  // --- Products ---------------------------------------------------------------------------------

  // n, whole eights.
  __device__ int depth() const { return kTile <= 16 ? kTile : (n_ + 7) / 8 * 8; }

  // V V'. Row i of V begins in column i.
  __device__ void FormSquare(int k, Square& square) const {
    const T* const v = V(k);
    WithStrip(square, [&](auto& sums) {
#pragma unroll 2
      for (int at = strip_.row; at < depth(); at += 8) {
        Left left;
        Products::LoadLeftAcross(left, v + strip_.row * kLead, at);
        Products::template Multiply<true>(sums, left, v + strip_.column * kLead, at);
      }
    });
  }

  // True if the warp's i-th product is the one with W, or the left separator's.
  template <bool kFill>
  __device__ bool IsSecond(int i) const {
    return kFill && (kProducts<kFill> == 2 ? i == 1 : half_ == 1);
  }
  // The warp's first column of a product; kTile: it has none.
  template <bool kFill>
  __device__ int Column() const {
    return kFill ? 0 : half_ * kStrip<kFill> * kColumns;
  }

  template <bool kFill>
  __device__ void FormGains(int k, Strips<kFill>& gains) const {
    const int column = Column<kFill>();
    if (column >= kTile) return;
#pragma unroll 2
    for (int at = row_; at < depth(); at += 8) {
      Left left;
      Products::LoadLeftAcross(left, V(k) + row_ * kLead, at);
#pragma unroll
      for (int i = 0; i < kProducts<kFill>; ++i) {
        Products::template Multiply<false>(gains[i], left, Gain<kFill>(k, i) + column, at);
      }
    }
  }
  template <bool kFill>
  __device__ void KeepGains(int k, const Strips<kFill>& gains) const {
#pragma unroll
    for (int i = 0; i < kProducts<kFill>; ++i) {
      Keep<true>(gains[i], Gain<kFill>(k, i), Column<kFill>());
    }
  }
  // Where C or W is, then G or H.
  template <bool kFill>
  __device__ T* Gain(int k, int i) const {
    return IsSecond<kFill>(i) ? W(k) : C(k);
  }

  template <bool kFill>
  __device__ void FormCouplings(int k) const {
    const int column = Column<kFill>();
    Strips<kFill> sums = {};
#pragma unroll
    for (int i = 0; i < kProducts<kFill>; ++i) {
      if (IsSecond<kFill>(i)) {
        AddProduct<true>(sums[i], C(k), zrl());
        AddProduct<false>(sums[i], W(k), zll());
      } else if (column < kTile) {
        AddProduct<false>(sums[i], C(k), zrr_ + column);
        if (kFill) AddProduct<false>(sums[i], W(k), zrl());
      }
    }
    Sync();
#pragma unroll
    for (int i = 0; i < kProducts<kFill>; ++i) {
      Keep<false>(sums[i], IsSecond<kFill>(i) ? zrl() : V(k), column);
    }
  }
  // sums += A B of the warp's rows of A; `b` as Products::Multiply has it.
  template <bool kAcross, int kTiles>
  __device__ void AddProduct(Sum (&sums)[kTiles], const T* a, const T* b) const {
#pragma unroll 2
    for (int at = 0; at < depth(); at += 8) {
      Left left;
      Products::LoadLeft(left, a + row_, at);
      Products::template Multiply<kAcross>(sums, left, b, at);
    }
  }
  // Into the warp's rows of a tile, from a column on.
  template <bool kMinus, int kTiles>
  __device__ void Keep(const Sum (&sums)[kTiles], T* tile, int column) const {
    if (column >= kTile) return;
#pragma unroll
    for (int j = 0; j < kTiles; ++j) {
      T* const to = tile + (column + j * kColumns) * kLead + row_;
#pragma unroll
      for (int e = 0; e < Products::kEntries; ++e) {
        to[Products::Column(e) * kLead + Products::Row(e)] =
            static_cast<T>(kMinus ? -sums[j][e] : sums[j][e]);
      }
    }
  }

  template <bool kFill>
  __device__ void AddCouplings(int k, Square& square) const {
    WithStrip(square, [&](auto& sums) {
#pragma unroll 2
      for (int at = 0; at < depth(); at += 8) {
        Left left;
        Products::LoadLeft(left, C(k) + strip_.row, at);
        Products::template Multiply<false>(sums, left, V(k) + strip_.column, at);
        if (!kFill) continue;
        Products::LoadLeft(left, W(k) + strip_.row, at);
        Products::template Multiply<false>(sums, left, zrl() + strip_.column, at);
      }
    });
  }
  // Z(j,j) in place of Z(r,r), both triangles.
  __device__ void KeepSquare(const Square& square) const {
#pragma unroll
    for (int j = 0; j < kMost; ++j) {
      if (j >= strip_.tiles) break;
#pragma unroll
      for (int e = 0; e < Products::kEntries; ++e) {
        const int row = strip_.row + Products::Row(e);
        const int column = strip_.column + j * kColumns + Products::Column(e);
        if (column > row) continue;
        const T value = static_cast<T>(square[j][e]);
        zrr_[column * kLead + row] = value;
        zrr_[row * kLead + column] = value;
      }
    }
  }

  const InvertSegmentsArgs& args_;
  const SegmentsLevel& level_;
  const WalkAssignment& assignment_;
  const SegmentRange& range_;
  const int n_;
  // Rows of V are longer the further up: so warps of the same scheduler have some of either.
  const int thread_, warp_, half_, row_;
  const Strip strip_;
  T* const zrr_;
};

}  // namespace blockd::gpu::inverse

#endif  // BLOCKD_ENGINE_GPU_INVERSE_SEGMENT_WALK_H_
