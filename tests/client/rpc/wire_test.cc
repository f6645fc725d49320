#include "client/wire/wire.h"

#include <gtest/gtest.h>

#include <algorithm>
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

TEST(WireTest, DurationsOfWholeSecondsAndOfNanoseconds) {
  EXPECT_EQ(ToProto(absl::Minutes(2)).seconds(), 120);
  EXPECT_EQ(ToProto(absl::Minutes(2)).nanos(), 0);
  EXPECT_EQ(ToProto(absl::Nanoseconds(7)).seconds(), 0);
  EXPECT_EQ(ToProto(absl::Nanoseconds(7)).nanos(), 7);
  for (const absl::Duration long_time : {absl::InfiniteDuration(), absl::Seconds(INT64_MAX)}) {
    EXPECT_EQ(ToProto(long_time).seconds(), 315576000000);
    EXPECT_EQ(ToProto(long_time).nanos(), 0);
    EXPECT_EQ(ToProto(-long_time).seconds(), -315576000000);
  }
}

TEST(WireTest, ASpecSaysHowTheNumbersLie) {
  const double numbers[8] = {};
  SystemView view = MakeSystemView(3, 2, numbers, numbers);
  v1::SystemSpec spec = ToProto(view);
  EXPECT_EQ(spec.num_blocks(), 3);
  EXPECT_EQ(spec.block_size(), 2);
  EXPECT_EQ(spec.scalar(), v1::FLOAT64);
  EXPECT_EQ(spec.diagonal_form(), v1::FULL);
  EXPECT_EQ(spec.coupling_form(), v1::SUBDIAGONAL);
  EXPECT_FALSE(spec.has_palette());
  const std::vector<uint32_t> diagonal = {0, 1, 2}, coupling = {1, 0};
  view.scalar = Scalar::kFloat32;
  view.diagonal_form = DiagonalForm::kPackedLower;
  view.coupling_form = CouplingForm::kSuperdiagonal;
  view.num_diagonal = 4;
  view.num_coupling = 2;
  view.diagonal_index = diagonal;
  view.coupling_index = coupling;
  spec = ToProto(view);
  EXPECT_EQ(spec.scalar(), v1::FLOAT32);
  EXPECT_EQ(spec.diagonal_form(), v1::PACKED_LOWER);
  EXPECT_EQ(spec.coupling_form(), v1::SUPERDIAGONAL);
  EXPECT_EQ(spec.palette().num_diagonal(), 4);
  EXPECT_EQ(spec.palette().num_coupling(), 2);
  EXPECT_TRUE(std::equal(diagonal.begin(), diagonal.end(), spec.palette().diagonal_index().begin(),
                         spec.palette().diagonal_index().end()));
  EXPECT_TRUE(std::equal(coupling.begin(), coupling.end(), spec.palette().coupling_index().begin(),
                         spec.palette().coupling_index().end()));
  EXPECT_EQ(view.parts()[0].size(), 4 * 3 * 4);
  EXPECT_EQ(view.parts()[1].size(), 2 * 4 * 4);
  EXPECT_EQ(view.bytes(), 4 * 3 * 4 + 2 * 4 * 4);
}

TEST(ChunkerTest, WhatIsLentIsAtLeastALoanLongAndTheRestIsCopied) {
  const auto small = Counting((64 << 10) - 1, 1), large = Counting(64 << 10, 2);
  MemoryLoan loan;
  Chunker copies({small}, 1 << 20, 2, "", &loan);
  const grpc::ByteBuffer copied = copies.Next();
  EXPECT_TRUE(loan.AwaitReturn(absl::ZeroDuration()));
  Chunker lends({large}, 1 << 20, 2, "", &loan);
  std::optional<grpc::ByteBuffer> lent = lends.Next();
  EXPECT_FALSE(loan.AwaitReturn(absl::ZeroDuration()));
  lent.reset();
  EXPECT_TRUE(loan.AwaitReturn(absl::ZeroDuration()));
  Chunker alone({large}, 1 << 20, 2, "", nullptr);
  EXPECT_EQ(Join(alone, 1 << 20), Text(large));
}

TEST(ChunkerTest, WhatWasSentGrowsChunkByChunk) {
  const auto bytes = Counting(10, 1);
  Chunker chunker({bytes}, 4, 2, "", nullptr);
  EXPECT_EQ(chunker.sent_bytes(), 0);
  for (const int64_t sent : {4, 8, 10}) {
    EXPECT_FALSE(chunker.done());
    chunker.Next();
    EXPECT_EQ(chunker.sent_bytes(), sent);
  }
  EXPECT_TRUE(chunker.done());
}

TEST_F(StreamReplyTest, AnIdAloneIsAReplyWithoutAPart) {
  v1::SolveStreamReply sent;
  sent.set_id(5);
  ASSERT_TRUE(Read(sent));
  EXPECT_FALSE(reply_.is_chunk);
  EXPECT_EQ(reply_.message.id(), 5);
}

TEST_F(StreamReplyTest, AChunkWithSomethingBehindItIsRefused) {
  v1::SolveStreamReply sent;
  sent.set_id(9);
  sent.set_chunk("data");
  sent.set_solution_bytes(4);  // belongs to a reply
  EXPECT_FALSE(Read(sent));
}

TEST_F(StreamReplyTest, ChunksInOtherWaysAreMisplacedTheSameWay) {
  const std::string chunk_first =
      std::string("\x1a\x65", 2) + std::string(101, 'x') + std::string("\x08\x09", 2);
  const grpc::Slice slice(chunk_first);
  ASSERT_TRUE(ReadBuffer(grpc::ByteBuffer(&slice, 1)));
  EXPECT_TRUE(reply_.is_chunk);
  EXPECT_TRUE(reply_.misplaced);
  EXPECT_EQ(reply_.message.id(), 9);
}

TEST_F(StreamReplyTest, ALargeChunkOfManySlicesArrivesWhole) {
  memory_.resize(1 << 20);
  v1::SolveStreamReply sent;
  sent.set_id(1);
  const auto large = Counting(1 << 20, 9);
  sent.set_chunk(Text(large));
  const std::string bytes = sent.SerializeAsString();
  std::vector<grpc::Slice> slices;
  for (size_t at = 0; at < bytes.size(); at += 70001) slices.emplace_back(bytes.substr(at, 70001));
  ASSERT_TRUE(ReadBuffer(grpc::ByteBuffer(slices.data(), slices.size())));
  EXPECT_FALSE(reply_.misplaced);
  EXPECT_EQ(memory_, large);
}

TEST(WireTest, AFrameIsSerializedAroundItsBytes) {
  v1::SolveStreamRequest outer;
  outer.set_id(300);
  outer.mutable_timeout()->set_seconds(2);
  v1::FactorSolveManyRequest frame;
  frame.add_handle(std::string(24, 'h'));
  frame.set_num_rhs(3);
  const auto matrix = Counting(100'000, 1), rhs = Counting(5, 2);
  const BytesField bytes[] = {
      {v1::FactorSolveManyRequest::kMatrixFieldNumber, grpc::Slice(matrix.data(), matrix.size())},
      {v1::FactorSolveManyRequest::kRhsFieldNumber, grpc::Slice(rhs.data(), rhs.size())}};
  v1::SolveStreamRequest parsed, expected = outer;
  ASSERT_TRUE(Parse(
      SerializeFrame(outer, v1::SolveStreamRequest::kRefactorFieldNumber, frame, bytes), &parsed));
  *expected.mutable_refactor() = frame;
  expected.mutable_refactor()->set_matrix(Text(matrix));
  expected.mutable_refactor()->set_rhs(Text(rhs));
  EXPECT_EQ(parsed.SerializeAsString(), expected.SerializeAsString());
}

TEST(WireTest, WhatIsNoMessageIsNotParsed) {
  const grpc::Slice slice(std::string("\xff\xff\xff"));
  v1::SolveReply reply;
  EXPECT_FALSE(Parse(grpc::ByteBuffer(&slice, 1), &reply));
  EXPECT_FALSE(Parse(grpc::ByteBuffer(), &reply));
  v1::SolveReply sent;
  sent.set_refinements(3);
  ASSERT_TRUE(Parse(Serialize(sent), &reply));
  EXPECT_EQ(reply.refinements(), 3);
}

}  // namespace
}  // namespace blockd::client
