// A segment's part of a selected inverse Z = inv(A): what it reads and where its blocks go.
//
// An interior j with the factor's blocks L, C toward r (the block that was eliminated next, or the
// separator at the segment's end) and W toward the left separator l has, with G = inv(L)' C' and
// H = inv(L)' W',
//
//     Z(j,r) = -(G Z(r,r) + H Z(l,r))        Z(j,l) = -(G Z(r,l) + H Z(l,l))
//     Z(j,j) = inv(L)' inv(L) - G Z(r,j) - H Z(l,j)
//
// so a walk from the segment's end to its beginning needs Z(r,r), Z(r,l) and Z(l,l) and leaves
// what the next step needs.
#ifndef BLOCKD_ENGINE_CPU_KERNELS_INVERSE_TASK_H_
#define BLOCKD_ENGINE_CPU_KERNELS_INVERSE_TASK_H_

#include <algorithm>
#include <atomic>
#include <cstdint>

#include "blockd/engine/elimination_plan.h"
#include "engine/cpu/threads/pending_solves.h"

namespace blockd::cpu {

// Blocks [first, end) of a level's chain of Z, n x n and column-major; what is null is not wanted.
template <typename T>
struct InverseChain {
  int64_t n = 0;
  int64_t first = 0, end = 0;
  T* diagonal = nullptr;  // Z(b,b), both triangles
  T* entries = nullptr;   // its diagonal alone, n each
  T* coupling = nullptr;  // Z(b+1,b), b + 1 < end

  bool Has(int64_t b) const { return first <= b && b < end; }
  T* Diagonal(int64_t b) const {
    return diagonal != nullptr && Has(b) ? diagonal + (b - first) * n * n : nullptr;
  }
  T* Entries(int64_t b) const {
    return entries != nullptr && Has(b) ? entries + (b - first) * n : nullptr;
  }
  T* Coupling(int64_t b) const {
    return coupling != nullptr && Has(b) && b + 1 < end ? coupling + (b - first) * n * n : nullptr;
  }
  // A block that is there already, of the next level.
  void Copy(int64_t b, const T* block) const {
    if (T* const out = Diagonal(b)) std::copy_n(block, n * n, out);
    if (T* const out = Entries(b)) {
      for (int64_t i = 0; i < n; ++i) out[i] = block[i * (n + 1)];
    }
  }
};

template <typename T>
struct InverseTask {
  int64_t n = 0;
  const Segment* segment = nullptr;
  // The factor's blocks at the segment's first slot.
  const T* inverse = nullptr;  // inv(L)
  const T* next = nullptr;     // C
  const T* fill = nullptr;     // W
  // From the next level: Z of the segment's separators, and Z(right, left); null: no separator.
  const T* left = nullptr;
  const T* right = nullptr;
  const T* between = nullptr;
  InverseChain<T> out;
  int64_t last = 0;      // the interior, in the order of elimination, that the walk ends with
  T* scratch = nullptr;  // inverse_scratch_scalars(n, fill)
  const std::atomic<bool>* stop = nullptr;
  PendingSolves* solves = nullptr;
  int32_t thread = 0;

  bool IsStopped() const { return stop != nullptr && stop->load(std::memory_order_relaxed); }
  void MakeWay() const {
    if (solves != nullptr) solves->MakeWay(thread);
  }
  // Z of what the last interior leads to; null: nothing.
  const T* Target() const { return segment->reversed ? left : right; }
  bool HasNext(int64_t k) const { return k + 1 < segment->count || Target() != nullptr; }
  // Where Z(j,r) of the k-th interior j goes, and whether its transpose does.
  T* NextCoupling(int64_t k, bool* transposed) const {
    const int64_t block = segment->block(k);
    *transposed = !segment->reversed;
    return out.Coupling(segment->reversed ? block - 1 : block);
  }
  // Where Z(j,l) of the first interior goes.
  T* LeftCoupling() const { return out.Coupling(segment->first - 1); }
};

}  // namespace blockd::cpu

#endif  // BLOCKD_ENGINE_CPU_KERNELS_INVERSE_TASK_H_
