#include "server/base/fair_mutex.h"

#include <gtest/gtest.h>

#include <array>
#include <thread>
#include <vector>

#include "absl/time/clock.h"

namespace blockd::test {
namespace {

using server::FairLock;
using server::FairMutex;

// Each portion ends with others at the door: none of them waits for a second one.
TEST(FairMutexTest, OthersComeInBetweenTwoPortions) {
  constexpr int kPortions = 20, kOthers = 3;
  FairMutex mutex;
  bool over = false;
  std::array<int, kOthers> times{};
  std::vector<std::thread> others;
  for (int i = 0; i < kOthers; ++i) {
    others.emplace_back([&, i] {
      for (bool goes_on = true; goes_on;) {
        FairLock lock(&mutex);
        ++times[i];
        goes_on = !over;
      }
    });
  }
  for (int portion = 0; portion < kPortions; ++portion) {
    std::array<int, kOthers> before;
    {
      FairLock lock(&mutex);
      while (mutex.waiting() < kOthers) absl::SleepFor(absl::Microseconds(10));
      before = times;
    }
    mutex.LetOthersIn();
    FairLock lock(&mutex);
    for (int i = 0; i < kOthers; ++i) EXPECT_GT(times[i], before[i]);
    over = portion == kPortions - 1;
  }
  for (std::thread& other : others) other.join();
}

TEST(FairMutexTest, NobodyWaitsForNobody) {
  FairMutex mutex;
  mutex.LetOthersIn();
  FairLock lock(&mutex);
  EXPECT_EQ(mutex.waiting(), 0);
}

}  // namespace
}  // namespace blockd::test
