// Starts kernels on a stream. Each function returns the first error of its launches and the
// kernel's name. None waits, allocates or copies.
#ifndef BLOCKD_ENGINE_GPU_LAUNCH_H_
#define BLOCKD_ENGINE_GPU_LAUNCH_H_

#include <atomic>
#include <cstdint>

#include "engine/gpu/plan/level.h"
#include "engine/gpu/runtime/vendor.h"

namespace blockd::gpu {

struct LaunchResult {
  Error error = kSuccess;
  const char* kernel = "";
  bool ok() const { return error == kSuccess; }
};

// Blocks up to this size are eliminated by one thread block a segment, in its shared memory, of
// which it can have most_shared bytes.
int64_t LargestSmallBlock(bool is_float, int64_t most_shared);
// How many of these a multiprocessor with shared_bytes of it has at a time.
int64_t SmallResident(bool is_float, int64_t n, int64_t shared_bytes);
// Sets what kernels need of the device; once, before all else. early: as LargeContext::early.
LaunchResult PrepareSmall(int64_t most_shared);
LaunchResult PrepareLarge(int64_t most_shared, bool* early);
LaunchResult PrepareEliminateFew(int64_t most_shared);
LaunchResult PrepareVectors();

// Eliminates levels of blocks of n <= LargestSmallBlock.
template <typename T>
LaunchResult EliminateSmall(const EliminateSmallArgs& args, Stream stream);
// Eliminates one level of larger blocks. Work is on `stream`, some of it beside the rest on `side`,
// which `stream` has waited for in the end.
struct LargeContext {
  int64_t most_shared = 0;
  int64_t parallelism = 0;  // multiprocessors
  bool early = false;       // kernels may be started before the one before has ended
  Stream stream = nullptr, side = nullptr;
  Event fork = nullptr, join = nullptr;
  const std::atomic<bool>* stop = nullptr;
};
template <typename T>
LaunchResult EliminateLarge(const EliminateArgs& args, const LargeContext& context);

// Eliminates all levels of float32 systems with few blocks, from tasks.
LaunchResult EliminateFew(const EliminateFewArgs& args, Stream stream);
// Whether a thread block, which can have most_shared bytes of shared memory, has room for a tile.
bool CanEliminateFew(int64_t most_shared);

// What solves need of the device.
struct SolveLimits {
  int64_t multiprocessors = 0;
  int64_t shared_bytes = 0;        // of one multiprocessor
  int64_t block_shared_bytes = 0;  // of one thread block, at most
};
LaunchResult PrepareSubstituteSmall(const SolveLimits& limits);
LaunchResult PrepareSubstituteLarge(const SolveLimits& limits);
LaunchResult PrepareSubstituteFew();

// Columns that are solved together, 8 or 16.
int64_t SolvePanelColumns(const SolveLimits& limits, int64_t columns);
// Counters of one system and panel.
int64_t SolveCounters(const SolveArgs& args);
// Some passes of a solve, in one launch. tickets and counters are zero.
template <typename T>
LaunchResult SubstituteSmall(const SolveArgs& args, const SolveLimits& limits, Stream stream);
template <typename T>
LaunchResult SubstituteLarge(const SolveArgs& args, const SolveLimits& limits, Stream stream);
LaunchResult SubstituteFew(const SolveArgs& args, const SolveLimits& limits, Stream stream);

// Writes what was found in the `segments` words of each system's info, unless all are zero. After
// large blocks: small ones do it themselves.
LaunchResult FindFailures(const FactorEntry* systems, int64_t count, int64_t segments,
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
// ||b|| of the c-th of them. partial has 4 * ResidualParts(num_blocks) doubles a column.
constexpr int64_t ResidualParts(int64_t num_blocks) { return num_blocks < 512 ? num_blocks : 512; }
template <typename T>
LaunchResult ComputeResidual(const MatrixArgs& args, const T* x, const T* b, T* r, int64_t num_rhs,
                             int64_t first_column, int64_t columns, double* partial, double* norms,
                             Stream stream);

}  // namespace blockd::gpu

#endif  // BLOCKD_ENGINE_GPU_LAUNCH_H_
