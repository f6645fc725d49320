#include "client/rpc/answer_queue.h"

#include <grpcpp/alarm.h>
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <memory>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "absl/synchronization/blocking_counter.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "tests/support/eventually.h"

namespace blockd::client {
namespace {

using test::Eventually;

constexpr absl::Duration kPatience = absl::Seconds(60);

AnswerQueue& Queue() {
  static AnswerQueue& queue = AnswerQueue::OfNextConnection();
  return queue;
}

// A call that ends `after` it started, and the thread that waits for it.
void Call(absl::Duration after, absl::Duration poll = {}) {
  AnswerQueue::Awaited end;
  grpc::Alarm alarm;
  alarm.Set(Queue().get(), absl::ToChronoTime(absl::Now() + after), Queue().TagOf(end));
  Queue().Await(end, poll);
}

class Later final : public AnswerQueue::Later {
 public:
  static std::shared_ptr<Later> Start(absl::Duration after, std::function<void(bool ok)> come) {
    EXPECT_TRUE(Queue().ServeLater().ok());
    std::shared_ptr<Later> later(new Later(std::move(come)));
    later->self_ = later;
    later->alarm_.Set(Queue().get(), absl::ToChronoTime(absl::Now() + after),
                      Queue().TagOf(*later));
    return later;
  }
  void Cancel() { alarm_.Cancel(); }

 private:
  explicit Later(std::function<void(bool ok)> come) : come_(std::move(come)) {}
  void Come(bool ok) override {
    const std::shared_ptr<Later> self = std::move(self_);
    come_(ok);
  }

  const std::function<void(bool ok)> come_;
  std::shared_ptr<Later> self_;
  grpc::Alarm alarm_;
};

class AnswerQueueTest : public ::testing::TestWithParam<absl::Duration> {};

INSTANTIATE_TEST_SUITE_P(Polls, AnswerQueueTest,
                         ::testing::Values(absl::ZeroDuration(), absl::Milliseconds(1)),
                         [](const auto& info) {
                           return info.param == absl::ZeroDuration() ? "SleepAtOnce" : "Look";
                         });

// Who takes what comes changes with every call; all of them end.
TEST_P(AnswerQueueTest, EveryCallOfManyEnds) {
  std::vector<std::thread> callers;
  std::atomic<int> ended = 0;
  for (int k = 0; k < 16; ++k) {
    callers.emplace_back([&, k] {
      for (int i = 0; i < 100; ++i) {
        Call(absl::Microseconds((k * 7 + i * 13) % 50 * 20), GetParam());
        ++ended;
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(ended, 1600);
}

TEST_P(AnswerQueueTest, ACallThatEndsAfterManyHoldsUpNone) {
  AnswerQueue::Awaited late;
  std::atomic<bool> over = false;
  grpc::Alarm alarm;
  alarm.Set(Queue().get(), absl::ToChronoTime(absl::Now() + absl::Hours(1)), Queue().TagOf(late));
  std::thread first([&] {
    Queue().Await(late, GetParam());
    over = true;
  });
  EXPECT_TRUE(Eventually([] { return WaitsInGrpc::count() > 0; }));
  for (int i = 0; i < 50; ++i) Call({}, GetParam());
  EXPECT_FALSE(over);
  alarm.Cancel();
  first.join();
}

TEST(AnswerQueueLaterTest, ComesOnOneThreadThatIsNoCallers) {
  absl::Mutex mutex;
  std::set<std::thread::id> of_later, of_callers;  // under the mutex
  constexpr int kCallers = 4, kRounds = 100;
  absl::BlockingCounter left(kCallers * kRounds);
  std::vector<std::thread> callers;
  for (int k = 0; k < kCallers; ++k) {
    callers.emplace_back([&] {
      for (int i = 0; i < kRounds; ++i) {
        Later::Start({}, [&](bool ok) {
          EXPECT_TRUE(ok);
          {
            absl::MutexLock lock(&mutex);
            of_later.insert(std::this_thread::get_id());
          }
          left.DecrementCount();
        });
        Call(absl::Microseconds(i % 3 * 100));
      }
      absl::MutexLock lock(&mutex);
      of_callers.insert(std::this_thread::get_id());
    });
  }
  for (std::thread& caller : callers) caller.join();
  left.Wait();
  absl::MutexLock lock(&mutex);
  ASSERT_EQ(of_later.size(), 1u);
  EXPECT_FALSE(of_callers.contains(*of_later.begin()));
}

TEST(AnswerQueueLaterTest, OneThatTakesLongHoldsUpNoCaller) {
  absl::Notification begun, may_end, next;
  Later::Start({}, [&](bool) {
    begun.Notify();
    EXPECT_TRUE(may_end.WaitForNotificationWithTimeout(kPatience));
  });
  ASSERT_TRUE(begun.WaitForNotificationWithTimeout(kPatience));
  Later::Start({}, [&](bool) { next.Notify(); });
  for (int i = 0; i < 10; ++i) Call({});
  EXPECT_FALSE(next.HasBeenNotified());  // one after another
  may_end.Notify();
  EXPECT_TRUE(next.WaitForNotificationWithTimeout(kPatience));
}

// As in the callback of a user who waits although callbacks must not.
TEST(AnswerQueueLaterTest, MayCallAndWaitItself) {
  absl::Notification done;
  Later::Start({}, [&](bool) {
    Call(absl::Milliseconds(1));
    Later::Start({}, [&](bool) { done.Notify(); });
    Call({});
  });
  EXPECT_TRUE(done.WaitForNotificationWithTimeout(kPatience));
}

TEST(AnswerQueueLaterTest, ComesThoughACallerWaitsForSomethingElse) {
  absl::Notification over;
  std::thread caller([&] {
    while (!over.HasBeenNotified()) Call(absl::Milliseconds(100));
  });
  for (int i = 0; i < 20; ++i) {
    absl::Notification come;
    Later::Start({}, [&](bool) { come.Notify(); });
    EXPECT_TRUE(come.WaitForNotificationWithTimeout(kPatience));
  }
  over.Notify();
  caller.join();
}

TEST(AnswerQueueLaterTest, SaysWhetherItWasCancelled) {
  std::atomic<int> cancelled = 0;
  const auto later = Later::Start(absl::Hours(1), [&](bool ok) { cancelled += ok ? 100 : 1; });
  later->Cancel();
  EXPECT_TRUE(Eventually([&] { return cancelled == 1; }));
}

// One that waits in gRPC would keep callers from looking.
TEST(AnswerQueueLaterTest, NobodyWaitsInGrpcWithoutACall) {
  const int before = WaitsInGrpc::count();
  absl::Notification come;
  const auto later = Later::Start(absl::Hours(1), [&](bool) { come.Notify(); });
  EXPECT_TRUE(Eventually([] { return WaitsInGrpc::count() > 0; }));
  later->Cancel();
  ASSERT_TRUE(come.WaitForNotificationWithTimeout(kPatience));
  EXPECT_TRUE(Eventually([&] { return WaitsInGrpc::count() <= before; }));
}

}  // namespace
}  // namespace blockd::client
