// The lists of tasks that factorizations of few large blocks consist of: whoever waits for
// something comes after it, so that thread blocks that take tasks in order always come to an end.
#include "engine/gpu/task_list/factor_tasks.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "engine/gpu/method.h"
#include "engine/gpu/plan/plan_args.h"
#include "engine/gpu/runtime/workspace.h"
#include "gtest/gtest.h"

namespace blockd::gpu {
namespace {

constexpr int64_t kLanes = 264;
const DeviceLimits kH200 = {132, 233472, 232448, {}};

EliminationPlan Halved(const Shape& shape, int64_t separators) {
  std::vector<int64_t> levels;
  for (int64_t s = separators; s > 0; s = (s - 1) / 2) levels.push_back(s);
  return *EliminationPlan::MakeWithSeparators(shape, levels);
}

std::vector<EliminateArgs> LevelsOf(const EliminationPlan& plan) {
  std::vector<EliminateArgs> levels;
  for (size_t l = 0; l < plan.levels().size(); ++l) {
    levels.push_back(ArgsOfLevel(plan, static_cast<int64_t>(l)));
  }
  return levels;
}

void ExpectInOrder(const EliminationPlan& plan, bool superdiagonal, int64_t lanes, bool busy) {
  const FactorTasks made(LevelsOf(plan), superdiagonal, lanes, busy);
  ASSERT_TRUE(made.complete());
  EXPECT_LE(made.num_tasks() * int64_t{sizeof(FactorTask)}, workspace::kListBytes);
  EXPECT_LE(made.num_counters(), FactorTask::kMostCounters);
  std::vector<FactorTask> tasks(made.num_tasks());
  made.Write(tasks.data());
  std::vector<int64_t> counts(made.num_counters());
  int64_t inverted = 0, measured = 0;
  for (const FactorTask& task : tasks) {
    ASSERT_LE(task.start_waits, task.num_waits);
    ASSERT_LE(task.num_waits, FactorTask::kMostWaits);
    for (int w = 0; w < task.num_waits; ++w) {
      ASSERT_GE(counts.at(task.waits[w].counter), task.waits[w].count);
    }
    const bool measures = task.kind == FactorTask::Kind::kGrowth;
    ASSERT_EQ(task.signals[0] >= 0, !measures);  // nobody waits for the growth
    for (const int16_t signal : task.signals) {
      if (signal >= 0) ++counts.at(signal);
    }
    inverted += task.kind == FactorTask::Kind::kInvert;
    measured += measures;
    EXPECT_TRUE(!busy || task.kind != FactorTask::Kind::kNarrow);
  }
  const int64_t tiles = (plan.shape().block_size + FactorTask::kTile - 1) / FactorTask::kTile;
  EXPECT_EQ(inverted, plan.shape().num_blocks * tiles);
  EXPECT_EQ(measured, inverted);
}

TEST(FactorTasksTest, ComeAfterWhatTheyWaitFor) {
  for (const int64_t n : {193, 200, 256, 300, 385, 640, 768}) {
    for (const int64_t num_blocks : {1, 2, 3, 4, 5, 9, 17, 20, 56, 128}) {
      const Shape shape{num_blocks, n, Scalar::kFloat32};
      if (FactorMethod(shape, kH200) != Method::kTaskList) continue;
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

// A task names what it waits for by 16 bits. A plan that has more to count says so, and lists none.
TEST(FactorTasksTest, OfTooManyBlocksAreRefused) {
  const EliminationPlan plan = Halved({400, 768, Scalar::kFloat32}, 199);
  const FactorTasks made(LevelsOf(plan), false, kLanes, false);
  EXPECT_FALSE(made.complete());
  EXPECT_EQ(made.num_tasks(), 0);
  EXPECT_LE(made.num_counters(), FactorTask::kMostCounters);
}

}  // namespace
}  // namespace blockd::gpu
