// Triangles of a factor, which hold inv(L) or -L (blockd/engine/elimination_plan.h), and what
// LAPACK does with a triangle.
#ifndef BLOCKD_ENGINE_CPU_KERNELS_TRIANGLES_H_
#define BLOCKD_ENGINE_CPU_KERNELS_TRIANGLES_H_

#include <algorithm>
#include <cstdint>

#include "blockd/engine/elimination_plan.h"
#include "engine/cpu/threads/thread_pool.h"

namespace blockd::cpu {

// True if a block of this growth is stored as inv(L), false if as -L. A growth that is not a number
// is unknown.
inline bool KeepsInverse(double growth_square) {
  return growth_square <= kMostGrowth * kMostGrowth;
}
// True if a block's triangle is -L.
template <typename T>
bool IsSubstituted(const T* triangle) {
  return triangle[0] < 0;
}

// out, in block columns, = sign times the lower triangle of the n x n column-major `in`.
template <typename T>
void StoreTriangle(int64_t n, const T* in, T sign, T* out) {
  for (int64_t p = 0; p < n; p += kPanel) {
    for (int64_t j = p; j < std::min(p + kPanel, n); ++j, out += n - p) {
      std::fill_n(out, j - p, T{0});
      for (int64_t i = j; i < n; ++i) out[i - p] = sign * in[j * n + i];
    }
  }
}

// D = L L' in place; only lower triangles of the n x n column-major matrices count. Returns the row
// of a pivot that is not positive, or -1.
template <typename T>
int64_t Cholesky(int64_t n, T* d);
// L becomes inv(L) in place; likewise.
template <typename T>
void InvertLower(int64_t n, T* l);

// As Backend::InvertTriangles.
void InvertTriangles(ThreadPool& threads, const EliminationPlan& plan, const void* factor,
                     void* out);

}  // namespace blockd::cpu

#endif  // BLOCKD_ENGINE_CPU_KERNELS_TRIANGLES_H_
