// The order in which thread blocks take the tasks of a factorization.
#ifndef BLOCKD_ENGINE_GPU_TASK_LIST_TASK_ORDER_H_
#define BLOCKD_ENGINE_GPU_TASK_LIST_TASK_ORDER_H_

#include <cstdint>
#include <vector>

#include "engine/gpu/task_list/factor_task.h"

namespace blockd::gpu {

// The order in which `lanes` thread blocks would begin the tasks, if each took, of those that are
// ready, the one with the longest way to the end. A task comes after those that it waits for, in
// `tasks` already.
std::vector<int32_t> OrderTasks(const std::vector<FactorTask>& tasks, int64_t num_counters,
                                int64_t lanes);

}  // namespace blockd::gpu

#endif  // BLOCKD_ENGINE_GPU_TASK_LIST_TASK_ORDER_H_
