#include "server/idle_timer.h"

#include <gtest/gtest.h>

#include <atomic>
#include <memory>

#include "absl/synchronization/notification.h"
#include "tests/support/eventually.h"

namespace blockd::server {
namespace {

using test::Eventually;

TEST(IdleTimerTest, CallsAgainAndAgainWhileNothingHappens) {
  const auto calls = std::make_shared<std::atomic<int>>(0);
  const auto timer = std::make_shared<IdleTimer>(absl::Milliseconds(5), [calls] { ++*calls; });
  timer->Start();
  EXPECT_TRUE(Eventually([&] { return *calls >= 4; }));
  timer->Stop();
}

// Touches for as long as the alarm needs to fire several times, then no more.
TEST(IdleTimerTest, CallsOnceTouchesEnd) {
  const absl::Duration timeout = absl::Milliseconds(20);
  const auto calls = std::make_shared<std::atomic<int>>(0);
  const auto timer = std::make_shared<IdleTimer>(timeout, [calls] { ++*calls; });
  timer->Start();
  for (const absl::Time end = absl::Now() + 5 * timeout; absl::Now() < end;) {
    timer->Touch();
    absl::SleepFor(timeout / 20);
  }
  const int before = *calls;
  EXPECT_TRUE(Eventually([&] { return *calls > before; }));
  timer->Stop();
}

TEST(IdleTimerTest, DoesNotCallWhileItIsTouched) {
  const absl::Duration timeout = absl::Milliseconds(500);
  // On a busy machine this thread may itself be late with a touch: then the round says nothing.
  EXPECT_TRUE(Eventually([&] {
    // A call under way when the timer stops may come later.
    const auto calls = std::make_shared<std::atomic<int>>(0);
    const auto timer = std::make_shared<IdleTimer>(timeout, [calls] { ++*calls; });
    absl::Time last = absl::Now();
    timer->Start();
    absl::Duration longest;
    for (const absl::Time end = last + 2 * timeout; absl::Now() < end;) {
      timer->Touch();
      absl::SleepFor(timeout / 100);  // one that spins is the first to be kept waiting
      const absl::Time now = absl::Now();
      longest = std::max(longest, now - last);
      last = now;
    }
    const int seen = *calls;
    longest = std::max(longest, absl::Now() - last);
    timer->Stop();
    if (longest >= timeout) return false;
    EXPECT_EQ(seen, 0);
    return true;
  }));
}

TEST(IdleTimerTest, AStoppedTimerCallsNoMoreAndLetsGoOfWhatItHeld) {
  std::atomic<int> calls{0};
  auto held = std::make_shared<int>(1);
  const std::weak_ptr<int> watched = held;
  const auto timer = std::make_shared<IdleTimer>(
      absl::Milliseconds(2), [&calls, held = std::move(held)] { calls += *held; });
  timer->Start();
  EXPECT_TRUE(Eventually([&] { return calls > 0; }));
  timer->Stop();
  EXPECT_TRUE(Eventually([&] { return watched.expired(); }));  // a call may be under way
  const int after = calls;
  // Another timer's calls are the time in which this one would have called.
  const auto others = std::make_shared<std::atomic<int>>(0);
  const auto other = std::make_shared<IdleTimer>(absl::Milliseconds(4), [others] { ++*others; });
  other->Start();
  EXPECT_TRUE(Eventually([&] { return *others >= 5; }));
  other->Stop();
  EXPECT_EQ(calls, after);
}

TEST(IdleTimerTest, AStoppedTimerDoesNotStayAlive) {
  auto timer = std::make_shared<IdleTimer>(absl::Hours(1), [] {});
  const std::weak_ptr<IdleTimer> watched = timer;
  timer->Start();
  timer->Stop();
  timer.reset();
  EXPECT_TRUE(Eventually([&] { return watched.expired(); }));
}

// Nothing else in this process uses gRPC, which ends, and waits for its threads, with the last
// object that needs it: that must not be an alarm while one of these threads makes the next.
TEST(IdleTimerTest, MayBeStoppedDuringACall) {
  const auto called = std::make_shared<absl::Notification>();
  auto timer = std::make_shared<IdleTimer>(absl::Milliseconds(2), [called] {
    if (called->HasBeenNotified()) return;
    called->Notify();
    absl::SleepFor(absl::Milliseconds(50));  // which the other thread has for Stop
  });
  timer->Start();
  called->WaitForNotification();
  timer->Stop();
}

TEST(IdleTimerTest, MayBeStoppedFromItsOwnCall) {
  absl::Notification stopped;
  std::shared_ptr<IdleTimer> timer;
  timer = std::make_shared<IdleTimer>(absl::Milliseconds(2), [&] {
    if (stopped.HasBeenNotified()) return;
    timer->Stop();
    stopped.Notify();
  });
  timer->Start();
  EXPECT_TRUE(stopped.WaitForNotificationWithTimeout(test::kGenerous));
}

}  // namespace
}  // namespace blockd::server
