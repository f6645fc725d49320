// Threads that share loops: each turn once, several loops at a time, and what a turn throws.
#include "blockd/engine/step_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <latch>
#include <thread>
#include <vector>

namespace blockd {
namespace {

TEST(StepPoolTest, TakesEveryTurnOnceAndReturnsWhenAllAreDone) {
  for (const int threads : {1, 2, 5}) {
    StepPool pool(threads);
    EXPECT_EQ(pool.threads(), threads);
    for (const int64_t turns : {0, 1, 2, 7, 1000}) {
      std::vector<std::atomic<int>> taken(static_cast<size_t>(turns));
      pool.Run(turns, [&](int64_t i, int) { ++taken.at(static_cast<size_t>(i)); });
      for (const std::atomic<int>& times : taken) EXPECT_EQ(times, 1);
    }
  }
}

// Each waits for all others: with fewer at a time, nobody would come back.
TEST(StepPoolTest, ItsThreadsAndTheCallersWorkAtTheSameTime) {
  StepPool pool(3);
  for (int loop = 0; loop < 20; ++loop) {
    std::latch all(3);
    pool.Run(3, [&](int64_t, int) { all.arrive_and_wait(); });
  }
}

TEST(StepPoolTest, SeveralLoopsRunAtOnce) {
  StepPool pool(4);
  std::vector<std::thread> callers;
  std::atomic<int64_t> sum = 0;
  for (int caller = 0; caller < 6; ++caller) {
    callers.emplace_back([&] {
      for (int loop = 0; loop < 300; ++loop) pool.Run(9, [&](int64_t i, int) { sum += i; });
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(sum, 6 * 300 * 36);
}

TEST(StepPoolTest, WhatATurnThrowsComesToTheCallerAndEndsTheLoop) {
  for (const int threads : {1, 4}) {
    StepPool pool(threads);
    for (int loop = 0; loop < 50; ++loop) {
      const std::vector<int> one = {1};
      std::atomic<int> under_way = 0;
      const auto fail = [&](int64_t i, int) {
        ++under_way;
        under_way -= one.at(i == 3 ? 1 : 0);
      };
      EXPECT_ANY_THROW(pool.Run(100, fail));
      EXPECT_EQ(under_way, 1);
    }
    std::atomic<int> turns = 0;
    pool.Run(10, [&](int64_t, int) { ++turns; });
    EXPECT_EQ(turns, 10);
  }
}

}  // namespace
}  // namespace blockd
