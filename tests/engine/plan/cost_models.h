// Cost models for tests of plans.
#ifndef BLOCKD_TESTS_ENGINE_PLAN_COST_MODELS_H_
#define BLOCKD_TESTS_ENGINE_PLAN_COST_MODELS_H_

#include <gtest/gtest.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "blockd/engine/elimination_plan.h"

namespace blockd {

// A device of two cores, and one like a GPU: many lanes, slow steps.
inline CostModel TwoCores() {
  return {.lanes = 2,
          .lane_flops_per_second = 4e10,
          .device_flops_per_second = 8e10,
          .half_rate_block_size = 16,
          .bytes_per_second = 2e10,
          .step_seconds = 1e-7,
          .level_seconds = 5e-6};
}
inline CostModel ManyLanes() {
  return {.lanes = 132,
          .lane_flops_per_second = 2e11,
          .device_flops_per_second = 2.5e13,
          .half_rate_block_size = 64,
          .bytes_per_second = 4e12,
          .step_seconds = 2e-6,
          .level_seconds = 5e-6};
}

// A plan in FP64.
inline EliminationPlan Cut(int64_t num_blocks, int64_t block_size,
                           std::vector<int64_t> separators) {
  absl::StatusOr<EliminationPlan> plan =
      EliminationPlan::MakeWithSeparators({num_blocks, block_size, Scalar::kFloat64}, separators);
  EXPECT_TRUE(plan.ok()) << plan.status();
  return *std::move(plan);
}

}  // namespace blockd

#endif  // BLOCKD_TESTS_ENGINE_PLAN_COST_MODELS_H_
