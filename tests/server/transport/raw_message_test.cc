// Messages read and written in the transport's own slices, against what protobuf itself makes of
// them.
#include "server/transport/wire/raw_message.h"

#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "blockd/v1/blockd.pb.h"
#include "tests/support/byte_buffers.h"

namespace blockd::server {
namespace {

constexpr int kSolutionField = v1::SolveReply::kSolutionFieldNumber;

std::vector<grpc::Slice> SlicesOf(const grpc::ByteBuffer& buffer) {
  std::vector<grpc::Slice> slices;
  EXPECT_TRUE(buffer.Dump(&slices).ok());
  return slices;
}

std::string TextOf(const grpc::ByteBuffer& buffer) {
  std::string text;
  for (const grpc::Slice& slice : SlicesOf(buffer)) {
    text.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
  }
  return text;
}

Payload PayloadOf(const std::string& text) {
  Payload payload = *Payload::Allocate(static_cast<int64_t>(text.size()));
  std::memcpy(payload.span().data(), text.data(), text.size());
  return payload;
}

std::string Letters(size_t count) {
  std::string text(count, ' ');
  for (size_t i = 0; i < count; ++i) text[i] = static_cast<char>('a' + i % 26);
  return text;
}

TEST(PayloadTest, IsAlignedForAnyScalarAndSharedByCopies) {
  const Payload payload = *Payload::Allocate(40);
  EXPECT_EQ(payload.bytes(), 40);
  EXPECT_EQ(payload.span().size(), 40u);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(payload.span().data()) % alignof(double), 0u);
  const Payload copy = payload;  // NOLINT(performance-unnecessary-copy-initialization)
  EXPECT_EQ(copy.span().data(), payload.span().data());
  EXPECT_EQ(Payload().bytes(), 0);
}

TEST(PayloadTest, ASliceIsAPartThatKeepsTheMemory) {
  grpc::Slice slice;
  const std::byte* memory = nullptr;
  {
    const Payload payload = PayloadOf("0123456789");
    memory = payload.span().data();
    slice = payload.slice(3, 4);
  }
  EXPECT_EQ(reinterpret_cast<const std::byte*>(slice.begin()), memory + 3);
  EXPECT_EQ(std::string(slice.begin(), slice.end()), "3456");
}

TEST(RawMessageTest, AMessageIsParsedWhereverItIsCut) {
  v1::SolveRequest message;
  message.set_handle("handle");
  message.set_num_rhs(7);
  message.set_rhs(Letters(300));
  const std::string bytes = message.SerializeAsString();
  for (const size_t piece : {size_t{1}, size_t{13}, bytes.size()}) {
    const grpc::ByteBuffer buffer = test::InSlices(bytes, piece);
    for (int again = 0; again < 2; ++again) {  // reading it leaves it as it was
      v1::SolveRequest parsed;
      ASSERT_TRUE(ParseMessage(buffer, &parsed));
      EXPECT_EQ(parsed.SerializeAsString(), bytes);
    }
  }
}

TEST(RawMessageTest, NoBytesAreAnEmptyMessageAndNonsenseIsNone) {
  v1::SolveRequest parsed;
  parsed.set_num_rhs(3);
  EXPECT_TRUE(ParseMessage(grpc::ByteBuffer(nullptr, 0), &parsed));
  EXPECT_EQ(parsed.num_rhs(), 0);
  parsed.set_num_rhs(3);
  EXPECT_TRUE(ParseMessage(grpc::ByteBuffer(), &parsed));
  EXPECT_EQ(parsed.num_rhs(), 0);
  EXPECT_FALSE(ParseMessage(test::InSlices("\x0a\x7f too short"), &parsed));
}

TEST(RawMessageTest, AMessageIsSerializedAsProtobufDoes) {
  v1::SolveReply message;
  message.set_backward_error(0.5);
  message.set_refinements(2);
  EXPECT_EQ(TextOf(SerializeMessage(message)), message.SerializeAsString());
  EXPECT_EQ(TextOf(SerializeMessage(v1::SolveReply())), "");
}

// Lengths around those where a length takes one byte more.
constexpr size_t kLengths[] = {0, 1, 127, 128, 16383, 16384, 100000};

TEST(RawMessageTest, BytesAreWrittenFromWhereTheyLie) {
  for (const size_t length : kLengths) {
    SCOPED_TRACE(length);
    v1::SolveReply message;
    message.set_refinements(3);
    const Payload payload = PayloadOf(Letters(length));
    const grpc::ByteBuffer buffer = SerializeWithBytes(message, kSolutionField, payload);
    v1::SolveReply parsed;
    ASSERT_TRUE(ParseMessage(buffer, &parsed));
    EXPECT_EQ(parsed.refinements(), 3);
    EXPECT_EQ(parsed.solution(), Letters(length));
    if (length < 100) continue;  // gRPC copies what is short
    EXPECT_EQ(reinterpret_cast<const std::byte*>(SlicesOf(buffer).back().begin()),
              payload.span().data());
  }
}

TEST(RawMessageTest, ANestedMessageWithBytesIsWhatProtobufWouldWrite) {
  for (const size_t length : kLengths) {
    SCOPED_TRACE(length);
    v1::SolveStreamReply outer;
    outer.set_id(300);
    v1::SolveReply inner;
    inner.set_backward_error(0.25);
    const Payload payload = PayloadOf(Letters(length));
    const grpc::ByteBuffer buffer = SerializeNestedWithBytes(
        outer, v1::SolveStreamReply::kReplyFieldNumber, inner, kSolutionField, payload);
    v1::SolveStreamReply parsed;
    ASSERT_TRUE(ParseMessage(buffer, &parsed));
    EXPECT_EQ(parsed.id(), 300u);
    ASSERT_TRUE(parsed.has_reply());
    EXPECT_EQ(parsed.reply().backward_error(), 0.25);
    EXPECT_EQ(parsed.reply().solution(), Letters(length));
  }
}

TEST(RawMessageTest, AChunkIsAPieceOfTheBytes) {
  const std::string text = Letters(1000);
  const Payload payload = PayloadOf(text);
  v1::SolveStreamReply message;
  message.set_id(9);
  const grpc::ByteBuffer buffer =
      SerializeChunk(message, v1::SolveStreamReply::kChunkFieldNumber, payload, 123, 456);
  v1::SolveStreamReply parsed;
  ASSERT_TRUE(ParseMessage(buffer, &parsed));
  EXPECT_EQ(parsed.id(), 9u);
  EXPECT_EQ(parsed.chunk(), text.substr(123, 456));
  EXPECT_EQ(reinterpret_cast<const std::byte*>(SlicesOf(buffer).back().begin()),
            payload.span().data() + 123);
}

}  // namespace
}  // namespace blockd::server
