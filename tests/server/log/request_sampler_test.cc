#include "server/log/request_sampler.h"

#include <gtest/gtest.h>

#include "absl/time/clock.h"

namespace blockd::server {
namespace {

class RequestSamplerTest : public ::testing::Test {
 protected:
  // How many of `count` at once are logged.
  int Admit(int count, bool succeeded = true) {
    int admitted = 0;
    for (int i = 0; i < count; ++i) admitted += sampler_.Admit(succeeded, now_) ? 1 : 0;
    return admitted;
  }

  RequestSampler sampler_{10};
  absl::Time now_ = absl::UnixEpoch() + absl::Hours(1);
};

TEST_F(RequestSamplerTest, ASecondsLinesAreLoggedAtOnceAndThenAsTimePasses) {
  EXPECT_EQ(Admit(100), 10);
  now_ += absl::Milliseconds(100);
  EXPECT_EQ(Admit(100), 1);
  now_ += absl::Milliseconds(500);
  EXPECT_EQ(Admit(100), 5);
  now_ += absl::Hours(1);
  EXPECT_EQ(Admit(100), 10);
}

TEST_F(RequestSamplerTest, FailuresHaveABudgetOfTheirOwn) {
  EXPECT_EQ(Admit(100), 10);
  EXPECT_EQ(Admit(100, false), 10);
  EXPECT_EQ(Admit(100), 0);
}

TEST_F(RequestSamplerTest, WhatIsLeftOutIsSaidOnceASecondAtMost) {
  Admit(10);
  EXPECT_EQ(sampler_.TakeLeftOut(now_), 0);
  Admit(3);
  EXPECT_EQ(sampler_.TakeLeftOut(now_), 3);
  Admit(4);
  EXPECT_EQ(sampler_.TakeLeftOut(now_ + absl::Milliseconds(999)), 0);
  EXPECT_EQ(sampler_.TakeLeftOut(now_ + absl::Seconds(1)), 4);
  EXPECT_EQ(sampler_.TakeLeftOut(now_ + absl::Seconds(2)), 0);
  EXPECT_EQ(sampler_.left_out_ever(), 7);
}

TEST_F(RequestSamplerTest, AClockThatIsSetBackAdmitsNoMore) {
  EXPECT_EQ(Admit(100), 10);
  now_ -= absl::Hours(1);
  EXPECT_EQ(Admit(100), 0);
}

TEST(NoRequestsTest, NoneIsLogged) {
  RequestSampler sampler(0);
  EXPECT_FALSE(sampler.Admit(true, absl::Now()));
  EXPECT_FALSE(sampler.Admit(false, absl::Now()));
}

}  // namespace
}  // namespace blockd::server
