#include "server/transport/serving_threads.h"

#include <grpcpp/alarm.h>
#include <grpcpp/completion_queue.h>
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "tests/support/eventually.h"

namespace blockd::server {
namespace {

using test::Eventually;

// Something that comes from the queue at once, as often as it is asked for.
class Event {
 public:
  Event(grpc::CompletionQueue* queue, std::function<void()> run)
      : queue_(queue), run_(std::move(run)) {}
  void Ask() {
    absl::MutexLock lock(&mutex_);
    alarm_.emplace();
    alarm_->Set(queue_, gpr_time_0(GPR_CLOCK_REALTIME), this);
  }
  static void Take(void* tag, bool /*ok*/) { static_cast<Event*>(tag)->run_(); }

 private:
  grpc::CompletionQueue* const queue_;
  const std::function<void()> run_;
  absl::Mutex mutex_;
  std::optional<grpc::Alarm> alarm_ ABSL_GUARDED_BY(mutex_);
};

// Takes a processor so long, as a call's work does.
void BeBusy(absl::Duration time) {
  const absl::Time until = absl::Now() + time;
  while (absl::Now() < until) {
  }
}

class ServingThreadsTest : public ::testing::TestWithParam<absl::Duration> {
 protected:
  void Start(int threads) {
    serving_.emplace(threads, GetParam(), &queue_, Event::Take, [this] { return company_.load(); });
  }
  void End() {
    if (!serving_) return;
    queue_.Shutdown();
    serving_.reset();
  }
  void TearDown() override { End(); }
  bool AwaitCalm() {
    return Eventually([&] { return !serving_->together(); });
  }

  // How many threads have taken events that come as fast as they are taken, until that is `enough`.
  size_t TakersOfACrowd(const std::function<bool(size_t takers)>& enough) {
    std::atomic<bool> over = false;
    absl::Mutex mutex;
    std::set<std::thread::id> by;  // under the mutex
    std::atomic<int> left = 4;
    crowd_.resize(4);
    for (std::unique_ptr<Event>& event : crowd_) {
      event = std::make_unique<Event>(&queue_, [&] {
        BeBusy(absl::Microseconds(50));
        {
          absl::MutexLock lock(&mutex);
          by.insert(std::this_thread::get_id());
        }
        if (over) {
          --left;
        } else {
          event->Ask();
        }
      });
    }
    for (const auto& event : crowd_) event->Ask();
    EXPECT_TRUE(Eventually([&] {
      absl::MutexLock lock(&mutex);
      return enough(by.size());
    }));
    over = true;
    EXPECT_TRUE(Eventually([&] { return left == 0; }));
    absl::MutexLock lock(&mutex);
    return by.size();
  }

  // One that does not come back, as gRPC does not while a peer sends faster than it reads; `rests`
  // from time to time.
  void ExpectHelp(const std::function<void()>& rests) {
    ASSERT_TRUE(AwaitCalm());
    std::atomic<bool> helped = false, over = false;
    Event held(&queue_, [&] {
      const absl::Time end = absl::Now() + absl::Seconds(20);
      while (!helped && absl::Now() < end) {
        const absl::Time until = absl::Now() + absl::Milliseconds(1);
        while (!helped && absl::Now() < until) {
        }
        rests();
      }
      EXPECT_TRUE(helped);
      over = true;
    });
    Event other(&queue_, [&] { helped = true; });
    held.Ask();
    other.Ask();
    EXPECT_TRUE(Eventually([&] { return over.load(); }));
  }

  std::atomic<bool> company_ = true;
  grpc::CompletionQueue queue_;
  std::vector<std::unique_ptr<Event>> crowd_;  // until no thread is left that may still run one
  std::optional<ServingThreads> serving_;
};

INSTANTIATE_TEST_SUITE_P(Polls, ServingThreadsTest,
                         ::testing::Values(absl::ZeroDuration(), absl::Milliseconds(1)),
                         [](const auto& info) {
                           return info.param == absl::ZeroDuration() ? "SleepAtOnce" : "Look";
                         });

TEST_P(ServingThreadsTest, OneDoesAloneWhatComesOneByOne) {
  Start(4);
  ASSERT_TRUE(AwaitCalm());
  absl::Mutex mutex;
  std::set<std::thread::id> by;  // under the mutex
  std::atomic<int> taken = 0;
  Event event(&queue_, [&] {
    {
      absl::MutexLock lock(&mutex);
      by.insert(std::this_thread::get_id());
    }
    ++taken;
  });
  bool alone = false;
  // A machine that is busy with something else may let one look like a crowd for a while.
  for (int attempt = 0; attempt < 1000 && !alone; ++attempt) {
    ASSERT_TRUE(AwaitCalm());
    {
      absl::MutexLock lock(&mutex);
      by.clear();
    }
    for (int i = 0; i < 3; ++i) {
      const int before = taken;
      event.Ask();
      ASSERT_TRUE(Eventually([&] { return taken > before; }));
    }
    absl::MutexLock lock(&mutex);
    alone = by.size() == 1;
  }
  EXPECT_TRUE(alone);
  End();
}

TEST_P(ServingThreadsTest, OthersHelpInACrowdAndLeaveAfterIt) {
  Start(3);
  ASSERT_TRUE(AwaitCalm());
  EXPECT_EQ(TakersOfACrowd([](size_t takers) { return takers == 3; }), 3u);
  EXPECT_TRUE(AwaitCalm());
  End();
}

// One alone might have become enough.
TEST_P(ServingThreadsTest, OthersLeaveACrowdFromTimeToTimeAndComeBack) {
  Start(3);
  ASSERT_TRUE(AwaitCalm());
  const int64_t enough = serving_->changes() + 5;
  TakersOfACrowd([&](size_t) { return serving_->changes() >= enough; });
  EXPECT_GE(serving_->changes(), enough);
  End();
}

// It waits for each answer, so that others would have nothing to do.
TEST_P(ServingThreadsTest, OneCallerIsNoCrowd) {
  company_ = false;
  Start(3);
  std::atomic<int> taken = 0;
  Event event(&queue_, [&] {
    BeBusy(absl::Microseconds(1500));
    ++taken;
  });
  int asked = 0;
  bool alone = false;
  // A machine that is busy with something else may hold it up, so that others look for it.
  for (int attempt = 0; attempt < 100 && !alone; ++attempt) {
    ASSERT_TRUE(AwaitCalm());
    const int64_t changes = serving_->changes();
    for (int i = 0; i < 5; ++i) {
      event.Ask();
      ++asked;
      ASSERT_TRUE(Eventually([&] { return taken == asked; }));
    }
    alone = serving_->changes() == changes;
  }
  EXPECT_TRUE(alone);
  End();
}

// Though it finds nothing again and again.
TEST_P(ServingThreadsTest, OthersHelpTheOneThatHasLittleTimeLeft) {
  Start(3);
  std::atomic<int> taken = 0;
  Event event(&queue_, [&] {
    BeBusy(absl::Microseconds(1500));
    ++taken;
  });
  int asked = 0;
  bool helped = false;
  const absl::Time patience = absl::Now() + absl::Seconds(30);
  // A machine that is busy with something else may let one look like a crowd without that.
  while (asked == 0 && absl::Now() < patience) {
    ASSERT_TRUE(AwaitCalm());
    while (!(helped = serving_->together()) && absl::Now() < patience) {
      event.Ask();
      for (++asked; taken < asked && !serving_->together();) std::this_thread::yield();
    }
  }
  EXPECT_GT(asked, 0);
  EXPECT_TRUE(helped);
  EXPECT_TRUE(Eventually([&] { return taken == asked; }));
  End();
}

TEST_P(ServingThreadsTest, OthersJoinWhenTheOneIsHeld) {
  Start(3);
  for (int round = 0; round < 3; ++round) ExpectHelp([] {});
}

// Where so much else runs that the one that is held takes little of a processor.
TEST_P(ServingThreadsTest, OthersJoinWhenTheOneIsHeldThatGetsLittleTime) {
  Start(3);
  ExpectHelp([] { absl::SleepFor(absl::Milliseconds(4)); });
}

// Nobody helps it in a crowd, since one for a queue carries more than two.
TEST_P(ServingThreadsTest, OneAloneIsHelpedOnlyWhenItIsHeld) {
  Start(1);
  EXPECT_FALSE(serving_->together());
  const absl::Time end = absl::Now() + absl::Milliseconds(100);
  EXPECT_EQ(TakersOfACrowd([end](size_t) { return absl::Now() > end; }), 1u);
  for (int round = 0; round < 3; ++round) ExpectHelp([] {});
  EXPECT_TRUE(AwaitCalm());
}

// The one that waits for something else than gRPC takes nothing of a processor.
TEST_P(ServingThreadsTest, OneThatLingersIsHelped) {
  Start(1);
  for (int round = 0; round < 3; ++round) {
    ASSERT_TRUE(AwaitCalm());
    absl::Notification lingers, helped;
    std::atomic<bool> may_linger = false, other_may_too = true, over = false;
    Event lingering(&queue_, [&] {
      {
        const ServingThreads::Linger linger;
        may_linger = bool{linger};
        lingers.Notify();
        EXPECT_TRUE(helped.WaitForNotificationWithTimeout(absl::Seconds(60)));
      }
      over = true;
    });
    Event other(&queue_, [&] {
      const ServingThreads::Linger linger;
      other_may_too = bool{linger};
      helped.Notify();
    });
    lingering.Ask();
    // The other thread may still take what comes, having helped in the round before.
    ASSERT_TRUE(lingers.WaitForNotificationWithTimeout(absl::Seconds(60)));
    other.Ask();
    EXPECT_TRUE(Eventually([&] { return over.load(); }));
    EXPECT_TRUE(may_linger);
    EXPECT_FALSE(other_may_too);  // nobody would be left
  }
}

TEST_P(ServingThreadsTest, NobodyLingersWhereThreadsShareAQueue) {
  Start(2);
  std::atomic<bool> may_linger = true, over = false;
  Event event(&queue_, [&] {
    may_linger = bool{ServingThreads::Linger()};
    over = true;
  });
  event.Ask();
  EXPECT_TRUE(Eventually([&] { return over.load(); }));
  EXPECT_FALSE(may_linger);
  EXPECT_FALSE(ServingThreads::Linger());  // this thread serves nothing
}

TEST_P(ServingThreadsTest, WhatHasComeIsTakenBeforeTheEnd) {
  std::atomic<int> taken = 0;
  std::vector<std::unique_ptr<Event>> events;
  for (int i = 0; i < 100; ++i) {
    events.push_back(std::make_unique<Event>(&queue_, [&] { ++taken; }));
    events.back()->Ask();
  }
  Start(2);
  End();
  EXPECT_EQ(taken, 100);
}

}  // namespace
}  // namespace blockd::server
