#include "client/wire.h"

#include <gtest/gtest.h>

#include <cstring>
#include <numeric>
#include <optional>

namespace blockd::client {
namespace {

std::vector<std::byte> Counting(size_t count, int start) {
  std::vector<std::byte> bytes(count);
  for (size_t i = 0; i < count; ++i) bytes[i] = static_cast<std::byte>(start + i * 7 + i / 251);
  return bytes;
}

std::string Text(Bytes bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// All chunks, parsed as the server would, joined.
std::string Join(Chunker& chunker, size_t chunk_bytes) {
  std::string joined;
  while (!chunker.done()) {
    v1::FactorStreamRequest request;
    EXPECT_TRUE(Parse(chunker.Next(), &request));
    EXPECT_GT(request.chunk().size(), 0);
    EXPECT_LE(request.chunk().size(), chunk_bytes);
    joined += request.chunk();
  }
  return joined;
}

TEST(ChunkerTest, ChunksJoinedAreTheRegions) {
  const auto small = Counting(1000, 1), large = Counting(300000, 2), odd = Counting(70001, 3);
  for (const size_t chunk_bytes : {64UL, 100000UL, 131072UL, 1UL << 22}) {
    MemoryLoan loan;
    Chunker chunker({small, {}, large, small, odd, {}}, chunk_bytes,
                    v1::FactorStreamRequest::kChunkFieldNumber, "", &loan);
    EXPECT_EQ(Join(chunker, chunk_bytes), Text(small) + Text(large) + Text(small) + Text(odd));
    EXPECT_EQ(chunker.sent_bytes(), 1000 + 300000 + 1000 + 70001);
    EXPECT_TRUE(loan.AwaitReturn(absl::Seconds(60)));
  }
}

TEST(ChunkerTest, NothingMakesNoChunk) {
  MemoryLoan loan;
  EXPECT_TRUE(Chunker({{}, {}}, 10, 2, "", &loan).done());
}

TEST(ChunkerTest, ThePrefixStandsBeforeEveryChunk) {
  const auto bytes = Counting(10, 1);
  v1::SolveStreamRequest prefix;
  prefix.set_id(77);
  Chunker chunker({bytes}, 6, v1::SolveStreamRequest::kChunkFieldNumber, prefix.SerializeAsString(),
                  nullptr);
  std::string joined;
  while (!chunker.done()) {
    v1::SolveStreamRequest request;
    ASSERT_TRUE(Parse(chunker.Next(), &request));
    EXPECT_EQ(request.id(), 77);
    joined += request.chunk();
  }
  EXPECT_EQ(joined, Text(bytes));
}

TEST(MemoryLoanTest, LargePiecesAreLentAndComeBack) {
  const auto large = Counting(1 << 20, 5);
  MemoryLoan loan;
  Chunker chunker({large}, 1 << 20, 2, "", &loan);
  std::optional<grpc::ByteBuffer> message = chunker.Next();
  EXPECT_FALSE(loan.AwaitReturn(absl::ZeroDuration()));
  std::vector<grpc::Slice> slices;
  ASSERT_TRUE(message->Dump(&slices).ok());
  EXPECT_EQ(slices.back().begin(), reinterpret_cast<const uint8_t*>(large.data()));  // no copy
  slices.clear();
  message.reset();
  EXPECT_TRUE(loan.AwaitReturn(absl::ZeroDuration()));
}

class StreamReplyTest : public ::testing::Test {
 protected:
  bool Read(const v1::SolveStreamReply& sent) { return ReadBuffer(Serialize(sent)); }
  bool ReadBuffer(const grpc::ByteBuffer& buffer) {
    return ParseStreamReply(
        buffer,
        [this](uint64_t id, size_t bytes) {
          asked_id_ = id;
          return bytes <= memory_.size() ? memory_.data() : nullptr;
        },
        &reply_);
  }

  std::vector<std::byte> memory_ = std::vector<std::byte>(100);
  uint64_t asked_id_ = 0;
  StreamReply reply_;
};

TEST_F(StreamReplyTest, AChunkGoesToItsPlace) {
  v1::SolveStreamReply sent;
  sent.set_id(9);
  sent.set_chunk("some bytes");
  ASSERT_TRUE(Read(sent));
  EXPECT_TRUE(reply_.is_chunk);
  EXPECT_FALSE(reply_.misplaced);
  EXPECT_EQ(asked_id_, 9);
  EXPECT_EQ(std::memcmp(memory_.data(), "some bytes", 10), 0);
}

TEST_F(StreamReplyTest, AChunkWithFieldsInAnotherOrderGoesThereToo) {
  const std::string chunk_first = std::string("\x1a\x04", 2) + "data" + std::string("\x08\x09", 2);
  const grpc::Slice slice(chunk_first);
  ASSERT_TRUE(ReadBuffer(grpc::ByteBuffer(&slice, 1)));
  EXPECT_EQ(asked_id_, 9);
  EXPECT_EQ(std::memcmp(memory_.data(), "data", 4), 0);
}

TEST_F(StreamReplyTest, AChunkThatNobodyWantsIsSaidToBeMisplaced) {
  v1::SolveStreamReply sent;
  sent.set_id(9);
  sent.set_chunk(std::string(101, 'x'));
  ASSERT_TRUE(Read(sent));
  EXPECT_TRUE(reply_.misplaced);
}

TEST_F(StreamReplyTest, OtherPartsAreParsed) {
  v1::SolveStreamReply sent;
  sent.set_id(3);
  sent.set_solution_bytes(80);
  sent.mutable_reply()->set_refinements(2);
  ASSERT_TRUE(Read(sent));
  EXPECT_FALSE(reply_.is_chunk);
  EXPECT_EQ(reply_.message.id(), 3);
  EXPECT_EQ(reply_.message.reply().refinements(), 2);
  EXPECT_EQ(reply_.message.solution_bytes(), 80);
}

TEST_F(StreamReplyTest, NonsenseIsRefused) {
  const grpc::Slice slice(std::string("\x08\x09\x1a\x7f only a few", 15));
  EXPECT_FALSE(ReadBuffer(grpc::ByteBuffer(&slice, 1)));
}

TEST(WireTest, DurationsKeepTheirFraction) {
  const google::protobuf::Duration proto = ToProto(absl::Milliseconds(1500));
  EXPECT_EQ(proto.seconds(), 1);
  EXPECT_EQ(proto.nanos(), 500000000);
}

}  // namespace
}  // namespace blockd::client
