#include "server/base/patience.h"

#include <gtest/gtest.h>

namespace blockd::server {
namespace {

constexpr absl::Duration kMost = absl::Microseconds(500);

TEST(PatienceTest, LooksAsLongAsAllowedWhileWorkComesWithinThat) {
  Patience patience(kMost);
  EXPECT_EQ(patience.left(), kMost);
  for (int i = 0; i < 10; ++i) patience.Came(kMost - absl::Nanoseconds(1));
  EXPECT_EQ(patience.left(), kMost);
}

TEST(PatienceTest, LooksLittleWhereItWasInVainAgainAndAgain) {
  Patience patience(kMost);
  patience.Came(kMost);
  patience.Came(absl::InfiniteDuration());
  EXPECT_EQ(patience.left(), kMost);  // once or twice says nothing
  patience.Came(kMost);
  EXPECT_EQ(patience.left(), kMost / 8);
  patience.Came(absl::Milliseconds(1));
  EXPECT_EQ(patience.left(), kMost / 8);
}

TEST(PatienceTest, LooksAgainOnceWorkComesInTime) {
  Patience patience(kMost);
  for (int i = 0; i < 10; ++i) patience.Came(absl::Seconds(1));
  // After it gave up, but not long after: it would have paid to look.
  for (int i = 0; i < 3; ++i) patience.Came(kMost / 2);
  EXPECT_EQ(patience.left(), kMost);
}

// As of a call each ms: what follows its beginning comes soon, and an answer a little later.
TEST(PatienceTest, WhatComesAtOnceDoesNotHideThatAllElseWasInVain) {
  Patience patience(kMost);
  for (int call = 0; call < 10; ++call) {
    patience.Came(absl::Milliseconds(1));
    patience.Came(absl::Microseconds(1));
    patience.Came(absl::Microseconds(120));
    patience.Came(absl::Microseconds(2));
  }
  EXPECT_EQ(patience.left(), kMost / 8);
}

TEST(PatienceTest, ThatMayNotLookDoesNot) {
  Patience patience(absl::ZeroDuration());
  patience.Came(absl::ZeroDuration());
  EXPECT_EQ(patience.left(), absl::ZeroDuration());
}

}  // namespace
}  // namespace blockd::server
