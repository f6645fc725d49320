// A segment's elimination by the way that its blocks need.
#ifndef BLOCKD_ENGINE_CPU_ELIMINATE_SEGMENT_H_
#define BLOCKD_ENGINE_CPU_ELIMINATE_SEGMENT_H_

#include <cstdint>

#include "blockd/engine/block_tridiagonal.h"
#include "engine/cpu/kernels/kernels.h"

namespace blockd::cpu {

// Bytes of EliminateTask::scratch, enough for any method.
int64_t SegmentScratchBytes(const Shape& shape, bool fill);

// By the kernels, or by the BLAS for large blocks; and once more by substitution where
// multiplication by inv(L) is not accurate enough or found no positive pivot.
template <typename T>
SegmentReport EliminateSegment(const EliminateTask<T>& task);

}  // namespace blockd::cpu

#endif  // BLOCKD_ENGINE_CPU_ELIMINATE_SEGMENT_H_
