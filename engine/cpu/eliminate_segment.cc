#include "engine/cpu/eliminate_segment.h"

#include <algorithm>

#include "blockd/engine/memory_pool.h"
#include "engine/cpu/kernels/large_blocks.h"
#include "engine/cpu/kernels/triangles.h"

namespace blockd::cpu {

int64_t SegmentScratchBytes(const Shape& shape, bool fill) {
  const int64_t n = shape.block_size;
  const int64_t multiplied = UsesLargeBlocks(n) ? LargeScratchScalars(n, fill)
                             : shape.scalar == Scalar::kFloat64
                                 ? SelectKernels<double>().scratch_scalars(n, fill)
                                 : SelectKernels<float>().scratch_scalars(n, fill);
  return MemoryPool::Rounded(std::max(multiplied, SubstitutionScratchScalars(n, fill)) *
                             ScalarBytes(shape.scalar));
}

template <typename T>
SegmentReport EliminateSegment(const EliminateTask<T>& task) {
  if (task.segment->count == 0) {
    // An open plan: its last separator has no right neighbour.
    std::fill_n(task.left_from_right, task.n * task.n, T{0});
    return {};
  }
  const SegmentReport report =
      UsesLargeBlocks(task.n) ? EliminateLarge(task) : SelectKernels<T>().eliminate(task);
  if (report.interior < 0 && KeepsInverse(report.growth_square)) return report;
  return EliminateBySubstitution(task);
}

template SegmentReport EliminateSegment(const EliminateTask<double>& task);
template SegmentReport EliminateSegment(const EliminateTask<float>& task);

}  // namespace blockd::cpu
