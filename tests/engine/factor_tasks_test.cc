// The lists of tasks that factorizations of few large blocks consist of: whoever waits for
// something comes after it, so that thread blocks that take tasks in order always come to an end.
// Needs the GPU's headers, and no GPU.
#include "engine/gpu/task_list/factor_tasks.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "engine/gpu/batch_layout.h"
#include "gtest/gtest.h"

namespace blockd::gpu {
namespace {

constexpr int64_t kLanes = 264;

EliminationPlan Halved(const Shape& shape, int64_t separators) {
  std::vector<int64_t> levels;
  for (int64_t s = separators; s > 0; s = (s - 1) / 2) levels.push_back(s);
  return *EliminationPlan::MakeWithSeparators(shape, levels);
}

void ExpectInOrder(const EliminationPlan& plan, bool superdiagonal, int64_t lanes, bool busy) {
  std::vector<EliminateArgs> levels;
  for (size_t l = 0; l < plan.levels().size(); ++l) {
    levels.push_back(ArgsOfLevel(plan, static_cast<int64_t>(l)));
  }
  const FactorTasks made(levels, superdiagonal, lanes, busy);
  EXPECT_LE(made.num_tasks() * int64_t{sizeof(FactorTask)}, TaskLists::kListBytes);
  EXPECT_LE(made.num_counters(), FactorTask::kMostCounters);
  std::vector<FactorTask> tasks(made.num_tasks());
  made.Write(tasks.data());
  std::vector<int64_t> counts(made.num_counters());
  int64_t inverted = 0;
  for (const FactorTask& task : tasks) {
    ASSERT_LE(task.start_waits, task.num_waits);
    ASSERT_LE(task.num_waits, FactorTask::kMostWaits);
    for (int w = 0; w < task.num_waits; ++w) {
      ASSERT_GE(counts.at(task.waits[w].counter), task.waits[w].count);
    }
    ASSERT_GE(task.signals[0], 0);
    for (const int16_t signal : task.signals) {
      if (signal >= 0) ++counts.at(signal);
    }
    inverted += task.kind == FactorTask::Kind::kInvert;
    EXPECT_TRUE(!busy || task.kind != FactorTask::Kind::kNarrow);
  }
  const int64_t tiles = (plan.shape().block_size + FactorTask::kTile - 1) / FactorTask::kTile;
  EXPECT_EQ(inverted, plan.shape().num_blocks * tiles);
}

TEST(FactorTasksTest, ComeAfterWhatTheyWaitFor) {
  for (const int64_t n : {193, 200, 256, 300, 385, 640, 768}) {
    for (const int64_t num_blocks : {1, 2, 3, 4, 5, 9, 17, 20, 56, 128}) {
      const Shape shape{num_blocks, n, Scalar::kFloat32};
      if (!HasFactorTasks(shape)) continue;
      const int64_t most = (num_blocks - 1) / 2;
      for (const int64_t separators : {int64_t{0}, std::min(most, int64_t{2}), most / 2, most}) {
        const EliminationPlan plan = Halved(shape, separators);
        for (const bool superdiagonal : {false, true}) {
          SCOPED_TRACE(testing::Message() << "n " << n << " N " << num_blocks << " separators "
                                          << separators << " super " << superdiagonal);
          ExpectInOrder(plan, superdiagonal, kLanes, false);
          ExpectInOrder(plan, superdiagonal, 3, false);
          ExpectInOrder(plan, superdiagonal, kLanes / 4, true);
          if (HasFailure()) return;
        }
      }
    }
  }
}

TEST(FactorTasksTest, AreForFewLargeBlocksOfFloat32) {
  EXPECT_TRUE(HasFactorTasks({100, 256, Scalar::kFloat32}));
  EXPECT_FALSE(HasFactorTasks({100, 256, Scalar::kFloat64}));
  EXPECT_FALSE(HasFactorTasks({129, 256, Scalar::kFloat32}));
  EXPECT_FALSE(HasFactorTasks({4, 192, Scalar::kFloat32}));
  EXPECT_FALSE(HasFactorTasks({4, 769, Scalar::kFloat32}));
}

}  // namespace
}  // namespace blockd::gpu
