#include "server/net/header_block_scan.h"

#include <gtest/gtest.h>

#include <string>

namespace blockd::server {
namespace {

int64_t EntriesOf(const std::string& block, size_t piece) {
  HeaderBlockScan scan;
  for (size_t at = 0; at < block.size(); at += piece) {
    const std::string bytes = block.substr(at, piece);
    scan.Add(bytes.data(), bytes.size());
  }
  return scan.entries();
}

TEST(HeaderBlockScanTest, CountsEntriesOfAllKinds) {
  const std::string name("\x04name", 5), value("\x05value", 6), empty(1, '\0');
  const std::string of_127 = std::string("\x7f\0", 2) + std::string(127, 'x');
  const std::string of_1337 = std::string("\xff\xba\x09", 3) + std::string(1337, 'x');  // Huffman's
  const std::string entries[] = {
      "\x82",
      "\xbe",
      "\xff\x80\x01",                  // an index of several bytes
      std::string("\x3f\xe1\x1f", 3),  // the table's size
      "\x40" + name + value,
      "\x41" + value,
      std::string("\x7f\x00", 2) + value,
      std::string(1, '\0') + name + of_1337,
      std::string(1, '\0') + of_127 + empty,
      std::string(1, '\0') + empty + empty,
      "\x10" + name + value,
      std::string("\x1f\x05", 2) + of_127,
      std::string("\x0f\xff\x01", 3) + empty,
      "\x04" + value,
  };
  std::string all;
  for (const std::string& entry : entries) {
    EXPECT_EQ(EntriesOf(entry + "\x82\x82", 1), 3);
    all += entry;
  }
  for (size_t piece = 1; piece <= all.size(); ++piece) {
    ASSERT_EQ(EntriesOf(all, piece), std::ssize(entries)) << piece;
  }
}

// gRPC refuses such a number. Until it does nothing is counted that may not be.
TEST(HeaderBlockScanTest, ALengthThatNeverEnds) {
  EXPECT_EQ(EntriesOf(std::string(1, '\0') + std::string(1000, '\xff'), 7), 1);
}

}  // namespace
}  // namespace blockd::server
