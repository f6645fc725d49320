#include "blockd/client/backoff.h"

#include <gtest/gtest.h>

#include "absl/strings/cord.h"
#include "blockd/v1/blockd.pb.h"
#include "client/base/retry_budget.h"

namespace blockd::client {
namespace {

const absl::Status kUnavailable = absl::UnavailableError("busy");

absl::Status UnavailableFor(absl::Duration delay) {
  v1::RetryAfter detail;
  detail.mutable_delay()->set_seconds(absl::ToInt64Seconds(delay));
  absl::Status status = kUnavailable;
  status.SetPayload("type.googleapis.com/blockd.v1.RetryAfter",
                    absl::Cord(detail.SerializeAsString()));
  return status;
}

// Time stands still at the epoch, and luck is `uniform`.
Backoff Make(const RetryOptions& options, double uniform = 0.999999,
             absl::Time deadline = absl::InfiniteFuture()) {
  return Backoff(options, deadline, [uniform] { return uniform; });
}

TEST(BackoffTest, DelaysGrowToTheirLimit) {
  Backoff backoff = Make({.max_attempts = 100,
                          .initial_delay = absl::Milliseconds(100),
                          .max_delay = absl::Milliseconds(500)});
  for (const int expected_ms : {100, 200, 400, 500, 500}) {
    const auto wait = backoff.Next(kUnavailable, absl::UnixEpoch());
    ASSERT_TRUE(wait.has_value());
    EXPECT_NEAR(absl::ToDoubleMilliseconds(*wait), expected_ms, 0.01);
  }
}

TEST(BackoffTest, JitterTakesAwayUpToHalf) {
  Backoff backoff = Make({.initial_delay = absl::Milliseconds(100)}, 0.0);
  EXPECT_EQ(backoff.Next(kUnavailable, absl::UnixEpoch()), absl::Milliseconds(50));
}

TEST(BackoffTest, WhatIsFullIsTriedAgainWhereTheServerSaysWhen) {
  absl::Status full = absl::ResourceExhaustedError("full");
  EXPECT_FALSE(Make({}).Next(full, absl::UnixEpoch()).has_value());
  full.SetPayload(
      "type.googleapis.com/blockd.v1.RetryAfter",
      *UnavailableFor(absl::Seconds(3)).GetPayload("type.googleapis.com/blockd.v1.RetryAfter"));
  EXPECT_EQ(Make({}, 0).Next(full, absl::UnixEpoch()), absl::Seconds(3));
}

TEST(BackoffTest, TheServersDelayGrowsWhileItRefuses) {
  Backoff backoff = Make({.max_attempts = 100, .max_delay = absl::Seconds(30)}, 0);
  for (const int expected_seconds : {7, 14, 28, 30, 30}) {
    EXPECT_EQ(backoff.Next(UnavailableFor(absl::Seconds(7)), absl::UnixEpoch()),
              absl::Seconds(expected_seconds));
  }
  // A delay that the server asks for is not cut.
  EXPECT_EQ(backoff.Next(UnavailableFor(absl::Seconds(40)), absl::UnixEpoch()), absl::Seconds(40));
}

TEST(BackoffTest, ADelayThatHasGrownTooLongIsTheServersAgain) {
  Backoff backoff = Make({.max_delay = absl::Hours(1)}, 0.5, absl::UnixEpoch() + absl::Seconds(10));
  backoff.Next(UnavailableFor(absl::Seconds(1)), absl::UnixEpoch());
  EXPECT_EQ(backoff.Next(UnavailableFor(absl::Seconds(9)), absl::UnixEpoch()), absl::Seconds(9));
}

TEST(RetryBudgetTest, RetriesAreAShareOfTheCallsBeyondABurst) {
  const RetryOptions options{.max_attempts = 100, .budget_ratio = 0.25, .budget_burst = 3};
  RetryBudget budget(options);
  int retries = 0;
  for (int call = 0; call < 40; ++call) {
    Backoff backoff(
        options, absl::InfiniteFuture(), [] { return 0.5; }, &budget);
    while (backoff.Next(kUnavailable, absl::UnixEpoch()).has_value()) ++retries;
  }
  // The first call finds the burst full.
  EXPECT_EQ(retries, 3 + 39 / 4);
  EXPECT_EQ(budget.counters().retries, retries);
  EXPECT_EQ(budget.counters().over_budget, 40);
}

TEST(RetryBudgetTest, ABudgetThatIsFullAgainAllowsABurstAgain) {
  const RetryOptions options{.max_attempts = 100, .budget_ratio = 0.5, .budget_burst = 2};
  RetryBudget budget(options);
  EXPECT_TRUE(budget.TakeRetry());
  EXPECT_TRUE(budget.TakeRetry());
  EXPECT_FALSE(budget.TakeRetry());
  for (int call = 0; call < 100; ++call) budget.CountCall();
  EXPECT_TRUE(budget.TakeRetry());
  EXPECT_TRUE(budget.TakeRetry());
  EXPECT_FALSE(budget.TakeRetry());
}

TEST(RetryBudgetTest, WhatIsFinalTakesNothing) {
  const RetryOptions options{.budget_ratio = 0, .budget_burst = 1};
  RetryBudget budget(options);
  Backoff backoff(
      options, absl::UnixEpoch() + absl::Seconds(1), [] { return 0.5; }, &budget);
  EXPECT_FALSE(backoff.Next(absl::InternalError(""), absl::UnixEpoch()).has_value());
  EXPECT_FALSE(backoff.Next(UnavailableFor(absl::Hours(1)), absl::UnixEpoch()).has_value());
  EXPECT_TRUE(backoff.Next(kUnavailable, absl::UnixEpoch()).has_value());
  EXPECT_EQ(budget.counters().over_budget, 0);
}

TEST(BackoffTest, NothingElseIsTriedAgain) {
  for (const absl::StatusCode code :
       {absl::StatusCode::kInternal, absl::StatusCode::kDeadlineExceeded,
        absl::StatusCode::kResourceExhausted, absl::StatusCode::kAborted,
        absl::StatusCode::kNotFound, absl::StatusCode::kInvalidArgument}) {
    EXPECT_FALSE(Make({}).Next(absl::Status(code, ""), absl::UnixEpoch()).has_value());
  }
}

TEST(BackoffTest, GivesUpAfterTheLastAttempt) {
  Backoff backoff = Make({.max_attempts = 3});
  EXPECT_TRUE(backoff.Next(kUnavailable, absl::UnixEpoch()).has_value());
  EXPECT_TRUE(backoff.Next(kUnavailable, absl::UnixEpoch()).has_value());
  EXPECT_FALSE(backoff.Next(kUnavailable, absl::UnixEpoch()).has_value());
  EXPECT_EQ(backoff.attempts(), 3);
}

TEST(BackoffTest, NeverWaitsPastTheDeadline) {
  const absl::Time deadline = absl::UnixEpoch() + absl::Milliseconds(150);
  const RetryOptions options{.initial_delay = absl::Milliseconds(100)};
  EXPECT_TRUE(Make(options, 0.5, deadline).Next(kUnavailable, absl::UnixEpoch()).has_value());
  EXPECT_FALSE(Make(options, 0.5, deadline)
                   .Next(kUnavailable, absl::UnixEpoch() + absl::Milliseconds(100))
                   .has_value());
}

TEST(BackoffTest, WaitsAtLeastAsLongAsTheServerAsks) {
  Backoff backoff = Make({.initial_delay = absl::Milliseconds(1)}, 0.5);
  const auto wait = backoff.Next(UnavailableFor(absl::Seconds(7)), absl::UnixEpoch());
  ASSERT_TRUE(wait.has_value());
  EXPECT_GE(*wait, absl::Seconds(7));
  EXPECT_LE(*wait, absl::Seconds(10.5));
}

TEST(BackoffTest, GivesUpWhereTheServerAsksForMoreTimeThanThereIs) {
  Backoff backoff = Make({}, 0.5, absl::UnixEpoch() + absl::Seconds(5));
  EXPECT_FALSE(backoff.Next(UnavailableFor(absl::Seconds(7)), absl::UnixEpoch()).has_value());
}

TEST(BackoffTest, TheMultiplierIsTheCallers) {
  Backoff backoff = Make({.max_attempts = 100,
                          .initial_delay = absl::Milliseconds(10),
                          .max_delay = absl::Hours(1),
                          .multiplier = 5});
  for (const int expected_ms : {10, 50, 250}) {
    EXPECT_NEAR(absl::ToDoubleMilliseconds(*backoff.Next(kUnavailable, absl::UnixEpoch())),
                expected_ms, 0.01);
  }
}

TEST(BackoffTest, AWaitThatEndsWithTheDeadlineIsOfNoUse) {
  const RetryOptions options{.initial_delay = absl::Milliseconds(100)};
  const absl::Time now = absl::UnixEpoch();
  // Half of the delay for certain, and no luck: 50 ms.
  EXPECT_FALSE(Make(options, 0, now + absl::Milliseconds(50)).Next(kUnavailable, now).has_value());
  EXPECT_TRUE(Make(options, 0, now + absl::Milliseconds(51)).Next(kUnavailable, now).has_value());
}

TEST(BackoffTest, TheServersDelayIsExactWithoutJitterAndNeverShortensOurs) {
  EXPECT_EQ(Make({}, 0).Next(UnavailableFor(absl::Seconds(7)), absl::UnixEpoch()),
            absl::Seconds(7));
  EXPECT_NEAR(absl::ToDoubleSeconds(
                  *Make({}, 0.999999).Next(UnavailableFor(absl::Seconds(10)), absl::UnixEpoch())),
              15, 1e-3);
  EXPECT_EQ(Make({.initial_delay = absl::Seconds(20)}, 0)
                .Next(UnavailableFor(absl::Seconds(1)), absl::UnixEpoch()),
            absl::Seconds(10));
}

TEST(BackoffTest, AttemptsThatEndedAreCountedWhateverTheirEnd) {
  Backoff backoff = Make({});
  EXPECT_EQ(backoff.attempts(), 0);
  backoff.Next(absl::InternalError(""), absl::UnixEpoch());
  EXPECT_EQ(backoff.attempts(), 1);
  EXPECT_EQ(RetryOptions().max_attempts, 5);
  EXPECT_FALSE(Make({.max_attempts = 1}).Next(kUnavailable, absl::UnixEpoch()).has_value());
}

}  // namespace
}  // namespace blockd::client
