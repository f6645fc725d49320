// Where the outcomes and the scratch of a batch lie in the memory that its factorization was given.
#ifndef BLOCKD_ENGINE_GPU_PLAN_FACTOR_SCRATCH_H_
#define BLOCKD_ENGINE_GPU_PLAN_FACTOR_SCRATCH_H_

#include <algorithm>
#include <cstdint>

#include "blockd/engine/elimination_plan.h"
#include "blockd/engine/memory_pool.h"
#include "engine/gpu/plan/factor_args.h"

namespace blockd::gpu {

// A method's needs for the systems of a plan.
struct FactorNeeds {
  int64_t systems_a_launch = 0;  // in the table of systems
  int64_t systems_at_once = 0;   // that have scratch; others use it after them
  int64_t scratch_bytes = 0;     // of one of these
};

struct FactorScratch {
  FactorNeeds needs;
  int64_t segments = 0;  // of all levels, each with a word that says how it went
  int64_t outcomes_offset = 0, outcomes_bytes = 0;  // of a batch with too many to be pinned
  int64_t blocks_offset = 0, bytes = 0;

  // most_pinned: systems whose outcomes the host reads where kernels write them.
  FactorScratch(const EliminationPlan& plan, int64_t systems, const FactorNeeds& method_needs,
                int64_t most_pinned)
      : needs(method_needs) {
    for (const Level& level : plan.levels()) {
      segments += static_cast<int64_t>(level.segments.size());
    }
    outcomes_offset = segments * systems * int64_t{sizeof(int64_t)};
    if (systems > most_pinned) outcomes_bytes = systems * int64_t{sizeof(SystemOutcome)};
    blocks_offset = MemoryPool::Rounded(outcomes_offset + outcomes_bytes);
    bytes = blocks_offset + std::min(systems, needs.systems_at_once) * needs.scratch_bytes;
  }
};

}  // namespace blockd::gpu

#endif  // BLOCKD_ENGINE_GPU_PLAN_FACTOR_SCRATCH_H_
