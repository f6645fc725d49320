// The arguments of kernels that factor: the systems of a batch, in a table in device memory, and
// one level of their plan.
#ifndef BLOCKD_ENGINE_GPU_PLAN_FACTOR_ARGS_H_
#define BLOCKD_ENGINE_GPU_PLAN_FACTOR_ARGS_H_

#include <cstdint>

#include "engine/gpu/plan/level.h"

namespace blockd::gpu {

// A segment's word, when it has ended. Its upper half: 1 + interior * n + row of the first bad
// pivot, 0 if there is none (so segments have less than 2^32 rows). The lower half: the bits of a
// float, the square of FactorReport::growth in it, if no pivot was bad.
BLOCKD_HOST_DEVICE constexpr bool IsFailure(int64_t word) { return word >> 32 != 0; }
BLOCKD_HOST_DEVICE constexpr int64_t FailureOf(int64_t word) { return (word >> 32) & 0xffffffff; }
BLOCKD_HOST_DEVICE constexpr int64_t FailureWord(int64_t failure) { return failure << 32; }
BLOCKD_HOST_DEVICE inline uint32_t* GrowthOf(int64_t* word) {
  return reinterpret_cast<uint32_t*>(word);  // these machines store it first
}

// How a system has ended; short, because the host reads it from memory that the device writes, all
// of it at once.
struct alignas(8) SystemOutcome {
  static constexpr int32_t kNotYet = -1;  // `failed`, until then
  int32_t failed;   // 1 + the first segment, in the order of the plan, with a bad pivot; 0: none
  uint32_t growth;  // the largest of all words
};

// One system of a factorization. Device addresses.
struct FactorEntry {
  const void* diagonal;
  const void* coupling;
  const uint32_t* diagonal_index;
  const uint32_t* coupling_index;
  void* factor;
  void* chains;
  int64_t* info;  // a word for each segment of all levels
  SystemOutcome* outcome;
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

// A matrix on the device, for residuals.
struct MatrixArgs {
  FactorEntry matrix;
  int64_t num_blocks = 0;
  int64_t n = 0;
};

}  // namespace blockd::gpu

#endif  // BLOCKD_ENGINE_GPU_PLAN_FACTOR_ARGS_H_
