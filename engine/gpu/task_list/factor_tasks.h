// The work of a factorization of few large blocks, as tasks that the host lists once for a plan:
// each forms a tile of 128 rows, wide (128 columns) or narrow (32), and comes after those it waits
// for. Of a block D = L L' with tiles (i,j), E and S its couplings to the next block and to the
// left separator, C and W of the block before with a dash:
//
//     A(i,j) = D(i,j) - C'(i,:) C'(j,:)'
//     inv(L)(j,j) from A(j,j) - L(j,:j) L(j,:j)'
//     L(i,j) = (A(i,j) - L(i,:j) L(j,:j)') inv(L)(j,j)'
//     Y(r,j) = E(r,j) - C(r,:j) L(j,:j)',   C(r,j) = Y(r,j) inv(L)(j,j)';   W from S likewise
//     S = -W' C'',  and to the left separator  - W W'
//     inv(L)(j,l) = -inv(L)(j,j) sum L(j,m) inv(L)(m,l), which is only kept; and its growth
//
// A block's chain is the inverses on the diagonal, L between them, and the last columns of C; all
// else comes beside that.
#ifndef BLOCKD_ENGINE_GPU_TASK_LIST_FACTOR_TASKS_H_
#define BLOCKD_ENGINE_GPU_TASK_LIST_FACTOR_TASKS_H_

#include <cstdint>
#include <vector>

#include "engine/gpu/task_list/factor_task.h"

namespace blockd::gpu {

class FactorTasks {
 public:
  // Scalars of scratch for a segment's tasks, shared by all levels' segments with the same number.
  static constexpr int64_t ScratchScalars(int64_t n) {
    return 7 * n * n + 2 * FactorTask::kTile * n;
  }

  // Tasks for each tile of a block, about the most that a plan has on average; of a row, tiles.
  static constexpr int64_t kMostOfATile = 28, kMostTiles = 6;
  static_assert(kMostTiles + 2 <= FactorTask::kMostWaits);

  // levels: as EliminateLockstep has them, with any systems. lanes: thread blocks for a system.
  // busy: all tasks are wide, which take the least time together. The bits are the same.
  FactorTasks(const std::vector<EliminateArgs>& levels, bool superdiagonal, int64_t lanes,
              bool busy);

  // False: the plan has more to count than tasks can name, and there are no tasks.
  bool complete() const { return complete_; }
  int64_t num_tasks() const { return static_cast<int64_t>(tasks_.size()); }
  int64_t num_counters() const { return num_counters_; }
  // Writes num_tasks() of them, in order.
  void Write(FactorTask* out) const {
    for (const int32_t i : order_) *out++ = tasks_[i];
  }

 private:
  std::vector<FactorTask> tasks_;
  std::vector<int32_t> order_;
  int64_t num_counters_ = 0;
  bool complete_ = true;
};

}  // namespace blockd::gpu

#endif  // BLOCKD_ENGINE_GPU_TASK_LIST_FACTOR_TASKS_H_
