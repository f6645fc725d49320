// The tasks of the CPU's threads on the border of an arrowhead.
#ifndef BLOCKD_ENGINE_CPU_KERNELS_BORDER_TASK_H_
#define BLOCKD_ENGINE_CPU_KERNELS_BORDER_TASK_H_

#include <cstdint>

namespace blockd::cpu {

// Sums of products of columns of Y and V in some blocks. Blocks lie one after another, in each the
// columns, n scalars each.
template <typename T>
struct BorderProductsTask {
  int64_t n = 0;
  int64_t blocks = 0;
  const T* y = nullptr;  // the first block's first column of those that are wanted
  const T* v = nullptr;
  int64_t y_block = 0, v_block = 0;  // scalars from block to block
  int64_t y_columns = 0, v_columns = 0;
  double* products = nullptr;  // y_columns x v_columns, column-major, to be written
  int64_t products_stride = 0;
};

// V = Y X, or V += Y X, in one block: n x columns, n x p, p x columns.
template <typename T>
struct BorderUpdateTask {
  int64_t n = 0;
  int64_t p = 0;
  int64_t columns = 0;
  const T* y = nullptr;
  T* v = nullptr;
  bool add = false;
  // X(i, j) at x[i + j * p]; null: at of_block[i * n + j], which is one more block of Y's kind.
  const double* x = nullptr;
  const T* of_block = nullptr;
  bool diagonal = false;  // V += the diagonal of Y Y', n scalars; then the rest says nothing
};

}  // namespace blockd::cpu

#endif  // BLOCKD_ENGINE_CPU_KERNELS_BORDER_TASK_H_
