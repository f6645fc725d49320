#include "engine/gpu/task_list/task_order.h"

#include <algorithm>
#include <functional>
#include <queue>
#include <utility>

namespace blockd::gpu {
namespace {

using Kind = FactorTask::Kind;

// About how long a task takes, in microseconds on an H200.
float Duration(const FactorTask& task) {
  const double depth = (task.depth[0] + task.depth[1]) / double{FactorTask::kTile};
  switch (task.kind) {
    case Kind::kWide:
      return static_cast<float>(3 + 4.5 * depth);
    case Kind::kNarrow:
      return static_cast<float>(2 + 1.5 * depth);
    case Kind::kInvert:
      return 18;
    case Kind::kCopy:
    case Kind::kGrowth:
      return 4;
  }
  return 0;
}

// The waits that each task still has, while the tasks before it end.
class Waits {
 public:
  Waits(const std::vector<FactorTask>& tasks, int64_t num_counters)
      : first_(num_counters + 1), reached_(num_counters), missing_(tasks.size()) {
    for (const FactorTask& task : tasks) {
      for (int w = 0; w < task.num_waits; ++w) ++first_[task.waits[w].counter + 1];
    }
    for (int64_t c = 0; c < num_counters; ++c) first_[c + 1] += first_[c];
    waiting_.resize(first_.back());
    end_ = first_;
    for (size_t i = 0; i < tasks.size(); ++i) {
      missing_[i] = tasks[i].num_waits;
      for (int w = 0; w < tasks[i].num_waits; ++w) {
        const FactorTask::Wait& wait = tasks[i].waits[w];
        waiting_[end_[wait.counter]++] = {wait.count, static_cast<int32_t>(i)};
      }
    }
    for (int64_t c = 0; c < num_counters; ++c) {
      std::sort(waiting_.begin() + first_[c], waiting_.begin() + end_[c]);
    }
  }

  bool IsReady(int32_t task) const { return missing_[task] == 0; }
  // The task has ended: calls body with those that are ready now.
  template <typename Body>
  void End(const FactorTask& ended, const Body& body) {
    for (const int16_t signal : ended.signals) {
      if (signal < 0) continue;
      ++reached_[signal];
      int32_t& next = first_[signal];
      for (; next < end_[signal] && waiting_[next].first == reached_[signal]; ++next) {
        const int32_t i = waiting_[next].second;
        if (--missing_[i] == 0) body(i);
      }
    }
  }

 private:
  // Who waits for a counter, by the count: waiting_[first_[counter]] to waiting_[end_[counter]].
  std::vector<std::pair<uint16_t, int32_t>> waiting_;
  std::vector<int32_t> first_, end_, reached_;
  std::vector<uint8_t> missing_;
};

// How long it takes from each task's beginning until all that waits for it has ended.
std::vector<float> TimesToEnd(const std::vector<FactorTask>& tasks, int64_t num_counters) {
  std::vector<float> to_end(tasks.size()), after(num_counters);
  for (size_t i = tasks.size(); i-- > 0;) {
    const FactorTask& task = tasks[i];
    for (const int16_t signal : task.signals) {
      if (signal >= 0) to_end[i] = std::max(to_end[i], after[signal]);
    }
    to_end[i] += Duration(task);
    for (int w = 0; w < task.num_waits; ++w) {
      float& of_counter = after[task.waits[w].counter];
      of_counter = std::max(of_counter, to_end[i]);
    }
  }
  return to_end;
}

}  // namespace

std::vector<int32_t> OrderTasks(const std::vector<FactorTask>& tasks, int64_t num_counters,
                                int64_t lanes) {
  const std::vector<float> to_end = TimesToEnd(tasks, num_counters);
  Waits waits(tasks, num_counters);
  using Entry = std::pair<float, int32_t>;
  // By the way to the end: inversions, then others. Of two inversions in a row one would wait for
  // the other, for they come to the same multiprocessor.
  std::priority_queue<Entry> ready[2];
  std::priority_queue<Entry, std::vector<Entry>, std::greater<>> running;  // by when they end
  // Nobody waits for these: they come last, when there are fewer others than lanes.
  std::vector<int32_t> last;
  const auto add = [&](int32_t i) {
    if (tasks[i].kind == Kind::kGrowth) return last.push_back(i);
    ready[tasks[i].kind != Kind::kInvert].push({to_end[i], i});
  };
  for (int32_t i = 0; i < static_cast<int32_t>(tasks.size()); ++i) {
    if (waits.IsReady(i)) add(i);
  }
  std::vector<int32_t> order;
  order.reserve(tasks.size());
  int64_t free = std::max<int64_t>(lanes, 1);
  float now = 0;
  bool others = true;  // the last one was no inversion
  for (;;) {
    while (free > 0 && !(ready[0].empty() && ready[1].empty())) {
      others = ready[0].empty() || (!others && !ready[1].empty());
      const int32_t i = ready[others].top().second;
      ready[others].pop();
      order.push_back(i);
      running.push({now + Duration(tasks[i]), i});
      --free;
    }
    if (running.empty()) break;
    now = running.top().first;
    const FactorTask& ended = tasks[running.top().second];
    running.pop();
    ++free;
    waits.End(ended, add);
  }
  order.insert(order.end(), last.begin(), last.end());
  return order;
}

}  // namespace blockd::gpu
