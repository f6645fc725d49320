// Starts the kernels of this folder: what is neither elimination nor substitution. Each function
// returns the first error of its launches and the kernel's name. None waits, allocates or copies.
#ifndef BLOCKD_ENGINE_GPU_VECTORS_LAUNCH_H_
#define BLOCKD_ENGINE_GPU_VECTORS_LAUNCH_H_

#include <cstdint>

#include "engine/gpu/arch/launch_result.h"
#include "engine/gpu/plan/factor_args.h"
#include "engine/gpu/plan/solve_args.h"
#include "engine/gpu/runtime/move_times.h"

namespace blockd::gpu {

// Has the driver load the kernels; once, before all else.
LaunchResult PrepareVectors();

// After large blocks, for small ones do it themselves: writes what the words of all segments of
// each system say together.
LaunchResult FindOutcomes(const FactorEntry* systems, int64_t count, int64_t segments,
                          Stream stream);

// Columns, or a part of some, that are moved between host memory that the device reaches and a
// batch. Piece p of a column-major matrix is block p % blocks of column p / blocks; its place in
// the batch is block * total_columns + first_column + column, in blocks.
struct ColumnEntry {
  void* host;    // the first of the pieces; the others follow
  void* packed;  // the batch's first column
  int64_t first_piece, pieces;
  int64_t first_column, total_columns;
};
struct MoveArgs {
  const ColumnEntry* entries;  // memory that the device reaches; null: `only`
  ColumnEntry only;            // which needs no read of that memory
  int64_t count;               // at most kEntriesALaunch
  int64_t most_pieces;         // of one entry
  int64_t blocks, n;           // of a column; scalars of a block
  bool first, last;            // of the launches that tell their times together
  MoveTimes* times;            // the first one says when it began, the last one that all is done
  uint64_t number;             // for times->done; a scatter says only when it ended
  unsigned* counter;           // device memory, 0 before and after
};
inline constexpr int64_t kEntriesALaunch = 32768;
// T: the scalar.
template <typename T>
LaunchResult ScatterColumns(const MoveArgs& args, Stream stream);
template <typename T>
LaunchResult GatherColumns(const MoveArgs& args, Stream stream);

// Blocks of a level's chain that half a solve has, and their places in the systems' x: from the
// chain to x if `down`, else from x to the chain. The systems are in args, all columns of theirs
// are moved. scratch: of the base, whose last block is in the scratch of its segment. Level 0 has
// no chain of its own: only that block is moved.
struct LevelMove {
  int32_t level;
  int64_t blocks;
  bool down, scratch;
};
template <typename T>
LaunchResult MoveLevel(const SolveArgs& args, const LevelMove& move, Stream stream);

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
