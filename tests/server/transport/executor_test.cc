#include "server/transport/rpc/executor.h"

#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace blockd::server {
namespace {

struct Step final : Executor::Task {
  explicit Step(std::function<void()> run) : run(std::move(run)) {}
  void Run() noexcept override { run(); }
  const std::function<void()> run;
};
std::shared_ptr<Step> Do(std::function<void()> run) {
  return std::make_shared<Step>(std::move(run));
}

TEST(ExecutorTest, OneThreadRunsWhatCameInItsOrder) {
  std::vector<int> order;
  {
    Executor executor("test", 1);
    for (int i = 0; i < 100; ++i) executor.Post(Do([&order, i] { order.push_back(i); }));
  }
  ASSERT_EQ(order.size(), 100u);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(order[static_cast<size_t>(i)], i);
}

TEST(ExecutorTest, AWaitingTaskDoesNotHoldUpTheOtherThread) {
  Executor executor("test", 2);
  absl::Notification may_go, done;
  executor.Post(Do([&] { may_go.WaitForNotification(); }));
  executor.Post(Do([&] { done.Notify(); }));
  done.WaitForNotification();
  may_go.Notify();
}

TEST(ExecutorTest, ATaskMayPostItselfAgainWhileItRuns) {
  std::atomic<int> runs{0};
  {
    Executor executor("test", 2);
    std::shared_ptr<Step> again;
    absl::Notification enough;
    again = Do([&] {
      const int run = ++runs;
      if (run < 1000) executor.Post(again);
      if (run == 1000) enough.Notify();
    });
    executor.Post(again);
    enough.WaitForNotification();
  }
  EXPECT_EQ(runs, 1000);
}

// Posts while one looks, while it is about to sleep, and while all sleep: each is run.
TEST(ExecutorTest, WhatIsPostedRunsWhetherOneLooksOrAllSleep) {
  for (const int threads : {1, 3}) {
    Executor executor("test", threads, absl::Microseconds(20));
    for (int i = 0; i < 3000; ++i) {
      std::atomic<int> left{1 + i % 3};
      absl::Notification done;
      for (int k = left; k > 0; --k) {
        executor.Post(Do([&] {
          if (--left == 0) done.Notify();
        }));
      }
      ASSERT_TRUE(done.WaitForNotificationWithTimeout(absl::Minutes(1)));
      const absl::Time until = absl::Now() + absl::Microseconds(i % 40);
      while (absl::Now() < until) {
      }
    }
  }
}

TEST(ExecutorTest, WhatWaitsIsHeldAndLetGoOnceItHasRun) {
  Executor executor("test", 1);
  absl::Notification may_go, done;
  executor.Post(Do([&] { may_go.WaitForNotification(); }));
  std::shared_ptr<Step> task = Do([] {});
  const std::weak_ptr<Step> watched = task;
  executor.Post(std::move(task));
  EXPECT_FALSE(watched.expired());
  executor.Post(Do([&] { done.Notify(); }));
  may_go.Notify();
  done.WaitForNotification();
  EXPECT_TRUE(watched.expired());
}

TEST(ExecutorTest, ItsThreadsMayCallTheTransportAndOthersMayNot) {
  EXPECT_FALSE(IsTransportThread());
  std::atomic<bool> inside{false};
  {
    Executor("test", 1).Post(Do([&] { inside = IsTransportThread(); }));
  }
  EXPECT_TRUE(inside);
}

}  // namespace
}  // namespace blockd::server
