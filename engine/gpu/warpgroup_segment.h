// Device code: a segment of blocks of up to 64 rows of float, its products by warpgroups (sm_90a).
//
// Operands stand in shared memory in parts: those of C where those of E were, those of W where
// those of S were, or -S. D has one of two squares, and what is next the other: E, then the next D.
//
//     first warpgroup        inv(L) of D                          C' = inv(L) E'    D_next - C C'
//     second warpgroup       stores C and W; W W', S = -W C', E   W' = inv(L) S'    stores inv(L)
#ifndef BLOCKD_ENGINE_GPU_WARPGROUP_SEGMENT_H_
#define BLOCKD_ENGINE_GPU_WARPGROUP_SEGMENT_H_

#include "blockd/engine/gpu/small_segment.h"

namespace blockd::gpu {

template <typename T, int kTile, bool kFull>
class WarpgroupSegment : SmallSegment<T, kTile, kFull> {
  using Base = SmallSegment<T, kTile, kFull>;
  using Base::kThreads, Base::run_, Base::thread_, Base::warp_;
  static_assert(std::is_same_v<T, float> && kTile == 64);
  static constexpr int kLead = kLd<T, kTile>, kSquare = kTile * kLead;
  static constexpr int kGroupWarps = 4, kGroup = kGroupWarps * kWarp;
  // Barriers of either warpgroup. Where there are none, all warps pass all barriers.
  static constexpr int kTogether = kHasPartBarriers ? kGroupWarps : 2 * kGroupWarps;
  static constexpr int kFirstBarrier = kHasPartBarriers ? 1 : 0;
  static constexpr int kSecondBarrier = kHasPartBarriers ? 2 : 0;
  static_assert(kThreads == 2 * kGroup);
  static constexpr int kPart = kTile * kTile;  // words of an operand's big parts, or small
  static constexpr int kTiles = kTile / 8;     // of a product, along and across
  static constexpr int kSums = kTiles * (kTiles + 1) / 2 * 64;  // of a lower triangle
  using Copies = TileCopies<T, kTile, kFull, kGroup>;
  using Sums = T[kTiles][4];
  // What a lane has of a product's transpose: entry e of tile j is at row 8 j + row() + e % 2,
  // column column() + e / 2 * 8. Found anew each time, or registers would keep all places.
  struct Lanes {
    int warp, lane;  // of the warpgroup, of the warp

    __device__ explicit Lanes(int thread) {
      Renew(thread);
      warp = thread / kWarp % kGroupWarps, lane = thread % kWarp;
    }
    __device__ int row() const { return lane % 4 * 2; }
    __device__ int column() const { return warp * 16 + lane / 4; }
  };

 public:
  static constexpr int kSharedScalars = 2 * kSquare + 4 * kPart + kSums;

  __device__ WarpgroupSegment(const EliminateSmallArgs& args, const Place& place, T* shared,
                              Outcome* outcome, int thread)
      : Base(args, place, outcome, thread),
        squares_(shared),
        c_(reinterpret_cast<uint32_t*>(shared + 2 * kSquare)),
        w_(c_ + 2 * kPart),
        left_sums_(shared + 2 * kSquare + 4 * kPart) {}

  __device__ void Run() {
    this->Await();
    T* d = squares_;
    T* other = squares_ + kSquare;
    const bool inverts = warp_ < kGroupWarps, fill = run_.has_fill();
    LoadDiagonal<kThreads>(d, this->Chain().Diagonal(run_.block(0)), thread_);
    this->FindOthers();
    CopyWait();
    __syncthreads();
    const int count = static_cast<int>(run_.count);
    int beside = thread_ - kGroup;
    for (int k = 0;; ++k) {
      Renew(beside);  // or registers keep the places of all that is copied
      const bool end = k == count, last = k + 1 == count, next = this->HasNext(last);
      if (inverts && kHasPartBarriers) {
        if (!end) Invert(d);
      } else {
        if (next) Prepare(k, other, beside);
        if (!kHasPartBarriers && !end) Invert(d);
      }
      if (end) break;
      CopyWait();
      __syncthreads();
      if (this->HasFailed(k)) return this->Release();
      const bool divides = next && (inverts || fill);
      uint32_t* const parts = inverts ? c_ : w_;
      Sums sums[1] = {};
      if (divides) Divide(d, parts, sums);
      SyncGroup(inverts);
      if (divides) KeepDivided(sums[0], parts);
      ShareWithWarpgroups();
      if (last) {
        __syncthreads();  // S takes both
      } else {
        SyncGroup(inverts);
      }
      if (inverts) {
        if (next) FormNext(last, other);
      } else if (!last) {
        StoreInverse(k, d, beside);
      }
      if (last) continue;
      __syncthreads();
      T* const inverse = d;
      d = other, other = inverse;
    }
    this->Release();
    // Nobody in this launch waits for these.
    const int kept = count - (this->HasNext(true) ? 1 : 2);
    if (!inverts) {
      StoreInverse(count - 1, d, beside);
    } else if (kept >= 0) {
      StoreKept(kept, thread_);
    }
  }

 private:
  __device__ void Invert(T* d) const {
    TileInverter<kTile, kTogether, T, kFirstBarrier>(d, &this->outcome_->failed, warp_).Run();
  }
  __device__ static void SyncSecond() { SyncPart<kSecondBarrier, kTogether>(); }
  __device__ static void SyncGroup(bool first) {
    if (kHasPartBarriers && first) {
      SyncPart<kFirstBarrier, kTogether>();
    } else {
      SyncSecond();
    }
  }

  // By the second warpgroup, beside the inverse of the k-th D: what the interior before leaves on
  // the left separator, S and E in parts, and the next D. After the last interior, S is what it
  // leaves between both separators.
  __device__ void Prepare(int k, T* other, int thread) const {
    const bool mine = kHasPartBarriers || thread >= 0;
    const bool end = k == run_.count, last = k + 1 == run_.count;
    if (end && !run_.has_fill()) return;
    if (mine && !end) {
      if (k == 0 && run_.has_fill()) {
        Copies::LoadCoupling(reinterpret_cast<T*>(c_), this->LeftCoupling(), this->n(), thread,
                             kGroup);
      }
      Copies::LoadCoupling(other, this->NextCoupling(k), this->n(), thread, kGroup);
      if (k > 0) StoreKept(k - 1, thread);
    }
    if (run_.has_fill() && k > 0) {
      Sums sums[2] = {};
      if (mine) {
        Multiply(sums, {w_, c_}, LoadParts{w_, Lanes(thread_)});
        AddLeft(k, sums[0]);
        if (end) {
          StoreMinus(this->NextChain(run_.left, 1), sums[0]);
          StoreMinus(this->NextChain(run_.left, 2), sums[1]);
        } else {
          KeepLeft(sums[0]);
        }
      }
      if (end) return;
      CopyWait();
      SyncSecond();
      if (mine) KeepFill(sums[1]);
    } else {
      CopyWait();
      SyncSecond();
      if (run_.has_fill()) {
        if (mine) Split(reinterpret_cast<const T*>(c_), w_, thread);
        SyncSecond();
      }
    }
    if (mine) Split(other, c_, thread);
    ShareWithWarpgroups();
    SyncSecond();
    if (mine && !(last && run_.reversed)) {
      LoadDiagonal<kGroup>(other, this->NextDiagonal(k, last), thread);
    }
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

  // parts = those of a block.
  __device__ static void Split(const T* block, uint32_t* parts, int thread) {
    const int row = thread % kTile, k = thread / kTile;
    block += k * 4 * kLead + row;
    uint4* const to = reinterpret_cast<uint4*>(parts) + k * kTile + row;
#pragma unroll
    for (int i = 0; i < kTile / 4; i += kGroup / kTile) {
      const T* const from = block + i * 4 * kLead;
      const SplitFloat x0(from[0]), x1(from[kLead]), x2(from[2 * kLead]), x3(from[3 * kLead]);
      to[i * kTile] = {x0.big, x1.big, x2.big, x3.big};
      to[i * kTile + kPart / 4] = {x0.small, x1.small, x2.small, x3.small};
    }
  }
  template <int kCount>
  __device__ static void StoreParts(uint32_t* to, const T (&values)[kCount]) {
    uint32_t big[kCount], small[kCount];
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const SplitFloat x(values[i]);
      big[i] = x.big, small[i] = x.small;
    }
    StoreVector(to, big);
    StoreVector(to + kPart, small);
  }

  // sums[i] = A B[i]', B in parts, of A those that load(half, big, small) brings, of half of the
  // columns.
  static constexpr int kSteps = kTiles / 2;
  template <int kProducts, typename Load>
  __device__ static void Multiply(Sums (&sums)[kProducts], const uint32_t* const (&b)[kProducts],
                                  const Load& load) {
    // Anew, or registers would keep every step's.
    uint64_t right[kProducts];
#pragma unroll
    for (int i = 0; i < kProducts; ++i) {
      right[i] = DescribeMatrix<kTile>(b[i]);
      auto low = static_cast<uint32_t>(right[i]);
      Renew(low);
      right[i] = right[i] >> 32 << 32 | low;
    }
    uint32_t big[2][kSteps][4], small[2][kSteps][4];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      load(half, big[half], small[half]);
      if (half == 0) {
#pragma unroll
        for (int i = 0; i < kProducts; ++i) RenewAll(sums[i]);
      }
      BeginProducts();
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
#pragma unroll
        for (int kind = 0; kind < 3; ++kind) {
          const auto& a = kind == 0 ? small[half][step] : big[half][step];
#pragma unroll
          for (int i = 0; i < kProducts; ++i) {
            StartProduct(
                sums[i], a,
                right[i] + (half * kSteps + step) * 2 * kTile + (kind == 1 ? kPart / 4 : 0));
          }
        }
      }
      EndProducts();
      // There are no registers for all of A beside several sums.
      if (half == 1 || kProducts > 1) WaitForProducts();
#pragma unroll
      for (int h = kProducts > 1 ? half : 0; h <= half && (half == 1 || kProducts > 1); ++h) {
#pragma unroll
        for (int i = 0; i < kSteps * 4; ++i) {
          Renew(big[h][i / 4][i % 4]);
          Renew(small[h][i / 4][i % 4]);
        }
      }
    }
#pragma unroll
    for (int i = 0; i < kProducts; ++i) RenewAll(sums[i]);
  }
  // Of an operand in parts.
  struct LoadParts {
    const uint32_t* a;
    Lanes lanes;
    __device__ void operator()(int half, uint32_t (&big)[kSteps][4],
                               uint32_t (&small)[kSteps][4]) const {
      const int lane = lanes.lane, row = lanes.warp * 16 + lane % 16;
      const uint32_t* from = a + ((half * kSteps * 2 + lane / 16) * kTile + row) * 4;
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        LoadMatrices(big[step], from + step * 8 * kTile);
        LoadMatrices(small[step], from + step * 8 * kTile + kPart);
      }
    }
  };
  __device__ static void RenewAll(Sums& sums) {
#pragma unroll
    for (int i = 0; i < kTiles * 4; ++i) Renew(sums[i / 4][i % 4]);
  }

  // sums = X B', of which a lane has neighbouring rows 2 (lane / 4) and 2 (lane / 4) + 1 of its
  // warp's 16. What X has above its diagonal's 8 x 8 tiles is not its.
  __device__ void Divide(const T* x, const uint32_t* b, Sums (&sums)[1]) const {
    const Lanes mine(thread_);
    const int first = mine.warp * 16 + mine.lane / 4 * 2;
    x += mine.lane % 4 * kLead + first;
    Multiply(sums, {b}, [&](int half, uint32_t(&big)[kSteps][4], uint32_t(&small)[kSteps][4]) {
#pragma unroll
      for (int i = 0; i < kSteps * 2; ++i) {
        const int k = half * kTile / 2 + 4 * i;
        T two[2];
        LoadVector(two, x + k * kLead);
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const SplitFloat part(k / 8 * 8 <= first ? two[e] : T{0});
          big[i / 2][i % 2 * 2 + e] = part.big, small[i / 2][i % 2 * 2 + e] = part.small;
        }
      }
    });
  }
  // Its result X B' is the transpose of what is kept, in parts where B was.
  __device__ void KeepDivided(const Sums& sums, uint32_t* parts) const {
    const Lanes mine(thread_);
    const int group = mine.lane / 4;
    // Half of the lanes begin with the second of two rows, which other banks have.
    const bool turned = group & 2;
    uint32_t* to[2];
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      to[e] = parts +
              ((mine.warp * 4 + group / 2) * kTile + mine.row() + (turned ? 1 - e : e)) * 4 +
              group % 2 * 2;
    }
#pragma unroll
    for (int j = 0; j < kTiles; ++j) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const T two[2] = {turned ? sums[j][1 - e] : sums[j][e],
                          turned ? sums[j][3 - e] : sums[j][2 + e]};
        StoreParts(to[e] + j * 32, two);
      }
    }
  }
  // C and W, to the factor.
  __device__ void StoreKept(int k, int thread) const {
    Store(this->Stored(k, false), c_, thread);
    if (run_.has_fill()) Store(this->Stored(k, true), w_, thread);
  }
  __device__ void Store(T* out, const uint32_t* parts, int thread) const {
    const int row = thread % kTile, n = this->n();
    const uint4* const from = reinterpret_cast<const uint4*>(parts) + thread;
    out += thread / kTile * 4 * n + row;
#pragma unroll
    for (int i = 0; i < kTile / 4; i += kGroup / kTile) {
      const uint4 big = from[i * kTile], small = from[i * kTile + kPart / 4];
      const T values[4] = {__uint_as_float(big.x) + __uint_as_float(small.x),
                           __uint_as_float(big.y) + __uint_as_float(small.y),
                           __uint_as_float(big.z) + __uint_as_float(small.z),
                           __uint_as_float(big.w) + __uint_as_float(small.w)};
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int column = 4 * i + e;
        if (kFull || (row < n && thread / kTile * 4 + column < n)) out[column * n] = values[e];
      }
    }
  }
  __device__ void StoreInverse(int k, const T* d, int thread) const {
    Copies::template StoreInverse<kGroup>(this->StoredInverse(k), d, this->n(), thread);
  }
  // Two rows of a column.
  __device__ void StorePair(T* out, int row, int column, const T (&two)[2]) const {
    if constexpr (kFull) {
      StoreVector(out + column * kTile + row, two);
    } else {
      const int n = this->n();
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        if (row + e < n && column < n) out[column * n + row + e] = two[e];
      }
    }
  }

  // S = -sums, in parts.
  __device__ void KeepFill(const Sums& sums) const {
    const Lanes mine(thread_);
    const int row = mine.row();
    uint32_t* const to = w_ + (row / 4 * kTile + mine.column()) * 4 + row % 4;
#pragma unroll
    for (int j = 0; j < kTiles; ++j) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const T two[2] = {-sums[j][2 * h], -sums[j][2 * h + 1]};
        StoreParts(to + j * 2 * kTile * 4 + h * 32, two);
      }
    }
  }

  // body(j, h, sum) for the pairs of entries of a lower triangle that a lane has; sum: where their
  // sum stands.
  template <typename Body>
  __device__ void ForTriangle(const Body& body) const {
    const Lanes mine(thread_);
    const int warp = mine.warp, before = 15 * warp - 2 * warp * (warp - 1);
    T* const all = left_sums_ + 2 * mine.lane;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int pairs = before + (h == 0 ? -2 * warp : 7 - 4 * warp);
#pragma unroll
      for (int j = 0; j < kTiles; ++j) {
        if (j >= 2 * warp + h) body(j, h, all + (pairs + j) * 64);
      }
    }
  }
  // The left separator's update, of all interiors so far.
  __device__ void AddLeft(int k, Sums& sums) const {
    if (k == 1) return;
    ForTriangle([&](int j, int h, T* sum) {
      T two[2];
      LoadVector(two, sum);
      sums[j][2 * h] += two[0], sums[j][2 * h + 1] += two[1];
    });
  }
  __device__ void KeepLeft(const Sums& sums) const {
    ForTriangle([&](int j, int h, T* sum) {
      const T two[2] = {sums[j][2 * h], sums[j][2 * h + 1]};
      StoreVector(sum, two);
    });
  }
  // The transpose of -sums. What is above a diagonal may be anything.
  __device__ void StoreMinus(T* out, const Sums& sums) const {
    const Lanes mine(thread_);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
#pragma unroll
      for (int j = 0; j < kTiles; ++j) {
        const T two[2] = {-sums[j][2 * h], -sums[j][2 * h + 1]};
        StorePair(out, 8 * j + mine.row(), mine.column() + 8 * h, two);
      }
    }
  }

  // The next D, which is in `next`, - C C', there or, after the last interior, to the target.
  __device__ void FormNext(bool last, T* next) const {
    Sums sums[1] = {};
    Multiply(sums, {c_}, LoadParts{c_, Lanes(thread_)});
    const Lanes mine(thread_);
    T* const place = next + mine.column() * kLead + mine.row();
    const bool none = last && run_.reversed;
#pragma unroll
    for (int i = 0; i < 2 * kTiles; ++i) {
      T two[2];
      LoadVector(two, place + i % 2 * 8 * kLead + i / 2 * 8);
#pragma unroll
      for (int e = 0; e < 2; ++e) sums[0][i / 2][i % 2 * 2 + e] -= none ? T{0} : two[e];
    }
    if (last) return StoreMinus(this->Target(), sums[0]);
#pragma unroll
    for (int i = 0; i < 2 * kTiles; ++i) {
      const T two[2] = {-sums[0][i / 2][i % 2 * 2], -sums[0][i / 2][i % 2 * 2 + 1]};
      StoreVector(place + i % 2 * 8 * kLead + i / 2 * 8, two);
    }
  }

  T* const squares_;
  uint32_t* const c_;
  uint32_t* const w_;
  T* const left_sums_;
};

}  // namespace blockd::gpu

#endif  // BLOCKD_ENGINE_GPU_WARPGROUP_SEGMENT_H_
