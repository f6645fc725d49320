#include "server/transport/upload/upload_pace.h"

#include <gtest/gtest.h>

#include "absl/strings/match.h"

namespace blockd::server {
namespace {

constexpr absl::Duration kSecond = absl::Seconds(1);
const absl::Time kStart = absl::UnixEpoch();

UploadPace Begin(int64_t bytes_per_second, absl::Duration idle = absl::Hours(1),
                 absl::Duration most = absl::Hours(1)) {
  UploadPace pace(
      {.idle_timeout = idle, .bytes_per_second = bytes_per_second, .max_duration = most}, kStart);
  pace.Wait(kStart);
  return pace;
}

bool Names(const absl::Status& status, const char* flag) {
  return absl::IsDeadlineExceeded(status) && absl::StrContains(status.message(), flag);
}

TEST(UploadPaceTest, SilenceIsTooLongAtItsLimit) {
  UploadPace pace = Begin(0, 10 * kSecond);
  EXPECT_TRUE(pace.Check(kStart + 10 * kSecond - absl::Nanoseconds(1)).ok());
  EXPECT_TRUE(Names(pace.Check(kStart + 10 * kSecond), "--stream_idle_timeout"));
}

// While one stream waits, others bring bytes.
TEST(UploadPaceTest, WhatComesElsewhereIsASignOfLifeAndNoLongerWaiting) {
  UploadPace pace = Begin(800, 10 * kSecond);
  for (int i = 1; i <= 30; ++i) pace.CountElsewhere(1000, kStart + i * kSecond);
  EXPECT_TRUE(pace.Check(kStart + 40 * kSecond - absl::Nanoseconds(1)).ok());
  EXPECT_TRUE(Names(pace.Check(kStart + 40 * kSecond), "--stream_idle_timeout"));
  // The rate is that of all of them, over all the time.
  UploadPace slow = Begin(1000, 10 * kSecond);
  for (int i = 1; i <= 30; ++i) slow.CountElsewhere(500, kStart + i * kSecond);
  EXPECT_TRUE(Names(slow.Check(kStart + 30 * kSecond), "--min_upload_bytes_per_second"));
  // Empty messages are none elsewhere either.
  UploadPace silent = Begin(0, 10 * kSecond);
  for (int i = 1; i <= 10; ++i) silent.CountElsewhere(0, kStart + i * kSecond);
  EXPECT_TRUE(Names(silent.Check(kStart + 10 * kSecond), "--stream_idle_timeout"));
}

TEST(UploadPaceTest, AnEmptyMessageIsNoSignOfLifeAndAByteIs) {
  for (const int64_t bytes : {0, 1}) {
    UploadPace pace = Begin(0, 10 * kSecond);
    for (int i = 1; i <= 9; ++i) {
      pace.Came(kStart + i * kSecond);
      pace.Count(bytes);
      pace.Wait(kStart + i * kSecond);
    }
    EXPECT_EQ(pace.Check(kStart + 10 * kSecond).ok(), bytes == 1);
  }
}

TEST(UploadPaceTest, TheLeastRateCountsBeyondTheGrace) {
  UploadPace pace = Begin(100);
  EXPECT_TRUE(pace.Check(kStart + UploadPace::kGrace).ok());
  EXPECT_TRUE(Names(pace.Check(kStart + UploadPace::kGrace + absl::Milliseconds(1)),
                    "--min_upload_bytes_per_second"));
  pace.Count(1000);
  EXPECT_TRUE(pace.Check(kStart + UploadPace::kGrace + 10 * kSecond).ok());
  EXPECT_FALSE(pace.Check(kStart + UploadPace::kGrace + 11 * kSecond).ok());
}

// While it copies what came, the client is not to blame.
TEST(UploadPaceTest, OnlyTheTimeCountsInWhichTheServerWaits) {
  UploadPace pace = Begin(100, 10 * kSecond);
  pace.Came(kStart + 4 * kSecond);
  EXPECT_TRUE(pace.Check(kStart + 1000 * kSecond).ok());
  pace.Wait(kStart + 1000 * kSecond);
  EXPECT_TRUE(pace.Check(kStart + 1001 * kSecond).ok());
  EXPECT_FALSE(pace.Check(kStart + 1001 * kSecond + absl::Milliseconds(1)).ok());
}

TEST(UploadPaceTest, TheLongestDurationHoldsForTheFastestToo) {
  UploadPace pace = Begin(100, absl::Hours(1), 60 * kSecond);
  pace.Count(int64_t{1} << 50);
  EXPECT_TRUE(pace.Check(kStart + 59 * kSecond).ok());
  EXPECT_TRUE(Names(pace.Check(kStart + 60 * kSecond), "--max_upload_duration"));
}

TEST(UploadPaceTest, WithoutALeastRateOnlySilenceCounts) {
  UploadPace pace = Begin(0);
  EXPECT_TRUE(pace.Check(kStart + absl::Minutes(59)).ok());
}

}  // namespace
}  // namespace blockd::server
