// The CPU's inner loops: a segment eliminated, or substituted through, from its first block to its
// last while it is in cache. The same source is compiled for several instruction sets;
// SelectKernels picks the widest that this processor runs. Thread-safe: a task touches only what it
// names.
#ifndef BLOCKD_ENGINE_CPU_KERNELS_KERNELS_H_
#define BLOCKD_ENGINE_CPU_KERNELS_KERNELS_H_

#include <atomic>
#include <cstdint>

#include "blockd/engine/block_tridiagonal.h"
#include "blockd/engine/elimination_plan.h"
#include "engine/cpu/kernels/border_task.h"
#include "engine/cpu/kernels/inverse_task.h"
#include "engine/cpu/threads/pending_solves.h"

namespace blockd::cpu {

// A level's chain as it is read. Level 0 is the matrix itself. On the levels above, a block is the
// sum of what its two neighbouring segments left: block i has `from_left` at chains + 3 n^2 i
// (lower triangle valid), `from_right` n^2 further on and, after that, A(i+1,i).
template <typename T>
struct Chain {
  const BlockTridiagonalView* matrix = nullptr;  // level 0 only
  const T* chains = nullptr;                     // other levels
};

template <typename T>
struct EliminateTask {
  int64_t n = 0;
  Chain<T> chain;
  const Segment* segment = nullptr;
  // Outputs at the segment's first slot; null where there are none.
  T* inverse = nullptr;  // inv(L), TriangleScalars(n) an interior
  T* next = nullptr;     // C
  T* fill = nullptr;     // W
  // Parts of the next level's chain; null where the segment has no such separator.
  T* left_from_right = nullptr;
  T* right_from_left = nullptr;
  T* coupling = nullptr;  // A(right, left)
  bool stream = false;    // the factor is larger than the caches: write it past them
  T* scratch = nullptr;   // scratch_scalars(n)
  const std::atomic<bool>* stop = nullptr;
  PendingSolves* solves = nullptr;  // that it makes way for, where that is due
  int32_t thread = 0;               // that has the task

  // Some times a millisecond, where blocks are large.
  void MakeWay() const {
    if (solves != nullptr) solves->MakeWay(thread);
  }
};

// The chain index of the separator that a segment's last interior is coupled to, -1 if there is
// none.
inline int64_t TargetOf(const Segment& segment) {
  if (segment.reversed) return segment.left_separator >= 0 ? segment.first - 1 : -1;
  return segment.right_separator >= 0 ? segment.first + segment.count : -1;
}

// The outcome of a segment's elimination.
struct SegmentReport {
  // The first pivot that is not positive: its interior, in the order of elimination; -1: there was
  // none.
  int64_t interior = -1;
  int64_t row = 0;
  // The square of FactorReport::growth for the interiors whose inverse was stored.
  double growth_square = 1;
};

// Vectors of a level: a block's columns lie one after another, n scalars each.
template <typename T>
struct Vectors {
  T* data = nullptr;
  int64_t stride = 0;  // scalars from block to block

  T* at(int64_t block) const { return data + block * stride; }
};

template <typename T>
struct SubstituteTask {
  int64_t n = 0;
  int64_t columns = 0;
  const Segment* segment = nullptr;
  const T* inverse = nullptr;
  const T* next = nullptr;
  const T* fill = nullptr;
  Vectors<T> x;           // this level's right-hand sides, then solutions
  Vectors<T> x_right;     // forward, above level 0: to be added to x (x is what came from the left)
  Vectors<T> from_left;   // the next level's, by separator: what the segment left of it makes
  Vectors<T> from_right;  // and the one right of it; backward, from_left holds the solution
  T* scratch = nullptr;   // 3 * n * columns
  const std::atomic<bool>* stop = nullptr;
};

// Products of one block M, n x n and column-major, with vectors whose columns lie one after
// another.
template <typename T>
struct MultiplyTask {
  int64_t n = 0;
  int64_t columns = 0;
  const T* block = nullptr;
  bool symmetric = false;  // only its lower triangle is read
  bool packed = false;     // and that is all there is, column after column
  // y += M x, and sums += |M|, by rows.
  const T* x = nullptr;
  double* y = nullptr;
  double* sums = nullptr;
  // The same with M'; of a symmetric M, the same vectors once more.
  const T* x_of_rows = nullptr;
  double* y_of_columns = nullptr;
  double* sums_of_columns = nullptr;
};

template <typename T>
struct Kernels {
  const char* instruction_set;
  int64_t (*scratch_scalars)(int64_t n, bool fill);  // for EliminateTask
  SegmentReport (*eliminate)(const EliminateTask<T>& task);
  void (*forward)(const SubstituteTask<T>& task);
  void (*backward)(const SubstituteTask<T>& task);
  void (*multiply)(const MultiplyTask<T>& task);
  int64_t (*inverse_scratch_scalars)(int64_t n, bool fill);
  void (*invert)(const InverseTask<T>& task);
  void (*multiply_border)(const BorderProductsTask<T>& task);
  void (*add_border)(const BorderUpdateTask<T>& task);
};

template <typename T>
const Kernels<T>& SelectKernels();
template <>
const Kernels<double>& SelectKernels();
template <>
const Kernels<float>& SelectKernels();

}  // namespace blockd::cpu

#endif  // BLOCKD_ENGINE_CPU_KERNELS_KERNELS_H_
