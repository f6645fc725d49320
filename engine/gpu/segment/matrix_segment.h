// Device code: a segment of small blocks, D, C and W in shared memory, its products by matrix
// instructions of single warps. Half of the warps invert the next diagonal block while the others
// form S and the left separator's update.
#ifndef BLOCKD_ENGINE_GPU_SEGMENT_MATRIX_SEGMENT_H_
#define BLOCKD_ENGINE_GPU_SEGMENT_MATRIX_SEGMENT_H_

#include "engine/gpu/segment/small_segment.h"

namespace blockd::gpu {

// A lower triangle's rows, 16 at a time, are formed in pieces of so many tiles of 8 columns.
BLOCKD_HOST_DEVICE constexpr int PiecesOfRow(int row_tile, int piece_tiles) {
  return (2 * (row_tile + 1) + piece_tiles - 1) / piece_tiles;
}
constexpr int CountPieces(int row_tiles, int piece_tiles) {
  int pieces = 0;
  for (int r = 0; r < row_tiles; ++r) pieces += PiecesOfRow(r, piece_tiles);
  return pieces;
}

template <typename T, int kTile, bool kFull>
class MatrixSegment : SmallSegment<T, kTile, kFull> {
  using Base = SmallSegment<T, kTile, kFull>;
  using Base::args_, Base::assignment_, Base::range_, Base::outcome_, Base::thread_, Base::warp_;
  using Base::HasNext, Base::Stored, Base::n;
  using Base::kLead, Base::kThreads, Base::kWarps;
  using Real = Arithmetic<T, kTile>;
  using Layout = ResultLayout<Real>;
  static constexpr int kRowTiles = kTile / 16;
  // Columns of a product that a warp forms at a time: half of them, if an instruction has no more.
  static constexpr int kPart = kTile / 2 < kProductColumns ? kTile : kTile / 2;
  static constexpr int kParts = kTile / kPart, kPartTiles = kPart / kProductColumns;
  // Threads that store an inverse.
  static constexpr int kStorers = 4 * kTile;
  using Copies = TileCopies<T, kTile, kFull, kThreads>;
  // Half of the warps, which have 16 rows each. Those that invert and the others have barriers of
  // their own or, where there are none, go one after the other with those of all warps.
  static constexpr int kHalf = kRowTiles;
  static constexpr int kTogether = kHasPartBarriers ? kHalf : kWarps;
  static constexpr int kInverterBarrier = kHasPartBarriers ? 1 : 0;
  static constexpr int kFillBarrier = kHasPartBarriers ? 2 : 0;
  // A lower triangle is formed in pieces of 16 rows and as many columns as registers allow. At a
  // segment's end a warp has those of W W' with its number modulo kWarps, and those of C C' go to
  // the last kCoreWarps, so that the warps of each scheduler have as many. In between some of W W'
  // fill the last round of C C'.
  static constexpr int kPieceTiles = sizeof(Real) == 4 ? 4 : 2;
  static constexpr int kPieces = CountPieces(kRowTiles, kPieceTiles);
  static constexpr int kBesideNext = kWarps - 1 - (kPieces - 1) % kWarps;

 public:
  static constexpr int kSharedScalars = 3 * kTile * kLead;

  __device__ MatrixSegment(const EliminateSegmentsArgs& args, const Assignment& assignment,
                           T* shared, Outcome* outcome, int thread)
      : Base(args, assignment, outcome, thread),
        d_(shared),
        c_(d_ + kTile * kLead),
        w_(c_ + kTile * kLead) {}

  __device__ void Run() {
    if (range_.count > 0) Eliminate();
    this->Release();
  }

 private:
  __device__ void Eliminate() {
    this->Await();
    const DiagonalSource<T> source = this->Diagonal(0);
    const T mine = thread_ < n() ? source.At(thread_, thread_) : T{1};
    Copies::LoadDiagonal(d_, source, n(), thread_);
    if (thread_ < kTile) d_[thread_ * kLead + KeptRow(0)] = mine;
    if (Stores()) this->template BeginGrowth<kStorers>(d_, thread_);
    this->FindOthers();
    CopyWait();
    __syncthreads();
    const bool inverts = warp_ < kHalf;
    for (int k = 0;; ++k) {
      const bool last = this->IsLast(k);
      if (inverts && kHasPartBarriers) {
        Invert();
      } else {
        if (k > 0 && range_.has_fill()) {
          if (!inverts) UpdateLeft(k - 1, kBesideNext + warp_ - kHalf, kHalf);
          SyncFill();
          if (!inverts) UpdateFill();
          SyncFill();
        }
        if (!inverts) {
          const int beside = thread_ - kHalf * kWarp;
          if (k == 0 && range_.has_fill()) {
            Copies::LoadCoupling(w_, this->LeftCoupling(), n(), beside, kHalf * kWarp);
          }
          FetchNext(k, beside, kHalf * kWarp);
        }
        if (!kHasPartBarriers) Invert();
      }
      CopyWait();
      __syncthreads();
      if (this->HasFailed(k)) return;
      if (Stores()) {
        this->template StoreInverse<kStorers>(k, d_, KeptRow(k), d_, thread_);
        if (last) this->template ReportGrowth<kStorers>(d_, thread_);
      }
      if (!HasNext(last)) return;
      Divide(k);
      __syncthreads();
      if (last) return Finish(k);
      UpdateNext(k);
      __syncthreads();
    }
  }

  __device__ void Invert() {
    TileInverter<kTile, kTogether, T, kInverterBarrier>(d_, &outcome_->failed, warp_).Run();
  }
  __device__ bool Stores() const { return kStorers == kThreads || thread_ < kStorers; }
  // Where the k-th D's diagonal is kept: in the padding, until the next but one's.
  __device__ static int KeptRow(int k) { return kTile + static_cast<int>(k & 1); }
  __device__ static void SyncFill() { SyncPart<kFillBarrier, kTogether>(); }

  // E of the k-th interior into c_. The next diagonal block has no place yet: it comes closer.
  __device__ void FetchNext(int k, int thread, int threads) const {
    const bool last = this->IsLast(k);
    if (!HasNext(last)) return;
    Copies::LoadCoupling(c_, this->NextCoupling(k), n(), thread, threads);
    if (last && range_.reversed) return;
    const DiagonalSource<T> source = this->NextDiagonal(k, last);
    const int scalars = source.packed ? n() * (n() + 1) / 2 : n() * n();
    constexpr int kLine = 128 / sizeof(T);
    for (int i = thread * kLine; i < scalars; i += threads * kLine) {
      Prefetch(source.first + i);
      if (source.second) Prefetch(source.second + i);
    }
  }

  // C = E inv(L)' and W = S inv(L)', in place and to the factor. A warp has 16 whole rows of one,
  // the right part first, for a column needs what is left of it; without W, a part of 16 rows of C.
  __device__ void Divide(int k) const {
    const bool second = warp_ >= kRowTiles, fill = second && range_.has_fill();
    const int row = warp_ % kRowTiles * 16;
    T* const rows = (fill ? w_ : c_) + row;
    T* const out = Stored(k, fill);
    int first = second && !fill ? 0 : (kTile - kPart) / 8;  // the part's, in eights
    // A warp may have nothing.
    const bool works = kParts > 1 || !second || fill;
#pragma unroll 1
    for (;;) {
      Real sums[kPartTiles][4] = {};
      const T* const inverse = d_ + 8 * first;
#pragma unroll 2
      for (int k = 0; k < 8 * first; k += 8) MultiplyRow(sums, rows, inverse, k);
#pragma unroll
      for (int k = 0; k < kPart; k += 8) {
        MultiplyRow(sums, rows + 8 * first * kLead, inverse + 8 * first * kLead, k, k);
      }
      if (range_.has_fill()) {
        SyncWarp();
      } else {
        __syncthreads();
      }
      if (!works) break;
#pragma unroll
      for (int j = 0; j < kPartTiles; ++j) {
        const int column = 8 * first + kProductColumns * j;
        StoreTile<kLead>(rows + column * kLead, sums[j]);
        StoreGlobal(out, row, column, sums[j]);
      }
      if (first == 0 || !range_.has_fill()) break;
      first = 0;
    }
  }

  // sums += A B' of 16 rows of A, their columns k to k + 7, with rows of B from `first` on, a
  // multiple of eight.
  template <int kColumns>
  __device__ static void MultiplyRow(Real (&sums)[kColumns][4], const T* a, const T* b, int k,
                                     int first = 0) {
    LeftOperand<Real> left;
    RightOperand<Real> right[kColumns];
    LoadRows<kLead, Real>(left, a, k);
#pragma unroll
    for (int j = 0; j < kColumns; ++j) {
      const int row = kProductColumns * j;
      if (row + kProductColumns <= first) continue;
      right[j][0] = RowFragment<kLead, Real>(b + row, k);
      right[j][1] = RowFragment<kLead, Real>(b + row, k + 4);
      // The upper eight of sixteen.
      if (kProductColumns > 8 && row < first && (OperandRow() & 8) == 0)
        right[j][0] = right[j][1] = 0;
      if constexpr (sizeof(Real) == 8) MmaDepth8(sums[j], left, right[j]);
    }
    if constexpr (sizeof(Real) == 4) {
      MultiplyTiles(sums, left, right, first / kProductColumns);
    }
  }

  // The result of MmaDepth8 at (row, column) of a column-major block.
  __device__ void StoreGlobal(T* out, int row, int column, const Real (&c)[4]) const {
    row += Layout::Row(), column += Layout::Column();
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const int r = row + Layout::Down(e), l = column + Layout::Across(e);
      if (r < n() && l < n()) out[l * n() + r] = static_cast<T>(c[e]);
    }
  }

  // D = D_next - C C'. What warps have no piece of is the left separator's.
  __device__ void UpdateNext(int k) const {
    const DiagonalSource<T> next = this->Diagonal(k + 1);
    int i = warp_;
#pragma unroll 1
    for (; i < kPieces; i += kWarps) {
      const Piece piece(i);
      Entries entries;
      FormPiece(entries, c_, piece, next);
      KeepPiece(entries, piece, KeptRow(k + 1));
    }
    if (range_.has_fill() && i < kPieces + kBesideNext) UpdateLeft(k, i - kPieces, kPieces);
  }
  // The left separator's update, - W W' so far: every step-th piece from `first` on.
  __device__ void UpdateLeft(int k, int first, int step) const {
    T* const out = this->Left(1);
    DiagonalSource<T> before;
    if (k > 0) before.first = out;
#pragma unroll 1
    for (int i = first; i < kPieces; i += step) {
      const Piece piece(i);
      Entries entries;
      FormPiece(entries, w_, piece, before);
      StorePiece(entries, piece, out);
    }
  }
  // S = -W C' in place of W; a warp has whole rows.
  __device__ void UpdateFill() const {
    const int row = (warp_ - kHalf) * 16;
    Real sums[kParts][kPartTiles][4] = {};
    MultiplyFill(sums, row, 0);
    SyncWarp();
#pragma unroll
    for (int j = 0; j < kParts * kPartTiles; ++j) {
      const Real(&sum)[4] = sums[j / kPartTiles][j % kPartTiles];
      const Real minus[4] = {-sum[0], -sum[1], -sum[2], -sum[3]};
      StoreTile<kLead>(w_ + kProductColumns * j * kLead + row, minus);
    }
  }

  // All that the last interior leaves on the separators, by all warps.
  __device__ void Finish(int k) const {
    constexpr int kCoreWarps = kTile == 128 ? 12 : kTile == 64 ? 6 : kTile == 32 ? 2 : 1;
    const bool fill = range_.has_fill();
    if (fill) UpdateLeft(k, warp_, kWarps);
    const DiagonalSource<T> next = this->NextDiagonal(k, true);
    T* const target = this->Target();
    const int core_warps = fill ? kCoreWarps : kWarps, last = kWarps - 1 - warp_;
#pragma unroll 1
    for (int i = last < core_warps ? last : kPieces; i < kPieces; i += core_warps) {
      const Piece piece(i);
      Entries entries;
      FormPiece(entries, c_, piece, next);
      StorePiece(entries, piece, target);
    }
    if (!fill) return;
    if (warp_ / kRowTiles >= kParts) return;
    const int row = warp_ % kRowTiles * 16;
    const int column = warp_ / kRowTiles * kPart;
    T* const coupling = this->Left(2);
    Real sums[1][kPartTiles][4] = {};
    MultiplyFill(sums, row, column);
#pragma unroll
    for (int j = 0; j < kPartTiles; ++j) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int r = row + Layout::Row() + Layout::Down(e);
        const int c = column + kProductColumns * j + Layout::Column() + Layout::Across(e);
        if (r < n() && c < n()) coupling[r * n() + c] = static_cast<T>(-sums[0][j][e]);
      }
    }
  }

  // sums = W C' of 16 rows, from `column` on.
  template <int kHere>
  __device__ void MultiplyFill(Real (&sums)[kHere][kPartTiles][4], int row, int column) const {
#pragma unroll 2
    for (int k = 0; k < kTile; k += 8) {
#pragma unroll
      for (int h = 0; h < kHere; ++h) {
        MultiplyRow(sums[h], w_ + row, c_ + column + h * kPart, k);
      }
    }
  }

  // A piece of a lower triangle, and this lane's entries of it: entry e is at (Row(e), Column(e))
  // and, above the diagonal, nobody's.
  struct Piece {
    int first_row = 0, first_column = 0;
    int row, column;

    __device__ explicit Piece(int i) {
      int row_tile = 0;
      while (i >= PiecesOfRow(row_tile, kPieceTiles)) i -= PiecesOfRow(row_tile++, kPieceTiles);
      first_row = 16 * row_tile, first_column = 8 * kPieceTiles * i;
      row = first_row + Layout::Row(), column = first_column + Layout::Column();
    }
    // As many rows and columns further than the first entry.
    __device__ static constexpr int Down(int e) { return Layout::Down(e % 4); }
    __device__ static constexpr int Across(int e) {
      return e / 4 * kProductColumns + Layout::Across(e % 4);
    }
    __device__ int Row(int e) const { return row + Down(e); }
    __device__ int Column(int e) const { return column + Across(e); }
    __device__ bool Has(int e, int n) const { return Row(e) < n && Column(e) <= Row(e); }
  };

  static constexpr int kMine = 32 * kPieceTiles / kProductColumns;
  using Entries = T[kMine];

  // start = the block `there`, zero where it is null, minus rows rows', in one piece.
  __device__ void FormPiece(Entries& start, const T* rows, const Piece& piece,
                            const DiagonalSource<T>& there) const {
    const T* const first = there.first;
    const T* const second = there.second;
    const bool packed = there.packed;
    // All that is read is on its way while the sums are formed.
    T more[kMine];
    const int n = this->n();
    const int corner = piece.column * n + piece.row;
    if (packed) {
#pragma unroll
      for (int e = 0; e < kMine; ++e) {
        const int c = piece.Column(e), at = c * n + piece.Row(e) - c * (c + 1) / 2;
        start[e] = piece.Has(e, n) ? first[at] : T{0};
        more[e] = 0;
      }
    } else {
      // So that entries are at fixed distances.
#pragma unroll
      for (int e = 0; e < kMine; ++e) {
        const int at = Piece::Across(e) * n + Piece::Down(e);
        const bool has = piece.Has(e, n);
        start[e] = has && first ? (first + corner)[at] : T{0};
        more[e] = has && second ? (second + corner)[at] : T{0};
      }
    }
    Real sums[kMine / 4][4] = {};
#pragma unroll 2
    for (int k = 0; k < kTile; k += 8) {
      MultiplyRow(sums, rows + piece.first_row, rows + piece.first_column, k);
    }
#pragma unroll
    for (int e = 0; e < kMine; ++e) {
      start[e] = static_cast<T>(static_cast<Real>(start[e] + more[e]) - sums[e / 4][e % 4]);
    }
  }
  __device__ void StorePiece(const Entries& entries, const Piece& piece, T* out) const {
    const int n = this->n();
    T* const to = out + piece.column * n + piece.row;
#pragma unroll
    for (int e = 0; e < kMine; ++e) {
      if (piece.Has(e, n)) to[Piece::Across(e) * n + Piece::Down(e)] = entries[e];
    }
  }
  // To d_, where the 8 x 8 tiles on the diagonal are whole, and the diagonal to `kept_row`.
  __device__ void KeepPiece(const Entries& entries, const Piece& piece, int kept_row) const {
    const int n = this->n();
    T* const kept = d_ + piece.column * kLead + kept_row;
#pragma unroll
    for (int e = 0; e < kMine; ++e) {
      const int r = piece.Row(e), c = piece.Column(e);
      if (c > r) continue;
      const T value = r < n ? entries[e] : r == c ? T{1} : T{0};
      d_[c * kLead + r] = value;
      if (c / 8 == r / 8) d_[r * kLead + c] = value;
      if (piece.row - piece.column == Piece::Across(e) - Piece::Down(e)) {
        kept[Piece::Across(e) * kLead] = value;
      }
    }
  }

  T* const d_;
  T* const c_;
  T* const w_;
};

}  // namespace blockd::gpu

#endif  // BLOCKD_ENGINE_GPU_SEGMENT_MATRIX_SEGMENT_H_
