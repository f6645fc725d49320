// The work of a solve with few large blocks in float32, as tasks that the host lists once for a
// plan. A task is a product, or the sum of two, with all rows of a block: y = inv(L) b, C y or W y;
// backward t = y - C' x - W' x, then inv(L)' t. Each leaves a vector of its own, which is written
// once in a launch. A task comes after those whose vectors it takes.
#ifndef BLOCKD_ENGINE_GPU_TASK_LIST_SOLVE_TASKS_H_
#define BLOCKD_ENGINE_GPU_TASK_LIST_SOLVE_TASKS_H_

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "engine/gpu/plan/solve_args.h"
#include "engine/gpu/task_list/solve_task.h"

namespace blockd::gpu {

// Makes the tasks of all passes of a solve.
class SolveTasks {
 public:
  // lanes: unless 0, tasks are for parts of the columns where fewer thread blocks are busy.
  SolveTasks(const SolveArgs& args, int64_t lanes) : args_(args), lanes_(lanes) {
    levels_.resize(args.num_levels);
    int64_t blocks = 0;
    for (int32_t l = 0; l < args.num_levels; ++l) {
      const LevelShape& shape = args.levels[l].shape;
      int64_t length = shape.separators;
      for (int64_t s = 0; s < shape.segments(); ++s) length += shape.segment(s).count;
      Chain& chain = levels_[l];
      chain.right.resize(length), chain.y.resize(length), chain.x.resize(length);
      chain.place.resize(length);
      if (l == 0) blocks = length;
    }
    for (int64_t b = 0; b < blocks; ++b) {
      levels_[0].right[b] = {SolveTask::BlockOfX(b), SolveTask::kNone};
      levels_[0].place[b] = static_cast<int32_t>(b);
    }
    for (int32_t l = 0; l < args.num_levels; ++l) {
      CutColumns(l);
      Forward(l);
    }
    for (int32_t l = args.num_levels - 1; l >= 0; --l) {
      CutColumns(l);
      Backward(l);
    }
  }

  const std::vector<SolveTask>& tasks() const { return tasks_; }
  int32_t num_vectors() const { return num_vectors_; }

 private:
  // A level's chain: of each block its right-hand side, a sum of two vectors, y, its solution, and
  // where it stands in the system.
  struct Chain {
    std::vector<std::pair<int32_t, int32_t>> right;
    std::vector<int32_t> y, x, place;
  };

  // Steps of the longest segment.
  static int64_t Steps(const LevelShape& shape) {
    return std::max({shape.first_length, shape.last_length, shape.longest_middle()});
  }
  int64_t Square() const { return args_.n * args_.n; }
  // Sets how many tasks a product of a level is.
  void CutColumns(int32_t l) {
    const int64_t items = args_.levels[l].shape.segments() *
                          ((args_.n + SolveTask::kItemRows - 1) / SolveTask::kItemRows);
    parts_ = static_cast<int8_t>(std::clamp<int64_t>(lanes_ / items, 1, SolveTask::kMostParts));
  }
  int32_t Add(SolveTask task) {
    task.out = num_vectors_++;
    task.parts = parts_;
    for (task.part = 0; task.part < parts_; ++task.part) tasks_.push_back(task);
    return task.out;
  }
  static SolveTask Product(int64_t matrix, bool forward, bool triangle) {
    SolveTask task;
    task.matrix[0] = matrix;
    task.matrices = 1;
    task.forward = forward, task.triangle = triangle;
    return task;
  }

  void Forward(int32_t l) {
    const SolveLevel& level = args_.levels[l];
    const LevelShape& shape = level.shape;
    Chain& chain = levels_[l];
    Chain* const above = l + 1 < args_.num_levels ? &levels_[l + 1] : nullptr;
    std::vector<int32_t> fill(shape.segments(), SolveTask::kNone);
    const auto each = [&](int64_t k, const auto& body) {
      for (int64_t s = 0; s < shape.segments(); ++s) {
        const SegmentRange range = shape.segment(s);
        if (k < range.count) body(s, range, range.block(k));
      }
    };
    for (int64_t k = 0; k < Steps(shape); ++k) {
      each(k, [&](int64_t, const SegmentRange& range, int64_t block) {
        SolveTask task =
            Product(level.inverse_offset + (range.slot + k) * TriangleSize(args_.n), true, true);
        task.vector[0][0] = chain.right[block].first, task.vector[0][1] = chain.right[block].second;
        chain.y[block] = Add(task);
      });
      each(k, [&](int64_t, const SegmentRange& range, int64_t block) {
        const bool last = k + 1 == range.count;
        if (last && range.target() < 0) return;
        SolveTask task = Product(level.next_offset + (range.slot + k) * Square(), true, false);
        task.vector[0][0] = chain.y[block];
        const int64_t next = last ? range.target() : range.block(k + 1);
        if (!last || !range.reversed) {
          task.start[0] = chain.right[next].first, task.start[1] = chain.right[next].second;
        }
        const int32_t out = Add(task);
        if (!last) {
          chain.right[next] = {out, SolveTask::kNone};
        } else if (range.reversed) {
          above->right[range.left].second = out;
        } else {
          above->right[range.right].first = out;
          above->place[range.right] = chain.place[next];
        }
      });
      each(k, [&](int64_t s, const SegmentRange& range, int64_t block) {
        if (!range.has_fill()) return;
        SolveTask task = Product(level.fill_offset + (range.fill_slot + k) * Square(), true, false);
        task.vector[0][0] = chain.y[block];
        task.start[0] = fill[s];
        fill[s] = Add(task);
        if (k + 1 == range.count) above->right[range.left].second = fill[s];
      });
    }
  }

  void Backward(int32_t l) {
    const SolveLevel& level = args_.levels[l];
    const LevelShape& shape = level.shape;
    Chain& chain = levels_[l];
    for (int64_t s = 0; s < shape.separators; ++s) {
      chain.x[shape.segment(s).target()] = levels_[l + 1].x[s];
    }
    std::vector<int32_t> updated(shape.segments(), SolveTask::kNone);
    for (int64_t step = 0; step < Steps(shape); ++step) {
      for (int64_t s = 0; s < shape.segments(); ++s) {
        const SegmentRange range = shape.segment(s);
        const int64_t k = range.count - 1 - step;
        if (k >= 0) updated[s] = Update(l, range, k);
      }
      for (int64_t s = 0; s < shape.segments(); ++s) {
        const SegmentRange range = shape.segment(s);
        const int64_t k = range.count - 1 - step;
        if (k < 0) continue;
        const int64_t block = range.block(k);
        SolveTask task =
            Product(level.inverse_offset + (range.slot + k) * TriangleSize(args_.n), false, true);
        task.vector[0][0] = updated[s];
        task.solution = chain.place[block];
        chain.x[block] = Add(task);
      }
    }
  }
  // t, or y where nothing is to be subtracted. The product that can begin first comes first.
  int32_t Update(int32_t l, const SegmentRange& range, int64_t k) {
    const SolveLevel& level = args_.levels[l];
    const Chain& chain = levels_[l];
    const int64_t block = range.block(k);
    const bool last = k + 1 == range.count;
    SolveTask task;
    task.start[0] = chain.y[block];
    if (range.has_fill()) {
      task.matrix[0] = level.fill_offset + (range.fill_slot + k) * Square();
      task.vector[0][0] = levels_[l + 1].x[range.left];
      task.matrices = 1;
    }
    if (!last || range.target() >= 0) {
      task.matrix[task.matrices] = level.next_offset + (range.slot + k) * Square();
      task.vector[task.matrices++][0] =
          last ? levels_[l + 1].x[range.reversed ? range.left : range.right]
               : chain.x[range.block(k + 1)];
    }
    return task.matrices == 0 ? chain.y[block] : Add(task);
  }

  const SolveArgs& args_;
  const int64_t lanes_;
  std::vector<Chain> levels_;
  std::vector<SolveTask> tasks_;
  int32_t num_vectors_ = 0;
  int8_t parts_ = 1;
};

}  // namespace blockd::gpu

#endif  // BLOCKD_ENGINE_GPU_TASK_LIST_SOLVE_TASKS_H_
