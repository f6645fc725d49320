// A segment's elimination, and its selected inverse, for large blocks, where a vendor's level-3
// BLAS is faster than panels that no longer fit the caches: the same steps as eliminate.h and
// invert.h, on whole column-major blocks.
#ifndef BLOCKD_ENGINE_CPU_LARGE_BLOCKS_H_
#define BLOCKD_ENGINE_CPU_LARGE_BLOCKS_H_

#include <cstdint>

#include "engine/cpu/kernels.h"

namespace blockd::cpu {

bool UsesLargeBlocks(int64_t n);
int64_t LargeScratchScalars(int64_t n, bool fill);
// Thread-safe if OpenBLAS runs single-threaded.
template <typename T>
SegmentReport EliminateLarge(const EliminateTask<T>& task);

int64_t LargeInverseScratchScalars(int64_t n, bool fill);
template <typename T>
void InvertLarge(const InverseTask<T>& task);

}  // namespace blockd::cpu

#endif  // BLOCKD_ENGINE_CPU_LARGE_BLOCKS_H_
