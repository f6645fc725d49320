// log det A from a factor.
#ifndef BLOCKD_ENGINE_CPU_LOG_DETERMINANT_H_
#define BLOCKD_ENGINE_CPU_LOG_DETERMINANT_H_

#include "blockd/engine/elimination_plan.h"

namespace blockd::cpu {

// In one thread, from any.
double LogDeterminant(const EliminationPlan& plan, const void* factor);

}  // namespace blockd::cpu

#endif  // BLOCKD_ENGINE_CPU_LOG_DETERMINANT_H_
