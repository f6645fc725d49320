#include "server/core/clock.h"

#include <gtest/gtest.h>

#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/time/clock.h"

namespace blockd::server {
namespace {

TEST(RealClockTest, SaysTheTime) {
  RealClock clock;
  const absl::Time before = absl::Now();
  const absl::Time now = clock.Now();
  EXPECT_LE(before, now);
  EXPECT_LE(now, absl::Now());
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
