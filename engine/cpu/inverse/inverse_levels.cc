#include "engine/cpu/inverse/inverse_levels.h"

#include <algorithm>
#include <cstddef>
#include <vector>

#include "blockd/engine/inverse_ranges.h"
#include "engine/cpu/kernels/kernels.h"
#include "engine/cpu/kernels/large_blocks.h"

namespace blockd::cpu {
namespace {

// Scratch of a walk through a segment.
int64_t WalkBytes(const EliminationPlan& plan) {
  const int64_t n = plan.shape().block_size;
  const bool fill = std::any_of(plan.levels().begin(), plan.levels().end(),
                                [](const Level& level) { return level.fills > 0; });
  const int64_t scalars = UsesLargeBlocks(n) ? LargeInverseScratchScalars(n, fill)
                          : plan.shape().scalar == Scalar::kFloat64
                              ? SelectKernels<double>().inverse_scratch_scalars(n, fill)
                              : SelectKernels<float>().inverse_scratch_scalars(n, fill);
  return MemoryPool::Rounded(scalars * ScalarBytes(plan.shape().scalar));
}

int64_t ChainBytes(const EliminationPlan& plan, const std::vector<InverseRange>& ranges) {
  return MemoryPool::Rounded(InverseChainScalars(plan, ranges) * ScalarBytes(plan.shape().scalar));
}

template <typename T>
class Levels {
 public:
  Levels(const InverseRequest& request, PendingSolves* solves)
      : request_(request),
        plan_(*request.plan),
        n_(plan_.shape().block_size),
        solves_(solves),
        ranges_(InverseRanges(plan_, request.first_block, request.num_blocks)),
        walk_bytes_(WalkBytes(plan_)) {
    T* at = static_cast<T*>(request.scratch);
    for (const InverseRange& range : ranges_) {
      InverseChain<T>& chain = chains_.emplace_back();
      chain.n = n_;
      chain.first = range.first;
      chain.end = range.end;
      if (chains_.size() == 1) continue;
      chain.diagonal = at;
      chain.coupling = at + range.blocks() * n_ * n_;
      at = chain.coupling + range.blocks() * n_ * n_;
    }
    T* const diagonal = static_cast<T*>(request.diagonal);
    const bool entries = request.parts == InverseParts::kDiagonalEntries;
    (entries ? chains_[0].entries : chains_[0].diagonal) = diagonal;
    if (request.parts == InverseParts::kWithCouplings) {
      chains_[0].coupling = static_cast<T*>(request.coupling);
    }
  }

  // Base first: from a level's chain Z of the separators of the one before is known.
  absl::Status Run(ThreadPool& threads, absl::FunctionRef<bool()> wanted) {
    for (size_t level = ranges_.size(); level-- > 0;) {
      if (!wanted()) return absl::CancelledError("cancelled while inverting");
      const InverseRange& range = ranges_[level];
      threads.Run(range.end_segment - range.first_segment, [&](int64_t i, int32_t thread) {
        const InverseTask<T> task = MakeTask(level, range.first_segment + i, thread);
        UsesLargeBlocks(n_) ? InvertLarge(task) : SelectKernels<T>().invert(task);
      });
    }
    return absl::OkStatus();
  }

 private:
  InverseTask<T> MakeTask(size_t level_index, int64_t segment_index, int32_t thread) const {
    const Level& level = plan_.levels()[level_index];
    const Segment& segment = level.segments[segment_index];
    const T* const factor = static_cast<const T*>(request_.factor);
    InverseTask<T> task;
    task.n = n_;
    task.segment = &segment;
    task.inverse = factor + level.inverse_offset + segment.slot * TriangleScalars(n_);
    task.next = factor + level.next_offset + segment.slot * n_ * n_;
    if (segment.has_fill()) task.fill = factor + level.fill_offset + segment.fill_slot * n_ * n_;
    task.out = chains_[level_index];
    task.last = ranges_[level_index].last_interior(segment);
    if (level_index + 1 < chains_.size()) UseSeparators(chains_[level_index + 1], task);
    task.scratch = reinterpret_cast<T*>(static_cast<char*>(request_.scratch) +
                                        ChainBytes(plan_, ranges_) + thread * walk_bytes_);
    task.stop = request_.stop;
    task.solves = solves_;
    task.thread = thread;
    return task;
  }

  // The right one's block comes down to this level's chain.
  static void UseSeparators(const InverseChain<T>& next, InverseTask<T>& task) {
    const Segment& segment = *task.segment;
    if (segment.left_separator >= 0) task.left = next.Diagonal(segment.left_separator);
    if (segment.right_separator >= 0) {
      task.right = next.Diagonal(segment.right_separator);
      task.out.Copy(segment.first + segment.count, task.right);
    }
    if (segment.has_fill()) task.between = next.Coupling(segment.left_separator);
  }

  const InverseRequest& request_;
  const EliminationPlan& plan_;
  const int64_t n_;
  PendingSolves* const solves_;
  const std::vector<InverseRange> ranges_;
  const int64_t walk_bytes_;
  std::vector<InverseChain<T>> chains_;  // a level
};

}  // namespace

int64_t InverseScratchBytes(const EliminationPlan& plan, int64_t first_block, int64_t num_blocks,
                            int64_t threads) {
  return ChainBytes(plan, InverseRanges(plan, first_block, num_blocks)) + threads * WalkBytes(plan);
}

absl::Status InvertLevels(ThreadPool& threads, PendingSolves* solves, const InverseRequest& request,
                          absl::FunctionRef<bool()> wanted) {
  return request.plan->shape().scalar == Scalar::kFloat64
             ? Levels<double>(request, solves).Run(threads, wanted)
             : Levels<float>(request, solves).Run(threads, wanted);
}

}  // namespace blockd::cpu
