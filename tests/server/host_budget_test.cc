#include "server/transport/host_budget.h"

#include <gtest/gtest.h>

#include <thread>
#include <utility>
#include <vector>

namespace blockd::server {
namespace {

constexpr absl::Duration kDelay = absl::Milliseconds(70);

TEST(HostBudgetTest, WhatFitsExactlyIsTaken) {
  HostBudget budget(100, kDelay);
  Reservation share;
  EXPECT_TRUE(budget.Take(nullptr, 100, &share).ok());
  EXPECT_EQ(share.bytes(), 100);
  EXPECT_EQ(budget.used_bytes(), 100);
  Reservation nothing;
  EXPECT_TRUE(budget.Take(nullptr, 0, &nothing).ok());
}

TEST(HostBudgetTest, AShareGrowsAndGivesAllOfItBack) {
  HostBudget budget(100, kDelay);
  {
    Reservation share;
    EXPECT_TRUE(budget.Take(nullptr, 30, &share).ok());
    EXPECT_TRUE(budget.Take(nullptr, 50, &share).ok());
    EXPECT_EQ(share.bytes(), 80);
    Reservation other;
    EXPECT_TRUE(budget.Take(nullptr, 20, &other).ok());
    EXPECT_EQ(budget.used_bytes(), 100);
  }
  EXPECT_EQ(budget.used_bytes(), 0);
  Reservation again;
  EXPECT_TRUE(budget.Take(nullptr, 100, &again).ok());
}

TEST(HostBudgetTest, WhatDoesNotFitNowIsUnavailableAndTakesNothing) {
  HostBudget budget(100, kDelay);
  Reservation first, second;
  ASSERT_TRUE(budget.Take(nullptr, 60, &first).ok());
  const absl::Status status = budget.Take(nullptr, 41, &second);
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(RetryAfterOf(status), kDelay);
  EXPECT_EQ(second.bytes(), 0);
  EXPECT_EQ(budget.used_bytes(), 60);
  EXPECT_TRUE(budget.Take(nullptr, 40, &second).ok());
}

TEST(HostBudgetTest, WhatNeverFitsSaysWhichLimitAndHowFar) {
  HostBudget budget(100, kDelay);
  Reservation share;
  absl::Status status = budget.Take(nullptr, 101, &share);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_FALSE(RetryAfterOf(status).has_value());
  auto limit = LimitExceededOf(status);
  ASSERT_TRUE(limit.has_value());
  EXPECT_EQ(limit->limit, "max_inflight_request_bytes");
  EXPECT_EQ(limit->asked_bytes, 101);
  EXPECT_EQ(limit->limit_bytes, 100);
  EXPECT_EQ(budget.used_bytes(), 0);

  // Nor does it help to wait where what the request holds already is in the way.
  ASSERT_TRUE(budget.Take(nullptr, 60, &share).ok());
  status = budget.Take(nullptr, 41, &share);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  limit = LimitExceededOf(status);
  ASSERT_TRUE(limit.has_value());
  EXPECT_EQ(limit->asked_bytes, 101);
  EXPECT_EQ(share.bytes(), 60);
}

TEST(HostBudgetTest, ThreadsNeverHoldMoreThanTheLimit) {
  HostBudget budget(100, kDelay);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&budget] {
      for (int i = 0; i < 2000; ++i) {
        Reservation share;
        const bool taken = budget.Take(nullptr, 30, &share).ok();
        EXPECT_EQ(share.bytes(), taken ? 30 : 0);
        EXPECT_LE(budget.used_bytes(), 100);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(budget.used_bytes(), 0);
}

}  // namespace
}  // namespace blockd::server
