// Streams of any speeds take all bytes once, in few ranges, and come to their end together.
#include "client/upload/upload_ranges.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

namespace blockd::client {
namespace {

constexpr int64_t kPage = UploadRanges::kPageBytes;

// Streams of these speeds, in bytes a second, the first of which began the upload; each takes as
// soon as it has sent what it had. Returns when each had nothing more to send.
struct Ends {
  std::vector<double> at;
  std::map<int64_t, int64_t> ranges;  // bytes by the first byte
  int joins = 0;
};
Ends Send(int64_t first, int64_t end, const std::vector<double>& speeds) {
  UploadRanges ranges(first, end, static_cast<int>(speeds.size()));
  Ends ends;
  ends.at.resize(speeds.size());
  std::vector<bool> over(speeds.size());
  for (;;) {
    size_t next = speeds.size();
    for (size_t i = 0; i < speeds.size(); ++i) {
      if (!over[i] && (next == speeds.size() || ends.at[i] < ends.at[next])) next = i;
    }
    if (next == speeds.size()) return ends;
    const UploadRanges::Range range = next == 0 ? ranges.TakeFront() : ranges.TakeBack();
    if (range.bytes == 0) {
      over[next] = true;
      continue;
    }
    EXPECT_TRUE(ends.ranges.emplace(range.first, range.bytes).second);
    if (next > 0) {
      ++ends.joins;
      EXPECT_EQ(range.first % kPage, 0);
    }
    ends.at[next] += static_cast<double>(range.bytes) / speeds[next];
  }
}

void ExpectAll(const Ends& ends, int64_t first, int64_t end) {
  int64_t at = first;
  for (const auto& [from, bytes] : ends.ranges) {
    EXPECT_EQ(from, at);
    at = from + bytes;
  }
  EXPECT_EQ(at, end);
  EXPECT_LE(ends.joins, UploadRanges::kMostJoins);
}

TEST(UploadRangesTest, AllBytesGoOnceWhateverTheirNumber) {
  for (const int64_t first : {int64_t{0}, int64_t{1}, kPage - 1, int64_t{2} << 20}) {
    for (const int64_t bytes : {int64_t{1}, kPage, kPage + 1, int64_t{100'000}, int64_t{5'000'001},
                                int64_t{64} << 20, int64_t{4'286'578'688}, int64_t{1} << 40}) {
      for (const size_t streams : {2, 3, 16}) {
        ExpectAll(Send(first, first + bytes, std::vector<double>(streams, 1e9)), first,
                  first + bytes);
      }
    }
  }
}

TEST(UploadRangesTest, EachStreamHasAPartOfAMatrixThatIsNotTiny) {
  for (const int64_t bytes : {int64_t{1} << 20, int64_t{16} << 20, int64_t{1} << 32}) {
    for (const double time : Send(0, bytes, std::vector<double>(16, 1e9)).at) EXPECT_GT(time, 0);
  }
}

// The slowest sends no more than its first range, however slow.
TEST(UploadRangesTest, AllComeToTheirEndTogether) {
  constexpr int64_t kBytes = 4'286'578'688;
  for (const double slow : {1.0, 0.8, 0.5, 0.3}) {
    for (const size_t slow_one : {0, 1, 7}) {
      std::vector<double> speeds(16, 1e9);
      speeds[slow_one] *= slow;
      const Ends ends = Send(0, kBytes, speeds);
      ExpectAll(ends, 0, kBytes);
      const double whole = static_cast<double>(kBytes) / (15e9 + slow * 1e9);
      const double last = *std::max_element(ends.at.begin(), ends.at.end());
      const double first_share = static_cast<double>(kBytes) / 16 * 3 / 4 / (slow * 1e9);
      EXPECT_LE(last, std::max(1.1 * whole, first_share)) << slow << " of stream " << slow_one;
    }
  }
}

// Others end before those that began would have ever joined again.
TEST(UploadRangesTest, OneStreamMayHaveAllTheRest) {
  UploadRanges ranges(0, int64_t{1} << 32, 16);
  int64_t sent = ranges.TakeFront().bytes;
  for (UploadRanges::Range next = ranges.TakeFront(); next.bytes > 0; next = ranges.TakeFront()) {
    EXPECT_EQ(next.first, sent);
    sent += next.bytes;
  }
  EXPECT_EQ(sent, int64_t{1} << 32);
  EXPECT_EQ(ranges.TakeBack().bytes, 0);
}

}  // namespace
}  // namespace blockd::client
