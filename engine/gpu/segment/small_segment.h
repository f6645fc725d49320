// Device code: a segment of small blocks, as far as it does not matter how its blocks are
// multiplied: what it waits for, where its blocks are, and whom it tells.
#ifndef BLOCKD_ENGINE_GPU_SEGMENT_SMALL_SEGMENT_H_
#define BLOCKD_ENGINE_GPU_SEGMENT_SMALL_SEGMENT_H_

#include "engine/gpu/segment/assignment.h"
#include "engine/gpu/tile/tile_copies.h"

namespace blockd::gpu {

// Warps of a thread block: a warp has 16 rows of C, another the same of W; of tiny blocks all.
template <int kTile>
inline constexpr int kWarpsOf = kTile <= 8 ? 1 : kTile / 8;

// kFull: blocks have kTile rows.
template <typename T, int kTile, bool kFull>
class SmallSegment {
 protected:
  static constexpr int kWarps = kWarpsOf<kTile>;
  static constexpr int kThreads = kWarps * kWarp;
  static constexpr int kLead = kLd<T, kTile>;

  __device__ SmallSegment(const EliminateSegmentsArgs& args, const Assignment& assignment,
                          Outcome* outcome, int thread)
      : args_(args),
        assignment_(assignment),
        level_(assignment.level),
        system_(assignment.entry),
        range_(assignment.range),
        outcome_(outcome),
        thread_(thread),
        warp_(thread / kWarp) {}

  __device__ int n() const { return kFull ? kTile : static_cast<int>(args_.levels[0].shape.n); }

  __device__ ChainReader<T> Chain() const { return {system_, n(), level_.chain_offset}; }

  // Block b of this chain is what the segments b and b + 1 of the level before leave.
  __device__ void Await() const {
    if (assignment_.level_index == 0) return;
    const int64_t end =
        range_.first + range_.count + (!range_.reversed && range_.right >= 0 ? 1 : 0);
    const uint32_t* const done = Done(assignment_.level_index - 1);
    for (int64_t s = range_.first + threadIdx.x; s <= end; s += kThreads) {
      while (!IsRaised(done + s, args_.epoch)) {
      }
    }
    __syncthreads();
  }

  // Says how it went, and lets those go on that wait for this segment.
  __device__ void Release() const {
    const bool awaited = assignment_.level_index + 1 < args_.num_levels;
    if (awaited || assignment_.is_base()) SyncToSignal();
    if (threadIdx.x != 0) return;
    const int64_t failure = outcome_->value;
    system_.info[assignment_.position()] = failure != 0 ? FailureWord(failure) : outcome_->growth;
    if (awaited) RaiseFlag(Done(assignment_.level_index) + assignment_.segment, args_.epoch);
    if (!assignment_.is_base()) return;
    unsigned failed = outcome_->first;
    if (failed == kNobody && outcome_->value != 0) {
      failed = static_cast<unsigned>(assignment_.position());
    }
    TellHost(system_.outcome, SystemOutcome{static_cast<int32_t>(failed + 1), outcome_->growth});
  }

  // For the base: which segment before it has failed, and how much they have grown.
  __device__ void FindOthers() const {
    if (assignment_.is_base()) {
      FindOutcome(system_.info, static_cast<int>(level_.segments_before), kThreads, outcome_);
    }
  }
  // The k-th interior's inverse, which d holds, to the factor, and its growth to `largest`.
  //
  // The growth of a block is the largest D(i,i) times the sum of squares of column i of its inverse
  // factor. A thread has some rows of a column and keeps the largest part of it that it has seen,
  // so that nobody waits for anybody; what is made of these in the end is no less than the growth
  // of the worst block. They are kept in the padding of a tile, for registers are short.
  //
  // By the first kBy threads. In row `kept` of d the diagonal of D stands; largest: a tile, the
  // same for all blocks.
  template <int kBy>
  __device__ void StoreInverse(int k, const T* d, int kept, T* largest, int thread) const {
    constexpr int kParts = kBy / kTile, kVector = kFull ? 16 / static_cast<int>(sizeof(T)) : 1;
    constexpr int kRows = kParts * kVector, kSteps = kTile / kRows;  // rows of a column at a time
    constexpr int kTogether = kSteps < 4 ? kSteps : 4;
    static_assert(8 % kParts == 0 && kSteps % kTogether == 0);
    Renew(thread);  // else a register keeps each place
    // Two columns that are next to one another would have the same banks.
    const unsigned mine = static_cast<unsigned>(thread), place = mine / kParts;
    const int column = static_cast<int>((place & ~3u) + place % 2 * 2 + place / 2 % 2);
    const int n = this->n(), first = column & -8, part = static_cast<int>(mine % kParts) * kVector;
    if (!kFull && column >= n) return;
    const T* const from = d + column * kLead + part;
    T* const to = StoredInverse(k) + first / 2 * (2 * n + 8 - first) - first +
                  (column - first) * (n - first) + part;
    // All is read before anything is written: a load waits for the stores before it.
    const T diagonal = d[column * kLead + kept];
    uint32_t* const word = LargestWord<kBy>(largest, thread);
    const uint32_t before = *word;
    T sums[2] = {};
    // From the last rows to those of the panel's first 8, which are whole: zeros are above the
    // diagonal. What is loaded beyond them is not used.
#pragma unroll
    for (int step = kSteps - kTogether; step >= 0; step -= kTogether) {
      if ((step + kTogether) * kRows <= first) break;
      T entries[kTogether][kVector];
#pragma unroll
      for (int s = 0; s < kTogether; ++s) {
        const T* const row = from + (step + s) * kRows;
        if constexpr (kFull) {
          LoadVector(entries[s], row);
        } else {
          entries[s][0] = *row;
        }
      }
#pragma unroll
      for (int s = 0; s < kTogether; ++s) {
        const int row = (step + s) * kRows;
        if (row + part < first || (!kFull && row + part >= n)) continue;
        if constexpr (kFull) {
          StoreVector(to + row, entries[s]);
        } else {
          to[row] = entries[s][0];
        }
#pragma unroll
        for (int e = 0; e < kVector; ++e) {
          T& sum = sums[(s * kVector + e) % 2];
          sum = fma(entries[s][e], entries[s][e], sum);
        }
      }
    }
    const uint32_t upper = UpperWord((sums[0] + sums[1]) * diagonal);
    *word = upper > before ? upper : before;
  }
  // Before the first block, by the same threads.
  template <int kBy>
  __device__ static void BeginGrowth(T* largest, int thread) {
    *LargestWord<kBy>(largest, thread) = 0;
  }
  // After the last one, by the same threads and whole warps.
  template <int kBy>
  __device__ void ReportGrowth(T* largest, int thread) const {
    const T square = FromUpperWord<T>(*LargestWord<kBy>(largest, thread));
    NoteLargest(&outcome_->growth, static_cast<float>(SumOfLanes<kBy / kTile>(square)));
  }
  // True if the k-th interior has no inverse, which it notes in the outcome.
  __device__ bool HasFailed(int k) const {
    if (outcome_->failed < 0) return false;
    if (threadIdx.x == 0) outcome_->value = 1 + int64_t{k} * n() + outcome_->failed;
    return true;
  }

  __device__ bool IsLast(int k) const { return k + 1 == static_cast<int>(range_.count); }
  __device__ bool HasNext(bool last) const { return !last || range_.target() >= 0; }

  // E of the k-th interior.
  __device__ CouplingSource<T> NextCoupling(int k) const {
    const Walk walk = assignment_.coupling;
    if (walk.at == nullptr) {
      const int64_t block = range_.block(k);
      return Chain().Coupling(range_.reversed ? block - 1 : block, range_.reversed);
    }
    const bool across = assignment_.across;
    return {walk.At<const T>(k), across ? n() : 1, across ? 1 : n()};
  }
  // D of the k-th interior or, k = count, of the block after the last one.
  __device__ DiagonalSource<T> Diagonal(int k) const {
    const Walk walk = assignment_.diagonal;
    if (walk.at == nullptr) return Chain().Diagonal(range_.block(k));
    const T* const first = walk.At<const T>(k);
    const int64_t second = assignment_.second;
    return {first, second == 0 ? nullptr : first + n() * n(), n(), assignment_.packed};
  }
  // The first interior's coupling with the left separator.
  __device__ CouplingSource<T> LeftCoupling() const {
    return Chain().Coupling(range_.first - 1, true);
  }
  // The block that the k-th interior's update is subtracted from. None for a reversed segment's
  // last interior: its target's own block comes from the other segment, and the next level adds
  // both.
  __device__ DiagonalSource<T> NextDiagonal(int k, bool last) const {
    if (last && range_.reversed) return {};
    return Diagonal(k + 1);
  }

  // Where the factor keeps C of the k-th interior, or its W, and its inverse.
  __device__ T* Stored(int k, bool fill) const {
    const Walk walk = fill ? assignment_.fill : assignment_.next;
    return walk.At<T>(k);
  }
  __device__ T* StoredInverse(int k) const {
    const Walk walk = assignment_.inverse;
    return walk.At<T>(k);
  }

  // The place of the left separator's `part` in the next chain.
  __device__ T* Left(int part) const {
    return reinterpret_cast<T*>(assignment_.left) + part * n() * n();
  }
  // Where the last interior's C C' goes.
  __device__ T* Target() const {
    return range_.reversed ? Left(1) : Left(3);  // of the right one, which comes next
  }

  const EliminateSegmentsArgs& args_;
  const Assignment& assignment_;
  const SegmentsLevel& level_;
  const FactorEntry& system_;
  const SegmentRange& range_;
  Outcome* const outcome_;
  const int thread_, warp_;

 private:
  // The thread's own, behind the two rows of the padding where diagonals are kept.
  template <int kBy>
  __device__ static uint32_t* LargestWord(T* tile, int thread) {
    constexpr int kParts = kBy / kTile;
    static_assert(2 * sizeof(T) + kParts * sizeof(uint32_t) <= (kLead - kTile) * sizeof(T));
    const unsigned mine = static_cast<unsigned>(thread);
    T* const padding = tile + mine / kParts * kLead + kTile + 2;
    return reinterpret_cast<uint32_t*>(padding) + mine % kParts;
  }
  __device__ uint32_t* Done(int level) const {
    return args_.done + assignment_.system * args_.done_stride +
           args_.levels[level].segments_before;
  }
};

}  // namespace blockd::gpu

#endif  // BLOCKD_ENGINE_GPU_SEGMENT_SMALL_SEGMENT_H_
