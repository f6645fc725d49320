// Costs of systems with a border of p rows; with p = 0 those of the chain. Private to the core.
#ifndef BLOCKD_SERVER_CORE_OPERATIONS_BORDER_COSTS_H_
#define BLOCKD_SERVER_CORE_OPERATIONS_BORDER_COSTS_H_

#include <cstdint>

#include "blockd/engine/elimination_plan.h"

namespace blockd::server {

// Half a solve with p columns, and their products with one another.
inline double FactorFlops(const EliminationPlan& plan, int64_t p) {
  const auto rows = static_cast<double>(plan.shape().rows()), columns = static_cast<double>(p);
  return plan.factor_flops() +
         (p == 0 ? 0 : plan.solve_flops(p) / 2 + 2 * rows * columns * columns);
}

// The border is read twice.
inline double SolveFlops(const EliminationPlan& plan, int64_t num_rhs, int64_t p) {
  return plan.solve_flops(num_rhs) + 4 * static_cast<double>(plan.shape().rows()) *
                                         static_cast<double>(p) * static_cast<double>(num_rhs);
}

// Seconds of borders, one after another, beside their chains: half a solve and about as much for
// products.
inline double PredictedBorderSeconds(const EliminationPlan& plan, int64_t p, const CostModel& costs,
                                     int64_t systems) {
  return p == 0 ? 0 : PredictedSolveSeconds(plan, p, costs) * static_cast<double>(systems);
}

}  // namespace blockd::server

#endif  // BLOCKD_SERVER_CORE_OPERATIONS_BORDER_COSTS_H_
