// The CPU's threads: each task once, all of them at work, loop after loop.
#include "engine/cpu/threads/thread_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <latch>
#include <set>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "tests/support/eventually.h"

namespace blockd {
namespace {

TEST(ThreadPoolTest, RunsEveryTaskOnceAndReturnsWhenAllAreDone) {
  for (const int32_t threads : {1, 2, 3, 8}) {
    ThreadPool pool(threads);
    EXPECT_EQ(pool.threads(), threads);
    for (const int64_t tasks : {0, 1, 2, 3, 7, 100, 1000}) {
      std::vector<std::atomic<int>> runs(tasks);
      std::atomic<bool> in_range = true;
      pool.Run(tasks, [&](int64_t task, int32_t thread) {
        ++runs.at(task);
        if (thread < 0 || thread >= threads) in_range = false;
      });
      for (int64_t i = 0; i < tasks; ++i) EXPECT_EQ(runs[i], 1) << "task " << i;
      EXPECT_TRUE(in_range);
    }
  }
}

// Each waits for all others: with fewer at a time, nobody would come back.
TEST(ThreadPoolTest, ItsThreadsWorkAtTheSameTime) {
  constexpr int32_t kThreads = 4;
  ThreadPool pool(kThreads);
  for (int loop = 0; loop < 20; ++loop) {
    std::latch all(kThreads);
    absl::Mutex mutex;
    std::set<int32_t> seen;
    pool.Run(kThreads, [&](int64_t, int32_t thread) {
      all.arrive_and_wait();
      absl::MutexLock lock(&mutex);
      seen.insert(thread);
    });
    EXPECT_EQ(seen.size(), static_cast<size_t>(kThreads));
  }
}

// The caller sleeps until the last of them leaves.
TEST(ThreadPoolTest, AThreadWithoutATaskDoesNotCountAsWorking) {
  ThreadPool pool(2);
  EXPECT_EQ(pool.working(), 0);
  for (int loop = 0; loop < 10; ++loop) {
    std::latch both(2);
    bool alone = false;
    pool.Run(2, [&](int64_t, int32_t thread) {
      both.arrive_and_wait();
      if (thread == 0) return;
      alone = test::Eventually([&] { return pool.working() == 1; });
      absl::SleepFor(absl::Milliseconds(2));
    });
    EXPECT_TRUE(alone);
    pool.Run(1, [&](int64_t, int32_t) { EXPECT_EQ(pool.working(), 1); });
  }
  EXPECT_EQ(pool.working(), 0);
}

// Also those that have gone to sleep in between.
TEST(ThreadPoolTest, ManyShortLoopsFollowOneAnother) {
  ThreadPool pool(3);
  int64_t sum = 0;
  for (int loop = 0; loop < 3000; ++loop) {
    std::atomic<int64_t> part = 0;
    pool.Run(5, [&](int64_t task, int32_t) { part += task; });
    sum += part;
  }
  EXPECT_EQ(sum, 3000 * 10);
}

TEST(ThreadPoolTest, EndsWithoutHavingRun) {
  for (int i = 0; i < 50; ++i) ThreadPool pool(3);
}

}  // namespace
}  // namespace blockd
