// Common to the kernels of a solve: a segment's part of one system, and how passes wait for one
// another.
//
// All passes of a solve are one launch. Work is handed out by a ticket, in an order in which
// everything comes after what it waits for; so a thread block that waits does so for one that is
// running, or has been, however many of them there is room for.
#ifndef BLOCKD_ENGINE_GPU_PLAN_SOLVE_PART_H_
#define BLOCKD_ENGINE_GPU_PLAN_SOLVE_PART_H_

#include "engine/gpu/arch/arch.h"
#include "engine/gpu/plan/solve_args.h"

namespace blockd::gpu {

// Shared memory that a launch leaves alone: the runtime's own, and what kernels declare.
inline constexpr int64_t kStaticShared = 1536, kReservedShared = 1024 + kStaticShared;

// Vectors of a chain: (row r, column c) of block i is data[i * block + c * n + r].
template <typename T>
struct Blocks {
  T* data = nullptr;
  int64_t block = 0;
  __device__ T* At(int64_t i) const { return data + i * block; }
};

// One segment of one system and a panel of its columns.
template <typename T>
struct Part {
  int n = 0;
  int columns = 0;  // 0: nothing to do
  SegmentRange range;
  const T* inverse = nullptr;
  const T* next = nullptr;
  const T* fill = nullptr;
  Blocks<T> x;
  int64_t x_right = 0;  // to be added to x, so far behind it; 0: nothing. Forward only.
  Blocks<T> from_left;  // the next level's; backward, the solution
  Blocks<T> from_right;
  T* scratch = nullptr;  // one vector, of this segment of this level alone

  __device__ Part(const SolveArgs& args, const SolveLevel& level, int64_t system, int64_t segment,
                  int64_t panel, int most_columns)
      : n(static_cast<int>(args.n)) {
    const SolveEntry& entry = args.systems[system];
    const int64_t left_over = entry.num_rhs - panel * most_columns;
    if (left_over <= 0) return;
    columns = static_cast<int>(left_over < most_columns ? left_over : most_columns);
    range = level.shape.segment(segment);
    const int64_t square = args.n * args.n;
    const T* factor = static_cast<const T*>(entry.factor);
    inverse = factor + level.inverse_offset + range.slot * TriangleSize(n);
    next = factor + level.next_offset + range.slot * square;
    fill = factor + level.fill_offset + range.fill_slot * square;
    const int64_t part = n * entry.num_rhs, skip = panel * most_columns * n;
    T* chains = static_cast<T*>(entry.chains) + skip;
    if (level.separators_before < 0) {
      x = {static_cast<T*>(entry.x) + skip, part};
    } else {
      x = {chains + level.separators_before * 2 * part, 2 * part};
      x_right = part;
    }
    T* above = chains + level.next_separators_before * 2 * part;
    from_left = {above, 2 * part};
    from_right = {above + part, 2 * part};
    const int64_t segments_before = level.next_separators_before + (&level - args.levels);
    scratch = chains + (args.separators * 2 + segments_before + segment) * part;
  }

  __device__ bool IsLast(int64_t k) const { return k + 1 == range.count; }
  __device__ bool HasNext(int64_t k) const { return !IsLast(k) || range.target() >= 0; }
  // True if C y is subtracted from a right-hand side, Next(k), and not from zero.
  __device__ bool AddsToNext(int64_t k) const {
    return HasNext(k) && !(IsLast(k) && range.reversed);
  }
  __device__ T* Next(int64_t k) const {
    return x.At(IsLast(k) ? range.target() : range.block(k + 1));
  }
  // The solution at the separator that the segment leads to.
  __device__ const T* TargetSolution() const {
    return from_left.At(range.reversed ? range.left : range.right);
  }
};

// A value that another thread block may have written, and what is to be added to it.
template <typename T>
__device__ inline double Fresh(const T* at, int64_t added) {
  const T value = LoadFresh(at);
  return static_cast<double>(added ? value + LoadFresh(at + added) : value);
}

// Each system and panel counts the segments that have ended, pass by pass.
struct PassCounter {
  unsigned* counts;  // of one system and panel
  __device__ unsigned* Of(int32_t pass) const { return counts + pass; }
  // The counter that a pass waits for before it starts; null: none.
  __device__ const unsigned* Before(const SolveArgs& args, int32_t pass) const {
    return pass > args.first_pass ? counts + pass - 1 : nullptr;
  }
  __device__ static unsigned Target(const SolveArgs& args, int32_t pass) {
    return static_cast<unsigned>(args.levels[args.level_of(pass - 1)].shape.segments());
  }
};

__device__ inline void WaitFor(const unsigned* count, unsigned target) {
  while (!HasReached(count, target)) {
  }
}

// Each thread of a launch calls this once.
__device__ inline void ClearStale(unsigned* stale, unsigned words) {
  unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
#pragma unroll 1
  for (; i < words; i += gridDim.x * blockDim.x) stale[i] = 0;
}

__device__ inline int64_t TakeTicket(const SolveArgs& args) {
  return static_cast<int64_t>(atomicAdd(args.tickets, 1ull));
}

}  // namespace blockd::gpu

#endif  // BLOCKD_ENGINE_GPU_PLAN_SOLVE_PART_H_
