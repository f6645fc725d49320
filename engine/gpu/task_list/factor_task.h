// A task of a factorization, as the host lists it and a thread block reads it.
#ifndef BLOCKD_ENGINE_GPU_TASK_LIST_FACTOR_TASK_H_
#define BLOCKD_ENGINE_GPU_TASK_LIST_FACTOR_TASK_H_

#include <cstdint>

#include "engine/gpu/plan/factor_args.h"

namespace blockd::gpu {

// A task of a factorization of few large blocks; factor_tasks.h lists them. It forms a tile of a
// matrix, start - products or the other way round, and counts where others wait for it. kGrowth: it
// says how much kTile columns of a block grow, from `column0` on; `start` is the chain's block.
struct alignas(16) FactorTask {
  static constexpr int kTile = 128;       // rows of a tile, and columns of a wide one
  static constexpr int kPiece = 32;       // columns of a narrow one
  static constexpr int kCopiedRows = 64;  // of a coupling block, by one task
  static constexpr int kMostWaits = 8, kMostSignals = 2, kMostCounters = 32767;
  static constexpr int16_t kNone = -1;

  enum class Kind : uint8_t { kWide, kNarrow, kInvert, kCopy, kGrowth };
  // The array that a scalar is in: one of a system's arrays or the matrix, which is counted from
  // its first scalar as if all of its blocks had n^2.
  enum class Array : uint8_t { kNone, kFactor, kChains, kScratch, kDiagonal, kCoupling };

  // The address of a scalar, in any system.
  struct Address {
    int64_t bits = 0;
    BLOCKD_HOST_DEVICE static constexpr Address In(Array array, int64_t at) {
      return {at * 8 + static_cast<int64_t>(array)};
    }
    BLOCKD_HOST_DEVICE constexpr Address Plus(int64_t scalars) const {
      return {bits + scalars * 8};
    }
    BLOCKD_HOST_DEVICE constexpr Array array() const { return static_cast<Array>(bits & 7); }
    BLOCKD_HOST_DEVICE constexpr int64_t at() const { return bits >> 3; }
  };
  // Until a counter has `count`.
  struct Wait {
    int16_t counter;
    uint16_t count;
  };

  // Two products A B': where A and B begin, and with which of their matrices' rows.
  Address a[2], b[2];
  Address start[2], out;
  Address kept;        // tiles of inv(L): the stored triangle
  Address transposed;  // and where transposes of those on the diagonal go besides
  Wait waits[kMostWaits] = {};
  int16_t row_of_a[2] = {}, row_of_b[2] = {}, depth[2] = {};
  int16_t row0 = 0, column0 = 0;
  // The first counts when `out` is there, the second at the end.
  int16_t signals[kMostSignals] = {kNone, kNone};
  uint8_t start_waits = 0, num_waits = 0;  // of these, those for `start`, which come first
  Kind kind = Kind::kWide;
  bool negative : 1, lower : 1, whole : 1;  // as in Task
  bool across : 1;                          // out is stored transposed
  // kInvert and kGrowth: where it is noted; and the segment's rows before a failure.
  int32_t segment = 0, rows_before = 0;

  FactorTask() : negative(false), lower(false), whole(false), across(false) {}
};

// A launch.
struct EliminateTasksArgs {
  const FactorTask* tasks = nullptr;
  const FactorEntry* systems = nullptr;
  // Zero before the launch, and what the one before left in its own, as in SolveArgs.
  unsigned* ticket = nullptr;
  unsigned* counters = nullptr;
  unsigned* stale = nullptr;
  unsigned stale_words = 0;
  unsigned num_systems = 0, num_counters = 0;  // counters of each system
  int n = 0;
  unsigned num_tasks = 0;
};

}  // namespace blockd::gpu

#endif  // BLOCKD_ENGINE_GPU_TASK_LIST_FACTOR_TASK_H_
