#include "server/base/byte_size.h"

#include <gtest/gtest.h>

namespace blockd::server {
namespace {

// -1: refused.
int64_t Parsed(absl::string_view text) {
  ByteSize size;
  std::string error;
  if (AbslParseFlag(text, &size, &error)) return size.bytes;
  EXPECT_FALSE(error.empty());
  return -1;
}

TEST(ByteSizeTest, ReadsUnitsAndRefusesNonsense) {
  EXPECT_EQ(Parsed("0"), 0);
  EXPECT_EQ(Parsed("1048576"), 1 << 20);
  EXPECT_EQ(Parsed("8GiB"), int64_t{8} << 30);
  EXPECT_EQ(Parsed("8gb"), int64_t{8} << 30);
  EXPECT_EQ(Parsed("8 G"), int64_t{8} << 30);
  EXPECT_EQ(Parsed(" 8GiB "), int64_t{8} << 30);
  EXPECT_EQ(Parsed("1.5MiB"), 3 << 19);
  EXPECT_EQ(Parsed("64k"), 65536);
  EXPECT_EQ(Parsed("64KB"), 65536);
  EXPECT_EQ(Parsed("2T"), int64_t{2} << 40);
  EXPECT_EQ(Parsed("12B"), 12);
  EXPECT_EQ(Parsed("4000000TiB"), int64_t{4000000} << 40);
  for (const char* bad : {"", " ", "x", "GiB", "-1", "8XB", "8iB8", "1e400TiB", "5000000TiB",
                          "99999999999TiB", "1..5M"}) {
    EXPECT_EQ(Parsed(bad), -1) << bad;
  }
}

TEST(ByteSizeTest, IsWrittenInTheLargestUnitThatDivides) {
  const auto written = [](int64_t bytes) { return AbslUnparseFlag(ByteSize{bytes}); };
  EXPECT_EQ(written(0), "0");
  EXPECT_EQ(written(1000), "1000");
  EXPECT_EQ(written(1024), "1KiB");
  EXPECT_EQ(written(3 << 19), "1536KiB");
  EXPECT_EQ(written(5 << 20), "5MiB");
  EXPECT_EQ(written(int64_t{8} << 30), "8GiB");
  EXPECT_EQ(written(int64_t{2048} << 40), "2048TiB");  // no unit is larger
}

}  // namespace
}  // namespace blockd::server
