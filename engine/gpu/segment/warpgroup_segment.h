// Device code: a segment of blocks of up to 64 rows of float, its products by warpgroups (sm_90a).
//
// One warpgroup inverts, the other multiplies. X = inv(L) comes in spans of 32 rows, X(1,0) =
// X(1,1) R, so that C = E X' and W = S X' come in halves, of which only the last ones wait for all
// of X:
//
//     beside the second span's inverse   C0 = E0 X(0,0)',  T = E1 + E0 R',  C0 C0'
//                                        W0 = S0 X(0,0)',  U = S1 + S0 R'
//     when that is there                 C1 = T X(1,1)',   D_next -= C0 C0' + C1 C1'
//     beside the next block's inverse    W1 = U X(1,1)',   W W',  S = -W C'
#ifndef BLOCKD_ENGINE_GPU_SEGMENT_WARPGROUP_SEGMENT_H_
#define BLOCKD_ENGINE_GPU_SEGMENT_WARPGROUP_SEGMENT_H_

#include "engine/gpu/segment/small_segment.h"
#include "engine/gpu/segment/warpgroup_products.h"

namespace blockd::gpu {

template <typename T, int kTile, bool kFull>
class WarpgroupSegment : SmallSegment<T, kTile, kFull>, WarpgroupProducts<T, kTile> {
  using Base = SmallSegment<T, kTile, kFull>;
  using Products = WarpgroupProducts<T, kTile>;
  using Base::kThreads, Base::range_, Base::thread_, Base::warp_, Base::outcome_;
  using Products::AddTriangle, Products::DivideFirst, Products::KeepParts, Products::KeepTriangle,
      Products::LoadParts, Products::Multiply, Products::Split;
  using Products::kGroup, Products::kGroupWarps, Products::kHalfPart, Products::kLead,
      Products::kPart, Products::kSpan, Products::kSteps, Products::kTiles;
  using typename Products::Half, typename Products::Lanes, typename Products::Parts,
      typename Products::Sums;
  static constexpr int kSquare = kTile * kLead;
  // Barriers of either warpgroup, and of the second with those of the first that do not invert a
  // span. Where there are no barriers of parts all warps do all in the order that it needs.
  static constexpr int kInverters = kHasPartBarriers ? kGroupWarps : 2 * kGroupWarps;
  static constexpr int kFirstBarrier = kHasPartBarriers ? 1 : 0;
  static constexpr int kHelpers = 2;  // warps of the first that have no part in a span's inverse
  using Copies = TileCopies<T, kTile, kFull, kGroup>;

 public:
  static constexpr int kSharedScalars = 2 * kSquare + 4 * kPart + Products::kTriangle;

  __device__ WarpgroupSegment(const EliminateSegmentsArgs& args, const Assignment& assignment,
                              T* shared, Outcome* outcome, int thread)
      : Base(args, assignment, outcome, thread),
        squares_(shared),
        c_(reinterpret_cast<uint32_t*>(shared + 2 * kSquare)),
        w_(c_ + 2 * kPart),
        left_sums_(shared + 2 * kSquare + 4 * kPart) {}

  __device__ void Run() {
    if (range_.count == 0) return this->Release();
    this->Await();
    LoadDiagonal<kThreads>(squares_, this->Diagonal(0), thread_);
    if (first()) this->template BeginGrowth<kGroup>(squares_, thread_);
    this->FindOthers();
    CopyWait();
    __syncthreads();
    if (kHasPartBarriers && first()) {
      InvertAll();
    } else if (range_.has_fill()) {
      MultiplyAll<true>();
    } else {
      MultiplyAll<false>();
    }
  }

 private:
  __device__ bool first() const { return warp_ < kGroupWarps; }
  __device__ bool second() const { return kHasPartBarriers || !first(); }
  __device__ int count() const { return static_cast<int>(range_.count); }
  __device__ T* Square(int k) const { return squares_ + (k & 1) * kSquare; }
  __device__ static void SyncSecond() {
    SyncPart<kHasPartBarriers ? 2 : 0, kHasPartBarriers ? kGroupWarps : 2 * kGroupWarps>();
  }
  // R of the block and what is to be multiplied with it are there.
  __device__ static void SyncMiddle() {
    if constexpr (kHasPartBarriers) SyncPart<3, kGroupWarps + kHelpers>();
  }

  // The first warpgroup's work beside its inverse of the k-th D.
  struct Beside {
    const WarpgroupSegment& segment;
    int k;
    bool next;

    __device__ void Span(int span) const {
      const int thread = (segment.InverterWarp() - 1) * kWarp + Lane();
      if (thread >= kHelpers * kWarp) return;
      if (span == 0) {
        if (k > 0) segment.template StoreCoupling<kHelpers * kWarp>(k - 1, thread);
      } else if (next) {
        SyncMiddle();
      }
    }
    __device__ void Inverted() const { __syncthreads(); }
  };
  template <typename Work>
  struct Before {
    const Work& work;
    __device__ void Span(int) const {}
    __device__ void Inverted() const { work(); }
  };
  template <typename Work>
  __device__ void Invert(T* d, const Work& beside) const {
    TileInverter<kTile, kInverters, T, kFirstBarrier, true>(d, &outcome_->failed, InverterWarp())
        .Run(beside);
  }
  // Its number where warp 0 inverts spans: not on the same scheduler in both thread blocks of a
  // multiprocessor.
  __device__ int InverterWarp() const {
    return kHasPartBarriers
               ? (warp_ + kGroupWarps - outcome_->first_warp % kGroupWarps) % kGroupWarps
               : warp_;
  }

  // The first warpgroup's part.
  __device__ void InvertAll() {
    const int count = this->count();
    const bool target = this->HasNext(true);
#pragma unroll 1
    for (int k = 0;; ++k) {
      const bool last = k + 1 == count;
      Invert(Square(k), Beside{*this, k, !last || target});
      if (this->HasFailed(k)) return this->Release();
      StoreInverse(k, thread_);
      if (last) break;
      __syncthreads();
    }
    this->template ReportGrowth<kGroup>(squares_, thread_);
    if (target) {
      __syncthreads();
      TakeC(Square(count));
    }
    this->Release();
    // Nobody in this launch waits for it.
    if (target) StoreCoupling<kGroup>(count - 1, thread_);
  }

  // The second's, or all. kFill: run_.has_fill().
  template <bool kFill>
  __device__ void MultiplyAll() {
    const int count = this->count();
    const bool target = this->HasNext(true);
    Half left[2];  // S, then W0 and U, then W
    int thread = thread_ - kGroup, k = 0;
    if (target || count > 1) {
      FetchFirst<kFill>(thread, left);
#pragma unroll 1
      for (;;) {
        Renew(thread);  // or registers keep the places of all that is copied
        T* const d = Square(k);
        T* const other = Square(k + 1);
        const bool last = k + 1 == count;
        Half start, rest;  // E
        ReadCoupling(start, rest);
        Parts t;
        Sums square[1];
        const auto begin = [&] { BeginDivision<kFill>(k, thread, start, rest, left, t, square); };
        if constexpr (kHasPartBarriers) {
          SyncMiddle();
          begin();
          __syncthreads();
        } else {
          if (first() && k > 0) StoreCoupling<kGroup>(k - 1, thread_);
          Invert(d, Before<decltype(begin)>{begin});
        }
        if (this->HasFailed(k)) return this->Release();
        if constexpr (!kHasPartBarriers) {
          if (first()) StoreInverse(k, thread_);
          __syncthreads();
        }
        Divide(d, thread, t, rest);
        if (!last) {
          SyncSecond();
          if (second()) FormNext(other, rest, square[0]);
        }
        __syncthreads();
        if (!kHasPartBarriers && first() && last) TakeC(other);
        const bool end = last || k + 1 == count - (target ? 0 : 1);
        if constexpr (kFill) {
          DivideFill(left);
          if (second()) {
            if (!last) StoreFill<1>(k, left[1]);
            UpdateLeft(k, last, left, [&] {
              if (end) return;
              FetchDiagonal(k + 1, thread);
              PrefetchCoupling(k + 1, thread);
            });
          }
        } else if (!end) {
          FetchDiagonal(k + 1, thread);
        }
        if (end) break;
        ++k;
        SyncSecond();  // all have done with W, which stood where E comes
        FetchCoupling(k, thread);
      }
      if (!target) ++k;
    }
    if (!target) {
      if constexpr (kHasPartBarriers) {
        __syncthreads();
        this->HasFailed(k);
      } else {
        if (first() && k > 0) StoreCoupling<kGroup>(k - 1, thread_);
        const auto nothing = [] {};
        Invert(Square(k), Before<decltype(nothing)>{nothing});
        __syncthreads();
        if (!this->HasFailed(k) && first()) StoreInverse(k, thread_);
      }
    }
    if (!kHasPartBarriers && first()) this->template ReportGrowth<kGroup>(squares_, thread_);
    this->Release();
    if (kFill && second()) Store<kGroup, kTiles>(this->Stored(count - 1, true), w_, thread);
    if (!kHasPartBarriers && first() && target) StoreCoupling<kGroup>(count - 1, thread_);
  }

  // Starts to load the block that the D after the k-th begins with.
  __device__ void FetchDiagonal(int k, int thread) const {
    const bool last = k + 1 == count();
    if (!second() || (last && range_.reversed)) return;
    LoadDiagonal<kGroup>(Square(k + 1), this->NextDiagonal(k, last), thread);
  }
  // A line a thread.
  __device__ void PrefetchCoupling(int k, int thread) const {
    const int at = thread * 32, n = this->n();
    if (at < n * n) Prefetch(this->NextCoupling(k).data + at);
  }
  // E, and all that was on its way.
  __device__ void FetchCoupling(int k, int thread) const {
    if (second()) {
      Copies::LoadCoupling(reinterpret_cast<T*>(w_), this->NextCoupling(k), this->n(), thread,
                           kGroup);
    }
    CopyWait();
    SyncSecond();
  }
  // All that the first block needs.
  template <bool kFill>
  __device__ void FetchFirst(int thread, Half (&left)[2]) const {
    T* const s = reinterpret_cast<T*>(c_);
    if (kFill && second()) {
      Copies::LoadCoupling(s, this->LeftCoupling(), this->n(), thread, kGroup);
    }
    FetchDiagonal(0, thread);
    FetchCoupling(0, thread);
    if (kFill && second()) {
      Read(left[0], s);
      Read(left[1], s + kSpan * kLead);
    }
  }
  __device__ void ReadCoupling(Half& start, Half& rest) const {
    if (!second()) return;
    const T* const e = reinterpret_cast<const T*>(w_);
    Read(start, e);
    Read(rest, e + kSpan * kLead);
  }

  template <int kBy>
  __device__ void LoadDiagonal(T* to, const DiagonalSource<T>& source, int thread) const {
    const bool aligned = reinterpret_cast<uintptr_t>(source.first) % 16 == 0;
    if (!kFull || source.second || source.packed || !aligned) {
      TileCopies<T, kTile, kFull, kBy>::LoadDiagonal(to, source, this->n(), thread);
      return;
    }
    const int row = thread % 16 * 4, column = thread / 16, below = (row - column / 8 * 8) / 8 * 8;
    if (row < column / 8 * 8) return;
    to += column * kLead + row;
    const T* const from = source.first + column * kTile + row;
#pragma unroll
    for (int first = 0; first <= below && first < kTile; first += kBy / 16) {
      CopyAsync16(to + first * kLead, from + first * kTile);
    }
  }
  // Half of a block's columns.
  __device__ void Read(Half& values, const T* block) const {
    const Lanes mine(thread_);
    block += mine.column() * kLead + mine.row();
#pragma unroll
    for (int j = 0; j < kSteps; ++j) {
#pragma unroll
      for (int e = 0; e < 4; ++e) values[j][e] = block[(8 * j + e % 2) * kLead + e / 2 * 8];
    }
  }

  // X(0,0) and R are there: C0, T in parts, C0 C0', W0 and U.
  template <bool kFill>
  __device__ void BeginDivision(int k, int thread, Half& start, Half& rest, Half (&left)[2],
                                Parts& t, Sums (&square)[1]) const {
    uint32_t* const x = c_ + kHalfPart;
    if (second()) Products::template SplitColumns<kTile>(Square(k), x, thread);
    ShareWithWarpgroups();
    SyncSecond();
    if (second()) {
      DivideFirst(start, rest, x);
      KeepParts(start, c_, thread_);
    }
    ShareWithWarpgroups();
    SyncSecond();
    if (!second()) return;
    if constexpr (kFill) {
      DivideFirst(left[0], left[1], x);
      KeepParts(left[0], w_, thread_);
      StoreFill<0>(k, left[0]);
    }
    Parts c0;
    LoadParts(c0, c_, thread_);
    Products::template MultiplyFrom<true>(square, c0, {c_});
    // TakeC goes on from there.
    if (k + 1 == count()) Subtract(Square(k + 1), square[0], range_.reversed);
    Split(t, rest);
  }
  // X(1,1) is there: C1.
  __device__ void Divide(const T* d, int thread, Parts& t, Half& rest) const {
    if (second())
      Products::template SplitColumns<kSpan>(d + kSpan * (kLead + 1), w_ + kHalfPart, thread);
    ShareWithWarpgroups();
    SyncSecond();
    if (second()) {
      Products::template MultiplyFrom<true>(reinterpret_cast<T(&)[1][kSteps][4]>(rest), t,
                                            {w_ + kHalfPart});
      KeepParts(rest, c_ + kHalfPart, thread_);
    }
    ShareWithWarpgroups();
  }
  __device__ void FormNext(T* other, const Half& rest, Sums& square) const {
    Multiply(square, rest, c_ + kHalfPart);
    Subtract(other, square, false);
  }
  // W1, and W in parts.
  __device__ void DivideFill(Half (&left)[2]) const {
    if (second()) {
      Parts u;
      Split(u, left[1]);
      Products::template MultiplyFrom<true>(reinterpret_cast<T(&)[1][kSteps][4]>(left[1]), u,
                                            {w_ + kHalfPart});
    }
    SyncSecond();  // X(1,1) stands where W1 comes
    if (second()) KeepParts(left[1], w_ + kHalfPart, thread_);
    ShareWithWarpgroups();
    SyncSecond();
  }

  // The left separator's update, of all interiors so far, and S. Of the last one both go to the
  // next level.
  template <typename Work>
  __device__ void UpdateLeft(int k, bool last, Half (&left)[2], const Work& beside) const {
    Sums sums[2] = {};
    if (k > 0) AddTriangle(sums[0], left_sums_, thread_);
#pragma unroll 1
    for (int half = 0; half < 2; ++half) {
      Parts w;
      LoadParts(w, w_ + half * kHalfPart, thread_);
      Products::MultiplyFrom(sums, w, {w_ + half * kHalfPart, c_ + half * kHalfPart}, [&] {
        if (half == 0) beside();
      });
    }
#pragma unroll
    for (int i = 0; i < kTiles * 4; ++i) {
      left[i / 4 / kSteps][i / 4 % kSteps][i % 4] = -sums[1][i / 4][i % 4];
    }
    if (!last) return KeepTriangle(sums[0], left_sums_, thread_);
    StoreMinus(this->Left(1), sums[0]);
    StoreMinus(this->Left(2), sums[1]);
  }

  // Subtracts C1 C1' of the last block from `next`, for the target. By the first warpgroup.
  __device__ void TakeC(const T* next) const {
    Sums sums[1];
    Parts c1;
    LoadParts(c1, c_ + kHalfPart, thread_);
    Products::template MultiplyFrom<true>(sums, c1, {c_ + kHalfPart});
    const T* const place = Place8(next);
#pragma unroll
    for (int i = 0; i < 2 * kTiles; ++i) {
      T two[2];
      LoadVector(two, place + i % 2 * 8 * kLead + i / 2 * 8);
#pragma unroll
      for (int e = 0; e < 2; ++e) sums[0][i / 2][i % 2 * 2 + e] -= two[e];
    }
    StoreMinus(this->Target(), sums[0]);
  }

  // Where the transposes of a lane's first two entries are in a square.
  template <typename Scalar>
  __device__ Scalar* Place8(Scalar* square) const {
    const Lanes mine(thread_);
    return square + mine.row() * kLead + mine.column();
  }
  // A symmetric square -= sums; it is zero if it is none.
  __device__ void Subtract(T* square, const Sums& sums, bool none) const {
    T* const place = Place8(square);
#pragma unroll
    for (int i = 0; i < 2 * kTiles; ++i) {
      T* const to = place + i % 2 * 8 * kLead + i / 2 * 8;
      T two[2];
      LoadVector(two, to);
#pragma unroll
      for (int e = 0; e < 2; ++e) two[e] = (none ? T{0} : two[e]) - sums[i / 2][i % 2 * 2 + e];
      StoreVector(to, two);
    }
  }

  template <int kBy>
  __device__ void StoreCoupling(int k, int thread) const {
    Store<kBy>(this->Stored(k, false), c_, thread);
  }
  // Stores a matrix in parts to the factor: the first kBy threads, from the kFrom-th chunk of four
  // columns on.
  template <int kBy, int kFrom = 0>
  __device__ void Store(T* out, const uint32_t* parts, int thread) const {
    const int row = thread % kTile, odd = thread / kTile, n = this->n();
    const uint4* const from = reinterpret_cast<const uint4*>(parts) + thread;
    out += odd * n + row;
#pragma unroll
    for (int i = kFrom; i < 2 * kTiles; i += kBy / kTile) {
      const uint4 big = from[i * kTile], small = from[i * kTile + kPart / 4];
      const T values[4] = {__uint_as_float(big.x) + __uint_as_float(small.x),
                           __uint_as_float(big.y) + __uint_as_float(small.y),
                           __uint_as_float(big.z) + __uint_as_float(small.z),
                           __uint_as_float(big.w) + __uint_as_float(small.w)};
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int column = i / 2 * 8 + i % 2 + 2 * e;
        if (kFull || (row < n && column + odd < n)) out[column * n] = values[e];
      }
    }
  }
  // A half of W to the factor.
  template <int kHalf>
  __device__ void StoreFill(int k, const Half& values) const {
    const Lanes mine(thread_);
    const int n = this->n(), row = mine.row(), column = mine.column() + kHalf * kSpan;
    T* const out = this->Stored(k, true) + column * n + row;
#pragma unroll
    for (int i = 0; i < kSteps * 4; ++i) {
      const int across = i / 4 * 8 + i % 2, down = i % 4 / 2 * 8;
      if (kFull || (row + down < n && column + across < n)) {
        out[across * n + down] = values[i / 4][i % 4];
      }
    }
  }
  __device__ void StoreInverse(int k, int thread) const {
    Base::template StoreInverse<kGroup>(k, Square(k), kTile, squares_, thread);
  }
  // The transpose of -sums. What is above a diagonal may be anything.
  __device__ void StoreMinus(T* out, const Sums& sums) const {
    const Lanes mine(thread_);
    const int n = this->n();
#pragma unroll
    for (int i = 0; i < 2 * kTiles; ++i) {
      const int row = i / 2 * 8 + mine.column(), column = mine.row() + i % 2 * 8;
      const T two[2] = {-sums[i / 2][i % 2 * 2], -sums[i / 2][i % 2 * 2 + 1]};
      if constexpr (kFull) {
        StoreVector(out + column * kTile + row, two);
      } else {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          if (row + e < n && column < n) out[column * n + row + e] = two[e];
        }
      }
    }
  }

  T* const squares_;
  uint32_t* const c_;
  uint32_t* const w_;
  T* const left_sums_;
};

}  // namespace blockd::gpu

#endif  // BLOCKD_ENGINE_GPU_SEGMENT_WARPGROUP_SEGMENT_H_
