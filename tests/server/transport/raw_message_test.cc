// Messages read and written in the transport's own slices, against what protobuf itself makes of
// them.
#include "server/transport/raw_message.h"

#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "blockd/v1/blockd.pb.h"

namespace blockd::server {
namespace {

constexpr int kSolutionField = v1::SolveReply::kSolutionFieldNumber;

// The bytes as the transport would hold them, `piece` of them a slice.
grpc::ByteBuffer BufferOf(const std::string& bytes, size_t piece = std::string::npos) {
  std::vector<grpc::Slice> slices;
  for (size_t at = 0; at < bytes.size(); at += std::min(piece, bytes.size())) {
    slices.emplace_back(bytes.substr(at, piece));
  }
  return grpc::ByteBuffer(slices.data(), slices.size());
}

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

std::string ChunkOf(const StreamPart& part) {
  std::string text;
  for (const auto piece : part.pieces) {
    text.append(reinterpret_cast<const char*>(piece.data()), piece.size());
  }
  return text;
}

v1::SolveStreamRequest SolveChunk(uint64_t id, const std::string& bytes) {
  v1::SolveStreamRequest message;
  message.set_id(id);
  message.set_chunk(bytes);
  return message;
}

std::optional<StreamPart> ScanSolve(grpc::ByteBuffer* buffer) {
  return ScanStreamPart(buffer, v1::SolveStreamRequest::kIdFieldNumber,
                        v1::SolveStreamRequest::kChunkFieldNumber);
}
std::optional<StreamPart> ScanFactor(grpc::ByteBuffer* buffer) {
  return ScanStreamPart(buffer, 0, v1::FactorStreamRequest::kChunkFieldNumber);
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
    const grpc::ByteBuffer buffer = BufferOf(bytes, piece);
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
  EXPECT_FALSE(ParseMessage(BufferOf("\x0a\x7f too short"), &parsed));
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

TEST(ScanStreamPartTest, AChunkIsFoundInPiecesThatLieInTheBuffer) {
  const std::string text = Letters(5000);
  const std::string bytes =
      SolveChunk(std::numeric_limits<uint64_t>::max(), text).SerializeAsString();
  for (const size_t piece : {size_t{1}, size_t{700}, bytes.size()}) {
    SCOPED_TRACE(piece);
    grpc::ByteBuffer buffer = BufferOf(bytes, piece);
    const std::optional<StreamPart> part = ScanSolve(&buffer);
    ASSERT_TRUE(part.has_value());
    EXPECT_TRUE(part->is_chunk);
    EXPECT_FALSE(part->beside_chunk);
    EXPECT_EQ(part->id, std::numeric_limits<uint64_t>::max());
    EXPECT_EQ(part->chunk_bytes, 5000);
    EXPECT_EQ(ChunkOf(*part), text);
    if (piece == 1) continue;  // gRPC holds such slices within itself
    const std::vector<grpc::Slice> slices = SlicesOf(buffer);
    EXPECT_EQ(
        reinterpret_cast<const uint8_t*>(part->pieces.back().data() + part->pieces.back().size()),
        slices.back().end());
  }
}

TEST(ScanStreamPartTest, TheIdMayStandBehindTheChunk) {
  v1::SolveStreamRequest only_chunk, only_id;
  only_chunk.set_chunk("abc");
  only_id.set_id(77);
  grpc::ByteBuffer buffer = BufferOf(only_chunk.SerializeAsString() + only_id.SerializeAsString());
  const std::optional<StreamPart> part = ScanSolve(&buffer);
  ASSERT_TRUE(part.has_value());
  EXPECT_EQ(part->id, 77u);
  EXPECT_EQ(ChunkOf(*part), "abc");
  EXPECT_FALSE(part->beside_chunk);
}

TEST(ScanStreamPartTest, AnEmptyChunkIsAChunk) {
  grpc::ByteBuffer buffer = BufferOf(SolveChunk(5, "").SerializeAsString());
  const std::optional<StreamPart> part = ScanSolve(&buffer);
  ASSERT_TRUE(part.has_value());
  EXPECT_TRUE(part->is_chunk);
  EXPECT_EQ(part->id, 5u);
  EXPECT_EQ(part->chunk_bytes, 0);
  EXPECT_TRUE(part->pieces.empty());
}

TEST(ScanStreamPartTest, AnotherPartIsLeftToTheParser) {
  v1::SolveStreamRequest request;
  request.set_id(6);
  request.mutable_request()->set_num_rhs(2);
  grpc::ByteBuffer buffer = BufferOf(request.SerializeAsString());
  std::optional<StreamPart> part = ScanSolve(&buffer);
  ASSERT_TRUE(part.has_value());
  EXPECT_FALSE(part->is_chunk);
  EXPECT_FALSE(part->beside_chunk);
  EXPECT_EQ(part->id, 6u);
  v1::SolveStreamRequest parsed;  // it is all there still
  ASSERT_TRUE(ParseMessage(buffer, &parsed));
  EXPECT_EQ(parsed.request().num_rhs(), 2);

  grpc::ByteBuffer empty;
  part = ScanSolve(&empty);
  ASSERT_TRUE(part.has_value());
  EXPECT_FALSE(part->is_chunk);
}

TEST(ScanStreamPartTest, WithoutAnIdFieldEveryFieldButTheChunkIsAnotherPart) {
  v1::FactorStreamRequest header, chunk;
  header.mutable_header()->set_num_systems(1);
  chunk.set_chunk("abcd");
  grpc::ByteBuffer buffer = BufferOf(chunk.SerializeAsString());
  std::optional<StreamPart> part = ScanFactor(&buffer);
  ASSERT_TRUE(part.has_value());
  EXPECT_EQ(ChunkOf(*part), "abcd");
  buffer = BufferOf(header.SerializeAsString());
  part = ScanFactor(&buffer);
  ASSERT_TRUE(part.has_value());
  EXPECT_FALSE(part->is_chunk);
}

TEST(ScanStreamPartTest, WhateverStandsBesideAChunkIsTold) {
  v1::FactorStreamRequest header, chunk;
  header.mutable_header()->set_num_systems(1);
  chunk.set_chunk("abcd");
  const std::string one = header.SerializeAsString(), two = chunk.SerializeAsString();
  const std::string unknown = "\xf8\x07\x01";  // field 127, a number
  for (const std::string& bytes : {one + two, two + one, two + two, two + unknown, unknown + two}) {
    grpc::ByteBuffer buffer = BufferOf(bytes);
    const std::optional<StreamPart> part = ScanFactor(&buffer);
    ASSERT_TRUE(part.has_value());
    EXPECT_TRUE(part->is_chunk);
    EXPECT_TRUE(part->beside_chunk);
  }
}

TEST(ScanStreamPartTest, AFieldOfTheWrongTypeIsAnotherPart) {
  // Field 1 as bytes is no id; field 3 as a number is no chunk.
  grpc::ByteBuffer buffer = BufferOf(std::string("\x0a\x01x\x18\x05", 5));
  const std::optional<StreamPart> part = ScanSolve(&buffer);
  ASSERT_TRUE(part.has_value());
  EXPECT_FALSE(part->is_chunk);
  EXPECT_EQ(part->id, 0u);
}

TEST(ScanStreamPartTest, BytesThatAreNoMessageAreNone) {
  const std::string whole = SolveChunk(1, Letters(50)).SerializeAsString();
  for (const std::string& bytes :
       {whole.substr(0, whole.size() - 1),            // a chunk that ends early
        whole + std::string("\x00\x01", 2),           // a tag of zero
        whole + "\x0c",                               // the end of a group that did not begin
        std::string("\x08"),                          // an id without its value
        std::string("\x1a"),                          // a chunk without its length
        std::string("\x1a\xff\xff\xff\xff\xff\x01"),  // a length beyond 31 bits
        std::string("\x12\x7f too short"),            // another part that ends early
        std::string(20, '\xff')}) {
    grpc::ByteBuffer buffer = BufferOf(bytes);
    EXPECT_FALSE(ScanSolve(&buffer).has_value()) << testing::PrintToString(bytes);
  }
}

}  // namespace
}  // namespace blockd::server
