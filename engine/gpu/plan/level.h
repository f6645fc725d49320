// What kernels know of a plan's level and of the systems of a batch: plain data, passed by value or
// kept in a table in device memory. Segments are computed, not looked up: those of a level have a
// length at each end and two lengths, one apart, between.
#ifndef BLOCKD_ENGINE_GPU_PLAN_LEVEL_H_
#define BLOCKD_ENGINE_GPU_PLAN_LEVEL_H_

#include <cstdint>

#include "engine/gpu/arch/host_device.h"

namespace blockd::gpu {

inline constexpr int kPanelColumns = 8;  // blockd::kPanel, columns of a stored block column
// Blocks up to this size are substituted through by one thread block a segment.
inline constexpr int kLargestSmallSolve = 128;

// Scalars before block column p of a stored triangle, and all of them.
BLOCKD_HOST_DEVICE inline int64_t PanelOffset(int64_t n, int64_t p) {
  return p * kPanelColumns * n - kPanelColumns * kPanelColumns * (p * (p - 1) / 2);
}
BLOCKD_HOST_DEVICE inline int64_t TriangleSize(int64_t n) {
  const int64_t whole = n / kPanelColumns, rest = n % kPanelColumns;
  return PanelOffset(n, whole) + rest * rest;
}

// What a segment of large blocks has in scratch while its level is eliminated.
BLOCKD_HOST_DEVICE inline int64_t LargeScratchScalars(int64_t n) { return 2 * n * n + 128 * n; }

struct Run {
  int64_t first = 0;  // as blockd::Segment
  int64_t count = 0;
  int64_t slot = 0;
  int64_t fill_slot = -1;
  int64_t left = -1;
  int64_t right = -1;
  bool reversed = false;

  BLOCKD_HOST_DEVICE bool has_fill() const { return fill_slot >= 0; }
  BLOCKD_HOST_DEVICE int64_t block(int64_t k) const {
    return reversed ? first + count - 1 - k : first + k;
  }
  // Chain index of the block after the last interior, -1 if there is none.
  BLOCKD_HOST_DEVICE int64_t target() const {
    if (reversed) return left >= 0 ? first - 1 : -1;
    return right >= 0 ? first + count : -1;
  }
};

struct LevelShape {
  int64_t n = 0;
  int64_t separators = 0;
  int64_t first_length = 0;   // interiors of the first segment
  int64_t last_length = 0;    // and of the last, if there are separators
  int64_t middle_length = 0;  // of those between, the shorter ones
  int64_t longer = 0;         // how many of those between have one interior more; they come first

  BLOCKD_HOST_DEVICE int64_t segments() const { return separators + 1; }
  BLOCKD_HOST_DEVICE int64_t longest_middle() const {
    return separators < 2 ? 0 : middle_length + (longer > 0);
  }
  BLOCKD_HOST_DEVICE Run run(int64_t i) const {
    Run run;
    run.left = i - 1;
    run.right = i < separators ? i : -1;
    run.reversed = separators > 0 && i == separators;
    if (i == 0) {
      run.count = first_length;
      return run;
    }
    const int64_t before = i - 1;  // segments between this one and the first
    run.first =
        first_length + 1 + before * (middle_length + 1) + (before < longer ? before : longer);
    run.slot = run.first - i;
    run.count = run.reversed ? last_length : middle_length + (before < longer);
    if (!run.reversed) run.fill_slot = run.slot - first_length;
    return run;
  }
  // Blocks of the chain that are not separators.
  BLOCKD_HOST_DEVICE int64_t interiors() const {
    const int64_t ends = first_length + last_length;
    return separators < 2 ? ends : ends + (separators - 1) * middle_length + longer;
  }
  // The segment that a block of the chain is in, or that it is the right separator of.
  BLOCKD_HOST_DEVICE int64_t segment_of(int64_t block) const {
    const int64_t after = block - first_length - 1;
    if (after < 0 || separators == 0) return 0;
    const int64_t of_longer = longer * (middle_length + 2);
    const int64_t i = after < of_longer ? 1 + after / (middle_length + 2)
                                        : 1 + longer + (after - of_longer) / (middle_length + 1);
    return i < separators ? i : separators;
  }
  // The i-th segment in the order of launches: both ends, which are longest, then the others.
  BLOCKD_HOST_DEVICE int64_t launched(int64_t i) const {
    if (i == 0) return 0;
    return i == 1 ? separators : i - 1;
  }
};

// What failed first in a system, in the order of the plan: the segment, counted through all levels
// from 1, and 1 + interior * n + row of its bad pivot. Zeros: nothing did.
struct FirstFailure {
  int64_t position, value;
};

// One system of a factorization. Device addresses.
struct FactorEntry {
  const void* diagonal;
  const void* coupling;
  const uint32_t* diagonal_index;
  const uint32_t* coupling_index;
  void* factor;
  void* chains;
  int64_t* info;            // a word for each segment of all levels, as FirstFailure::value
  FirstFailure* found;      // written if something failed
  void* scratch;            // LargeScratchScalars for each segment of a level; large blocks only
  int32_t packed_diagonal;  // lower triangles, column after column
  int32_t superdiagonal;    // coupling blocks are A(i,i+1)
};

struct EliminateArgs {
  LevelShape level;
  const FactorEntry* systems = nullptr;
  int64_t num_systems = 0;
  int64_t chain_offset = -1;      // of this level's chain in a system's chains; -1: the matrix
  int64_t next_chain_offset = 0;  // of the next level's
  int64_t inverse_offset = 0, next_offset = 0, fill_offset = 0;
  // Scalars from one interior's blocks to the next one's: 0 where nothing is to be kept.
  int64_t inverse_stride = 0, next_stride = 0, fill_stride = 0;
  int64_t segments_before = 0;  // in the levels above this one
};

// Levels of small blocks that one launch eliminates: those of most plans.
inline constexpr int kMostLevelsALaunch = 16;

// One of these levels: where it stands in a system's arrays, as in EliminateArgs.
struct SmallLevel {
  LevelShape shape;
  int64_t chain_offset = -1, next_chain_offset = 0;
  int64_t inverse_offset = 0, next_offset = 0, fill_offset = 0;
  int64_t segments_before = 0;  // in the levels above it, all of the plan's
};

struct EliminateSmallArgs {
  SmallLevel levels[kMostLevelsALaunch];
  int num_levels = 0;
  const FactorEntry* systems = nullptr;
  int64_t num_systems = 0;
  int64_t inverse_stride = 0, next_stride = 0, fill_stride = 0;
  // For several levels: done[system * done_stride + segment] turns `epoch`, which no launch before
  // has used, when what the segment leaves on its separators is there.
  uint32_t* done = nullptr;
  int64_t done_stride = 0;
  uint32_t epoch = 0;
  uint32_t* ticket = nullptr;  // counts the thread blocks that have begun; zero before and after
};

// A task of a factorization of few large blocks; factor_tasks.h lists them. It forms a tile of a
// matrix, start - products or the other way round, and counts where others wait for it.
struct alignas(16) FactorTask {
  static constexpr int kTile = 128;       // rows of a tile, and columns of a wide one
  static constexpr int kPiece = 32;       // columns of a narrow one
  static constexpr int kCopiedRows = 64;  // of a coupling block, by one task
  static constexpr int kMostWaits = 8, kMostSignals = 2, kMostCounters = 32767;
  static constexpr int16_t kNone = -1;

  enum class Kind : uint8_t { kWide, kNarrow, kInvert, kCopy };
  // What a scalar is in: one of a system's arrays or, counted from the first one as if all of its
  // blocks had n^2, the matrix.
  enum class Array : uint8_t { kNone, kFactor, kChains, kScratch, kDiagonal, kCoupling };

  struct Place {
    int64_t bits = 0;
    BLOCKD_HOST_DEVICE static constexpr Place In(Array array, int64_t at) {
      return {at * 8 + static_cast<int64_t>(array)};
    }
    BLOCKD_HOST_DEVICE constexpr Place Plus(int64_t scalars) const { return {bits + scalars * 8}; }
    BLOCKD_HOST_DEVICE constexpr Array array() const { return static_cast<Array>(bits & 7); }
    BLOCKD_HOST_DEVICE constexpr int64_t at() const { return bits >> 3; }
  };
  // Until a counter has `count`.
  struct Wait {
    int16_t counter;
    uint16_t count;
  };

  // Two products A B': where A and B begin, and with which of their matrices' rows.
  Place a[2], b[2];
  Place start[2], out;
  Place kept;        // tiles of inv(L): the stored triangle
  Place transposed;  // and where transposes of those on the diagonal go besides
  Wait waits[kMostWaits] = {};
  int16_t row_of_a[2] = {}, row_of_b[2] = {}, depth[2] = {};
  int16_t row0 = 0, column0 = 0;
  // The first counts when `out` is there, the second at the end.
  int16_t signals[kMostSignals] = {kNone, kNone};
  uint8_t start_waits = 0, num_waits = 0;  // of these, those for `start`, which come first
  Kind kind = Kind::kWide;
  bool negative : 1, lower : 1, whole : 1;  // as in Task
  bool across : 1;                          // out is stored transposed
  // kInvert: where a failure is noted, and the segment's rows before it.
  int32_t segment = 0, rows_before = 0;

  FactorTask() : negative(false), lower(false), whole(false), across(false) {}
};

struct EliminateFewArgs {
  int64_t n = 0;
  const FactorTask* tasks = nullptr;
  int64_t num_tasks = 0, num_counters = 0;  // counters of each system
  const FactorEntry* systems = nullptr;
  int64_t num_systems = 0;
  // Zero before the launch, and what the one before left in its own, as in SolveArgs.
  unsigned* ticket = nullptr;
  unsigned* counters = nullptr;
  unsigned* stale = nullptr;
  unsigned stale_words = 0;
};

// Right-hand sides of one factorization, as blockd::SolveSystem.
struct SolveEntry {
  const void* factor;
  void* x;
  int64_t num_rhs;
  void* chains;
};

// A level as a solve sees it.
struct SolveLevel {
  LevelShape shape;
  int64_t separators_before = -1;  // of the levels below this one's chain; -1: the system itself
  int64_t next_separators_before = 0;
  int64_t inverse_offset = 0, next_offset = 0, fill_offset = 0;
  int32_t log_strips = 0;  // of the strips of an item of work; large blocks only
};

// Every level has less than half of the blocks of the one before.
inline constexpr int kMostLevels = 40;

// A task of a solve with few blocks; few_tasks.h lists them. Vectors are numbered: those that tasks
// leave, and the blocks of x.
struct SolveTask {
  static constexpr int kItemRows = 32;  // that a thread block has of a task at a time
  static constexpr int kMostRows = 256, kMostColumns = 16;  // of a block, and at a time
  static constexpr int kMostParts = 4;                      // that columns are cut into
  static constexpr int32_t kNone = -1;
  BLOCKD_HOST_DEVICE static constexpr int32_t BlockOfX(int64_t block) {
    return -2 - static_cast<int32_t>(block);
  }

  int64_t matrix[2] = {};                                   // where they are in the factor
  int32_t vector[2][2] = {{kNone, kNone}, {kNone, kNone}};  // each multiplies the sum of two
  int32_t start[2] = {kNone, kNone};  // unless inv(L) is it, the product is subtracted from these
  int32_t out = 0;
  int32_t solution = kNone;  // the block of x where it goes besides
  int32_t matrices = 0;
  bool forward = false, triangle = false;
  int8_t part = 0, parts = 1;  // of the columns
};

// A solve, or some of its passes: pass p goes forward through level p or, from num_levels on,
// backward through level 2 num_levels - 1 - p.
struct SolveArgs {
  SolveLevel levels[kMostLevels];
  int32_t num_levels = 0;
  int32_t first_pass = 0, end_pass = 0;
  int64_t n = 0;
  int64_t separators = 0;  // of all levels
  const SolveEntry* systems = nullptr;
  int64_t num_systems = 0;
  int64_t first_panel = 0, num_panels = 0;  // of columns, of each system
  int64_t panel_columns = 0;                // 8 or 16
  int64_t most_columns = 0;                 // that any panel has
  int64_t vector_rows = 0;                  // that are in shared memory at once; large blocks only
  int64_t table_bytes = 0;                  // of shared memory, for the items; large blocks only
  int32_t pieces_ahead = 0;                 // of a warp's matrices; small blocks only
  // Zero before the launch: how much work has been handed out, and what has been done.
  unsigned long long* tickets = nullptr;
  unsigned* counters = nullptr;
  // What the launch before counted in, which this one puts back to zero for the next.
  unsigned* stale = nullptr;
  unsigned stale_words = 0;
  // Unless null, the solve consists of these, and counters are the vectors they leave.
  const SolveTask* tasks = nullptr;
  int64_t num_tasks = 0, num_vectors = 0;

  BLOCKD_HOST_DEVICE bool is_forward(int32_t pass) const { return pass < num_levels; }
  BLOCKD_HOST_DEVICE int32_t level_of(int32_t pass) const {
    return pass < num_levels ? pass : 2 * num_levels - 1 - pass;
  }
};

// A matrix on the device, for residuals.
struct MatrixArgs {
  FactorEntry matrix;
  int64_t num_blocks = 0;
  int64_t n = 0;
};

}  // namespace blockd::gpu

#endif  // BLOCKD_ENGINE_GPU_PLAN_LEVEL_H_
