// How a task of a factorization is put together: its products, what it waits for, what it signals.
#ifndef BLOCKD_ENGINE_GPU_TASK_LIST_TASK_BUILDER_H_
#define BLOCKD_ENGINE_GPU_TASK_LIST_TASK_BUILDER_H_

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "engine/gpu/task_list/factor_task.h"

namespace blockd::gpu {

class TaskBuilder {
 public:
  bool complete() const { return complete_; }
  int64_t num_counters() const { return num_counters_; }
  std::vector<FactorTask> TakeTasks() { return std::move(tasks_); }

 protected:
  static constexpr int64_t kTile = FactorTask::kTile, kPiece = FactorTask::kPiece;
  using Address = FactorTask::Address;
  using Kind = FactorTask::Kind;

  // Blocks have n rows. busy: all tasks are wide.
  TaskBuilder(int64_t n, bool busy) : n_(n), tiles_((n + kTile - 1) / kTile), busy_(busy) {}

  // An object that tasks wait for, until all tasks that signal it so far have done so.
  struct Object {
    int16_t counter = FactorTask::kNone;
    uint16_t count = 0;
  };
  int64_t Square() const { return n_ * n_; }
  int64_t Size(int64_t tile) const { return std::min(kTile, n_ - tile * kTile); }
  int64_t Index(int64_t i, int64_t j) const { return i * tiles_ + j; }

  void Reserve(int64_t tasks) { tasks_.reserve(tasks); }

  static void WaitFor(FactorTask& task, const Object& object) {
    if (object.count == 0) return;
    for (int i = 0; i < task.num_waits; ++i) {
      if (task.waits[i].counter == object.counter) {
        task.waits[i].count = std::max(task.waits[i].count, object.count);
        return;
      }
    }
    task.waits[task.num_waits++] = {object.counter, object.count};
  }
  // The waits of `start` have to come before all others.
  static void WaitToStart(FactorTask& task, const Object& object) {
    WaitFor(task, object);
    task.start_waits = task.num_waits;
  }
  // A new object has a counter of its own. Once there are too many nobody may look at the tasks.
  int16_t Signalled(Object& object) {
    if (object.counter < 0) {
      complete_ &= num_counters_ < FactorTask::kMostCounters;
      object.counter = static_cast<int16_t>(complete_ ? num_counters_++ : 0);
    }
    ++object.count;
    return object.counter;
  }

  FactorTask Tile(const Address& out, int64_t i, int64_t j) const {
    FactorTask task;
    task.out = out;
    task.row0 = static_cast<int16_t>(i * kTile), task.column0 = static_cast<int16_t>(j * kTile);
    return task;
  }
  // A tile of a matrix, or several in a row.
  struct Operand {
    Address matrix;
    int64_t row_tile, column_tile;
  };
  // The p-th product is A B'.
  void Multiply(FactorTask& task, int p, const Operand& a, const Operand& b, int64_t depth) const {
    const auto place = [&](const Operand& o) {
      return o.matrix.Plus((o.column_tile * n_ + o.row_tile) * kTile);
    };
    task.a[p] = place(a), task.b[p] = place(b);
    task.row_of_a[p] = static_cast<int16_t>(a.row_tile * kTile);
    task.row_of_b[p] = static_cast<int16_t>(b.row_tile * kTile);
    task.depth[p] = static_cast<int16_t>(depth);
  }

  void Add(const FactorTask& task, Object& object, Object* users) {
    tasks_.push_back(task);
    tasks_.back().signals[0] = Signalled(object);
    if (users) tasks_.back().signals[1] = Signalled(*users);
  }
  // One that nobody waits for.
  void Add(const FactorTask& task) { tasks_.push_back(task); }
  // The tile as one task or as narrow ones. triangular: B is a tile of inv(L) on the diagonal,
  // whose rows end there.
  void AddTile(FactorTask task, bool narrow, bool triangular, Object& object, Object* users) {
    if (!narrow || busy_) return Add(task, object, users);
    task.kind = Kind::kNarrow;
    const int64_t size = std::min(kTile, n_ - task.column0), depth = task.depth[0];
    for (int64_t column = 0; column < size; column += kPiece) {
      if (triangular) task.depth[0] = static_cast<int16_t>(std::min(depth, column + kPiece));
      Add(task, object, users);
      task.column0 = static_cast<int16_t>(task.column0 + kPiece);
      for (int p = 0; p < 2; ++p) {
        task.row_of_b[p] = static_cast<int16_t>(task.row_of_b[p] + kPiece);
        task.b[p] = task.b[p].Plus(kPiece);
      }
    }
  }

  const int64_t n_, tiles_;

 private:
  const bool busy_;
  std::vector<FactorTask> tasks_;
  int64_t num_counters_ = 0;
  bool complete_ = true;
};

}  // namespace blockd::gpu

#endif  // BLOCKD_ENGINE_GPU_TASK_LIST_TASK_BUILDER_H_
