// A segment's elimination, and its selected inverse, for large blocks, where a vendor's level-3
// BLAS is faster than panels that no longer fit the caches: the same steps as eliminate.h and
// invert.h, on whole column-major blocks.
#ifndef BLOCKD_ENGINE_CPU_KERNELS_LARGE_BLOCKS_H_
#define BLOCKD_ENGINE_CPU_KERNELS_LARGE_BLOCKS_H_

#include <cstdint>

#include "engine/cpu/kernels/kernels.h"

namespace blockd::cpu {

bool UsesLargeBlocks(int64_t n);
int64_t LargeScratchScalars(int64_t n, bool fill);
// Thread-safe if OpenBLAS runs single-threaded.
template <typename T>
SegmentReport EliminateLarge(const EliminateTask<T>& task);

// The same for blocks of any size by LAPACK and substitution, for segments where multiplication by
// inv(L) is not accurate enough or did not find a positive pivot. Blocks with a growth above
// kMostGrowth are stored as -L.
int64_t SubstitutionScratchScalars(int64_t n, bool fill);
template <typename T>
SegmentReport EliminateBySubstitution(const EliminateTask<T>& task);

int64_t LargeInverseScratchScalars(int64_t n, bool fill);
template <typename T>
void InvertLarge(const InverseTask<T>& task);

}  // namespace blockd::cpu

#endif  // BLOCKD_ENGINE_CPU_KERNELS_LARGE_BLOCKS_H_
