// Starts the kernels of this folder: what is neither elimination nor substitution. Each function
// returns the first error of its launches and the kernel's name. None waits, allocates or copies.
#ifndef BLOCKD_ENGINE_GPU_VECTORS_LAUNCH_H_
#define BLOCKD_ENGINE_GPU_VECTORS_LAUNCH_H_

#include <cstdint>

#include "engine/gpu/plan/factor_args.h"
#include "engine/gpu/runtime/launch_result.h"

namespace blockd::gpu {

// Has the driver load the kernels; once, before all else.
LaunchResult PrepareVectors();

// After large blocks, for small ones do it themselves: writes what the words of all segments of
// each system say together.
LaunchResult FindOutcomes(const FactorEntry* systems, int64_t count, int64_t segments,
                          Stream stream);

// Moves `count` pieces of `bytes`, a multiple of 4: from piece i to piece place(i), or back.
// Piece i belongs to column i / blocks and block i % blocks counted from `first_piece`; its place
// is (block * total_columns + first_column + column).
struct ColumnArgs {
  int64_t bytes, blocks, first_piece, count, first_column, total_columns;
};
LaunchResult ScatterColumns(void* packed, const void* pieces, const ColumnArgs& args, Stream);
LaunchResult GatherColumns(void* pieces, const void* packed, const ColumnArgs& args, Stream);

template <typename T>
LaunchResult AddVectors(T* y, const T* x, int64_t scalars, Stream stream);

// partial[i], i < kLogPartials, sum to the logarithms of the diagonals of `count` stored triangles.
inline constexpr int kLogPartials = 256;
template <typename T>
LaunchResult SumLogs(const T* inverse, int64_t count, int64_t n, double* partial, Stream stream);

// r = b - A x for `columns` columns from `first_column` on; norms[c * 4 ...] = ||r||, ||A||, ||x||,
// ||b|| of the c-th of them, NaN where something is. partial has 4 * ResidualParts doubles a
// column.
inline constexpr int64_t kMostResidualParts = 512;
inline int64_t ResidualParts(const MatrixArgs& args) {
  const int64_t strips = args.num_blocks * ((args.n + 31) / 32);
  return strips < kMostResidualParts ? strips : kMostResidualParts;
}
template <typename T>
LaunchResult ComputeResidual(const MatrixArgs& args, const T* x, const T* b, T* r, int64_t num_rhs,
                             int64_t first_column, int64_t columns, double* partial, double* norms,
                             Stream stream);

}  // namespace blockd::gpu

#endif  // BLOCKD_ENGINE_GPU_VECTORS_LAUNCH_H_
