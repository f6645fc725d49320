#include "server/net/frame_counter.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

namespace blockd::server {
namespace {

constexpr char kPreface[] = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
constexpr char kData = 0, kHeaders = 1, kReset = 3, kPing = 6, kWindowUpdate = 8, kContinuation = 9,
               kUnknown = 77;
constexpr char kEndHeaders = 4, kEndStream = 1, kPadded = 8, kPriority = 32;

std::string Frame(char type, char flags, size_t bytes) {
  std::string frame(9 + bytes, 'x');  // of a header block: an index and a text of 120 bytes
  frame[0] = static_cast<char>(bytes >> 16);
  frame[1] = static_cast<char>(bytes >> 8 & 0xff);
  frame[2] = static_cast<char>(bytes & 0xff);
  frame[3] = type;
  frame[4] = flags;
  return frame;
}

class FrameCounterTest : public testing::Test {
 protected:
  bool Count(const std::string& bytes) { return counter_.Count(bytes.data(), bytes.size(), now_); }
  // As many of these frames as `most` allows.
  int64_t CountOf(const std::string& frame, int64_t most) {
    int64_t count = 0;
    while (count < most && Count(frame)) ++count;
    return count;
  }
  int64_t block() const { return counter_.open_block_bytes(); }
  static constexpr int64_t kFrame = FrameCounter::kBlockFrameBytes;
  static int64_t Cost(int64_t bytes, int64_t entries) {
    return bytes + entries * FrameCounter::kEntryBytes;
  }

  FrameCounter counter_;
  absl::Time now_ = absl::UnixEpoch();
};

TEST_F(FrameCounterTest, AHeaderBlockIsOpenUntilItEnds) {
  EXPECT_TRUE(Count(kPreface));
  EXPECT_TRUE(Count(Frame(kHeaders, 0, 20'000)));
  EXPECT_EQ(block(), Cost(20'000, 164));  // each 122 bytes
  EXPECT_TRUE(Count(Frame(kContinuation, 0, 0)));
  EXPECT_EQ(block(), Cost(20'000, 164) + kFrame);
  const std::string last = Frame(kContinuation, kEndHeaders, 30'000);
  EXPECT_TRUE(Count(last.substr(0, 9 + 20'000)));
  EXPECT_EQ(block(), Cost(40'000, 328) + kFrame);
  EXPECT_TRUE(Count(last.substr(9 + 20'000)));
  EXPECT_EQ(block(), 0);
  EXPECT_TRUE(Count(Frame(kHeaders, kEndHeaders, 5000)));
  EXPECT_TRUE(Count(Frame(kHeaders, kEndHeaders | kEndStream, 0)));
  EXPECT_EQ(block(), 0);
}

TEST_F(FrameCounterTest, LargeHeaderBlocksCountOnceTheyAreWhole) {
  EXPECT_TRUE(Count(kPreface + Frame(kHeaders, kEndHeaders, 5000)));  // 41 entries
  EXPECT_EQ(counter_.TakeLargeBlockBytes(), 0);
  EXPECT_TRUE(Count(Frame(kHeaders, 0, 6000)));
  EXPECT_EQ(counter_.TakeLargeBlockBytes(), 0);
  EXPECT_TRUE(
      Count(Frame(kContinuation, kEndHeaders, 1000) + Frame(kHeaders, kEndHeaders, 20'000)));
  EXPECT_EQ(counter_.TakeLargeBlockBytes(), Cost(7000, 58) + Cost(20'000, 164));
  EXPECT_EQ(counter_.TakeLargeBlockBytes(), 0);
}

TEST_F(FrameCounterTest, WhatIsBeforeAHeaderBlockIsNoEntry) {
  EXPECT_TRUE(Count(kPreface));
  std::string frame = Frame(kHeaders, kPriority, 7);
  frame.replace(frame.size() - 2, 2, "\x82\x84");
  EXPECT_TRUE(Count(frame));
  EXPECT_EQ(block(), Cost(kFrame, 2));
  // Each byte may be one.
  EXPECT_TRUE(Count(Frame(kContinuation, kEndHeaders, 0) + Frame(kHeaders, kPadded, 100)));
  EXPECT_GE(block(), Cost(kFrame, 100));
}

TEST_F(FrameCounterTest, PiecesAreOfAnySize) {
  const std::string bytes = kPreface + Frame(kPing, 0, 8) + Frame(kData, 0, 70'000) +
                            Frame(kHeaders, 0, 300) + Frame(kContinuation, 0, 3);
  for (size_t piece = 1; piece < 40; ++piece) {
    counter_ = FrameCounter();
    for (size_t at = 0; at < bytes.size(); at += piece) {
      ASSERT_TRUE(Count(bytes.substr(at, piece)));
    }
    EXPECT_TRUE(counter_.is_http2());
    EXPECT_EQ(block(), Cost(0, 3) + 2 * kFrame) << piece;
  }
}

TEST_F(FrameCounterTest, FramesBesideCallsAreBoundedInASecond) {
  EXPECT_TRUE(Count(kPreface));
  constexpr int64_t kMost = FrameCounter::kMostBesideBytes;
  struct {
    std::string frame;
    int64_t most;
  } const cases[] = {{Frame(kPing, 0, 8), kMost / 17},
                     {Frame(kUnknown, 0, 1000), kMost / 1009},
                     {Frame(kData, 0, 0), kMost / 9},
                     {Frame(kWindowUpdate, 0, 4), kMost / 13 * FrameCounter::kLightness},
                     {Frame(kReset, 0, 4), kMost / 13 * FrameCounter::kLightness}};
  for (const auto& [frame, most] : cases) {
    now_ += absl::Seconds(1);
    EXPECT_NEAR(CountOf(frame, 2 * most), most, FrameCounter::kLightness);
    now_ += absl::Milliseconds(999);
    EXPECT_FALSE(Count(frame));
    now_ += absl::Milliseconds(1);
    EXPECT_TRUE(Count(frame));
  }
}

TEST_F(FrameCounterTest, WhatMovesCallsIsNotBounded) {
  EXPECT_TRUE(Count(kPreface));
  for (const std::string& frame :
       {Frame(kData, 0, 16384), Frame(kData, 0, 1), Frame(kData, kEndStream, 0),
        Frame(kHeaders, kEndHeaders, 200)}) {
    EXPECT_EQ(CountOf(frame, 100'000), 100'000);
    EXPECT_EQ(block(), 0);
  }
}

TEST_F(FrameCounterTest, AnotherProtocolIsNotCounted) {
  EXPECT_TRUE(Count("PRI * HT"));
  EXPECT_TRUE(counter_.is_http2());
  EXPECT_TRUE(Count("ML and more"));
  EXPECT_FALSE(counter_.is_http2());
  EXPECT_EQ(CountOf(Frame(kPing, 0, 8), 100'000), 100'000);
}

}  // namespace
}  // namespace blockd::server
