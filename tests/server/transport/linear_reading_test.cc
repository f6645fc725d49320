// The cost of reading a message grows with its length, and not with the square of it: counted in
// bytes that are copied or cleared, and in bytes of the heap, while messages of many fields double.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "blockd/v1/blockd.pb.h"
#include "server/transport/stream/stream_request.h"
#include "server/transport/wire/raw_message.h"
#include "server/transport/wire/solve_many.h"
#include "server/transport/wire/split_message.h"
#include "server/transport/wire/wire_scan.h"
#include "tests/support/byte_buffers.h"
#include "tests/support/hooks/copy_hook.h"
#include "tests/support/hooks/heap_hook.h"

namespace blockd::server {
namespace {

constexpr size_t kFirstBytes = 1 << 20, kLastBytes = 4 << 20;
constexpr double kMostGrowth = 2.2;  // of a message twice as long

std::string Filled(const std::string& filling, size_t bytes) {
  std::string all;
  all.reserve(bytes);
  while (all.size() + filling.size() <= bytes) all += filling;
  return all;
}

// As the field of a message: 2^21 to 2^28 bytes, so that the head is as long for all of them.
std::string AsField(int field, const std::string& bytes) {
  std::string message;
  AppendLengthHeader(&message, field, static_cast<int64_t>(bytes.size()));
  return message + bytes;
}

constexpr size_t kFrameBytes = 16 << 10;

template <typename Type>
void ScanAndParse(const grpc::ByteBuffer& bytes) {
  int64_t unknown = 0;
  const absl::StatusOr<int64_t> needed =
      ParsedBytes(bytes, Type(), {}, std::numeric_limits<int64_t>::max(), &unknown);
  if (!needed.ok()) return;
  Type message;
  EXPECT_TRUE(ParseScanned(bytes, unknown, &message));
}

template <typename Type>
void SplitAndParse(grpc::ByteBuffer* bytes) {
  constexpr int64_t kMost = 64 << 20;
  const auto split = SplitBytes(bytes, Type(), {.field = Type::kRhsFieldNumber}, kMost);
  ASSERT_TRUE(split.ok()) << split.status();
  ScanAndParse<Type>(AsBuffer(split->rest));
}

void ReadOfStream(grpc::ByteBuffer* bytes) {
  const auto read = ReadStreamMessage(bytes);
  if (!read.ok()) return;  // longer than a head may be, or not one part: that was found by reading
  if (!read->unparsed.empty()) ScanAndParse<v1::SolveStreamRequest>(AsBuffer(read->unparsed));
  if (read->part == v1::SolveStreamRequest::kRefactorFieldNumber)
    ScanAndParse<v1::SolveStreamRequest>(*bytes);
}

template <typename Read>
void ExpectLinear(const std::string& filling, int field, Read read) {
  int64_t copied_before = 0, heap_before = 0;
  for (size_t bytes = kFirstBytes; bytes <= kLastBytes; bytes *= 2) {
    const std::string content = Filled(filling, bytes);
    grpc::ByteBuffer buffer =
        test::InSlices(field == 0 ? content : AsField(field, content), kFrameBytes);
    const test::HeapCount heap;
    const test::CopyCount copies;
    read(&buffer);
    const int64_t copied = copies.bytes(), peak = heap.peak_bytes();
    // A little is the same for every message.
    constexpr int64_t kLittle = 1 << 16;
    if (copied_before > 0) {
      EXPECT_LE(copied, kMostGrowth * copied_before + kLittle);
      EXPECT_LE(peak, kMostGrowth * heap_before + kLittle);
    }
    EXPECT_LE(copied, 100 * static_cast<int64_t>(bytes));
    copied_before = std::max<int64_t>(copied, 1);
    heap_before = peak;
  }
}

// Fields of messages that are hard to read: their number 15 is unknown to every message.
const std::string kVarint("\x78\x00", 2), kEmpty("\x7a\x00", 2);

std::vector<std::string> UnknownFields() {
  std::string deep;
  for (int i = 0; i < 90; ++i) deep = "\x7b" + deep + "\x7c";
  return {kVarint, kEmpty, deep};
}

TEST(LinearReadingTest, FieldsBesideRightHandSides) {
  for (const std::string& unknown : UnknownFields()) {
    ExpectLinear(unknown, 0, SplitAndParse<v1::SolveRequest>);
    ExpectLinear(unknown, 0, SplitAndParse<v1::SolveManyRequest>);
  }
  const std::string known[] = {std::string("\x0a\x00", 2), std::string("\x10\x00", 2),
                               std::string("\x12\x01\x00", 3), std::string("\x1a\x00", 2),
                               std::string("\x0a\x00\x10\x00", 4)};
  for (const std::string& field : known) {
    ExpectLinear(field, 0, SplitAndParse<v1::SolveManyRequest>);
  }
}

TEST(LinearReadingTest, MessagesOfAStream) {
  constexpr int kParts[] = {
      0, v1::SolveStreamRequest::kRequestFieldNumber, v1::SolveStreamRequest::kManyFieldNumber,
      v1::SolveStreamRequest::kCancelFieldNumber, v1::SolveStreamRequest::kRefactorFieldNumber};
  for (const int part : kParts) {
    for (const std::string& unknown : UnknownFields()) ExpectLinear(unknown, part, ReadOfStream);
  }
  // Parts that take each other back, and ids.
  const std::string parts[] = {std::string("\x3a\x00", 2), std::string("\x12\x00\x3a\x00", 4),
                               std::string("\x3a\x02\x1a\x00", 4), std::string("\x08\x01", 2),
                               std::string("\x2a\x00\x3a\x00", 4)};
  for (const std::string& part : parts) ExpectLinear(part, 0, ReadOfStream);
}

TEST(LinearReadingTest, MessagesThatAreParsedWhole) {
  const auto read = [](grpc::ByteBuffer* bytes) { ScanAndParse<v1::FactorRequest>(*bytes); };
  constexpr int kFields[] = {0, v1::FactorRequest::kSpecFieldNumber,
                             v1::FactorRequest::kOptionsFieldNumber};
  for (const int field : kFields) {
    for (const std::string& unknown : UnknownFields()) ExpectLinear(unknown, field, read);
  }
  const std::string known[] = {std::string("\x0a\x00", 2), std::string("\x12\x00", 2),
                               std::string("\x1a\x02\x0a\x00", 4),
                               std::string("\x0a\x04\x32\x02\x18\x01", 6)};
  for (const std::string& field : known) ExpectLinear(field, 0, read);
}

}  // namespace
}  // namespace blockd::server
