#include "server/base/clock.h"

#include <gtest/gtest.h>

#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/time/clock.h"
#include "server/base/steady_time.h"
#include "tests/support/hooks/stepped_clock.h"

namespace blockd::server {
namespace {

TEST(RealClockTest, GoesOnWhateverTheWallSays) {
  RealClock clock;
  absl::Time last = clock.Now();
  for (const absl::Duration step : {absl::Hours(1000), -absl::Hours(1000)}) {
    const test::SteppedClock stepped(step);
    const absl::Time now = clock.Now();
    EXPECT_LE(last, now);
    EXPECT_LT(now, last + absl::Hours(1));
    last = now;
  }
}

TEST(RealClockTest, WhatIsLeftUntilATimeOfTheWallIsLeft) {
  for (const absl::Duration step : {absl::ZeroDuration(), absl::Hours(1000), -absl::Hours(1000)}) {
    const test::SteppedClock stepped(step);
    const absl::Time then = ToSteady(absl::Now() + absl::Hours(10));
    const absl::Duration left = then - SteadyNow();
    EXPECT_LE(left, absl::Hours(10));
    EXPECT_GT(left, absl::Hours(9));
  }
  EXPECT_EQ(ToSteady(absl::InfiniteFuture()), absl::InfiniteFuture());
}

TEST(RealClockTest, WaitsAsLongWhateverTheWallSays) {
  RealClock clock;
  absl::Mutex mutex;
  absl::CondVar condition;
  absl::MutexLock lock(&mutex);
  clock.Now();
  for (const absl::Duration step : {absl::Hours(1000), -absl::Hours(1000)}) {
    const test::SteppedClock stepped(step);
    const absl::Time soon = clock.Now() + absl::Milliseconds(2);
    while (!clock.WaitUntil(&mutex, &condition, soon)) {
    }
    EXPECT_GE(clock.Now(), soon);
    EXPECT_LT(clock.Now(), soon + absl::Hours(1));
  }
}

TEST(RealClockTest, WaitsUntilTheDeadlineAndSaysThatItCame) {
  RealClock clock;
  absl::Mutex mutex;
  absl::CondVar condition;
  absl::MutexLock lock(&mutex);
  EXPECT_TRUE(clock.WaitUntil(&mutex, &condition, clock.Now() - absl::Seconds(1)));
  const absl::Time soon = clock.Now() + absl::Milliseconds(2);
  while (!clock.WaitUntil(&mutex, &condition, soon)) {
  }
  EXPECT_GE(clock.Now(), soon);
}

TEST(RealClockTest, ASignalEndsTheWait) {
  RealClock clock;
  absl::Mutex mutex;
  absl::CondVar condition;
  for (const absl::Time deadline : {absl::InfiniteFuture(), clock.Now() + absl::Hours(1)}) {
    bool said = false;
    mutex.Lock();
    std::thread other([&] {
      absl::MutexLock lock(&mutex);
      said = true;
      condition.Signal();
    });
    while (!said) EXPECT_FALSE(clock.WaitUntil(&mutex, &condition, deadline));
    mutex.Unlock();
    other.join();
  }
}

}  // namespace
}  // namespace blockd::server
