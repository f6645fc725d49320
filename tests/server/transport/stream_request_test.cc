#include "server/transport/stream/stream_request.h"

#include <gtest/gtest.h>

#include <atomic>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "server/core/common/errors.h"
#include "server/transport/wire/split_message.h"
#include "tests/support/byte_buffers.h"

namespace blockd::server {
namespace {

using test::InSlices;

std::string Joined(const StreamMessage& message) {
  std::string all = test::Joined(message.pieces);
  EXPECT_EQ(static_cast<int64_t>(all.size()), message.bytes);
  return all;
}

v1::SolveStreamRequest Request() {
  v1::SolveStreamRequest wire;
  wire.set_id(77);
  wire.mutable_request()->set_handle(std::string(24, 'h'));
  wire.mutable_request()->set_num_rhs(3);
  wire.mutable_request()->set_rhs("the right-hand sides, in pieces");
  wire.mutable_request()->mutable_options()->set_residual(true);
  wire.mutable_timeout()->set_seconds(2);
  wire.set_replace_last(true);
  return wire;
}

// As the parser does, which reads the rest of a message only.
TEST(StreamRequestTest, ATagOfMoreThanFiveBytesIsNoMessage) {
  const std::string longer("\x88\x80\x80\x80\x80\x00\x4d", 7);  // the id
  for (const std::string& bytes :
       {longer + Request().SerializeAsString(), longer + std::string("\x1a\x01z", 3)}) {
    v1::SolveStreamRequest message;
    EXPECT_FALSE(message.ParseFromString(bytes));
    grpc::ByteBuffer buffer = InSlices(bytes);
    EXPECT_TRUE(absl::IsInvalidArgument(ReadStreamMessage(&buffer).status()));
  }
}

TEST(StreamRequestTest, ARequestIsReadWithoutItsRightHandSides) {
  grpc::ByteBuffer buffer = InSlices(Request().SerializeAsString());
  const absl::StatusOr<StreamMessage> read = ReadStreamMessage(&buffer);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->part, v1::SolveStreamRequest::kRequestFieldNumber);
  EXPECT_EQ(read->id, 77u);
  EXPECT_EQ(Joined(*read), "the right-hand sides, in pieces");
  v1::SolveStreamRequest expected = Request();
  expected.mutable_request()->clear_rhs();
  EXPECT_EQ(read->request.SerializeAsString(), expected.SerializeAsString());
  EXPECT_EQ(TimeoutOf(*read).value(), absl::Seconds(2));
}

TEST(StreamRequestTest, OfRightHandSidesThatComeTwiceTheLastCount) {
  v1::SolveStreamRequest again;
  again.mutable_request()->set_rhs("others");
  grpc::ByteBuffer buffer = InSlices(Request().SerializeAsString() + again.SerializeAsString());
  const absl::StatusOr<StreamMessage> read = ReadStreamMessage(&buffer);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(Joined(*read), "others");
  EXPECT_EQ(read->request.request().num_rhs(), 3);
}

// The parser keeps one part of a message, the last.
TEST(StreamRequestTest, RightHandSidesBeforeACancellationCountNoMore) {
  v1::SolveStreamRequest cancel, again;
  cancel.mutable_cancel();
  again.mutable_request()->set_num_rhs(5);
  const std::string bytes =
      Request().SerializeAsString() + cancel.SerializeAsString() + again.SerializeAsString();
  v1::SolveStreamRequest parsed;
  ASSERT_TRUE(parsed.ParseFromString(bytes));
  grpc::ByteBuffer buffer = InSlices(bytes);
  const absl::StatusOr<StreamMessage> read = ReadStreamMessage(&buffer);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->request.SerializeAsString(), parsed.SerializeAsString());
  EXPECT_EQ(Joined(*read), parsed.request().rhs());
}

TEST(StreamRequestTest, ChunksAndCancellationsAreTold) {
  v1::SolveStreamRequest wire;
  wire.set_id(5);
  wire.set_chunk("bytes");
  grpc::ByteBuffer buffer = InSlices(wire.SerializeAsString(), 3);
  absl::StatusOr<StreamMessage> read = ReadStreamMessage(&buffer);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->part, v1::SolveStreamRequest::kChunkFieldNumber);
  EXPECT_EQ(Joined(*read), "bytes");
  EXPECT_EQ(read->id, 5u);
  for (const bool timed : {false, true}) {
    v1::SolveStreamRequest more = wire;
    timed ? more.mutable_timeout()->set_seconds(1) : more.set_replace_last(true);
    buffer = InSlices(more.SerializeAsString());
    EXPECT_EQ(InvalidFieldOf(ReadStreamMessage(&buffer).status())->field, "part");
  }
  wire.mutable_cancel();
  buffer = InSlices(wire.SerializeAsString());
  read = ReadStreamMessage(&buffer);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->part, v1::SolveStreamRequest::kCancelFieldNumber);
  EXPECT_EQ(read->id, 5u);
}

TEST(StreamRequestTest, ATimeoutMustBePositive) {
  v1::SolveStreamRequest wire = Request();
  for (const int64_t seconds : {0, -1}) {
    wire.mutable_timeout()->set_seconds(seconds);
    grpc::ByteBuffer buffer = InSlices(wire.SerializeAsString());
    const absl::StatusOr<StreamMessage> read = ReadStreamMessage(&buffer);
    ASSERT_TRUE(read.ok());
    const auto invalid = InvalidFieldOf(TimeoutOf(*read).status());
    ASSERT_TRUE(invalid.has_value());
    EXPECT_EQ(invalid->field, "timeout");
  }
  wire.clear_timeout();
  grpc::ByteBuffer buffer = InSlices(wire.SerializeAsString());
  EXPECT_EQ(TimeoutOf(*ReadStreamMessage(&buffer)).value(), absl::InfiniteDuration());
}

TEST(StreamRequestTest, AHeadThatIsTooLongIsNotCopied) {
  v1::SolveStreamRequest wire = Request();
  wire.mutable_request()->set_handle(std::string(70'000, 'h'));
  grpc::ByteBuffer buffer = InSlices(wire.SerializeAsString(), 4000);
  EXPECT_TRUE(absl::IsInvalidArgument(ReadStreamMessage(&buffer).status()));
  wire.mutable_request()->set_handle(std::string(60'000, 'h'));
  buffer = InSlices(wire.SerializeAsString(), 4000);
  EXPECT_TRUE(ReadStreamMessage(&buffer).ok());
}

v1::SolveStreamRequest Frame(int solves = 3) {
  v1::SolveStreamRequest wire;
  wire.set_id(78);
  wire.mutable_timeout()->set_seconds(1);
  v1::SolveManyRequest& many = *wire.mutable_many();
  many.set_handles(std::string(static_cast<size_t>(24 * solves), 'h'));
  for (int i = 0; i < solves; ++i) {
    many.add_rhs_bytes(7);
  }
  many.set_rhs(std::string(static_cast<size_t>(7 * solves), 'r'));
  return wire;
}

TEST(StreamRequestTest, AFrameIsReadWithoutItsRightHandSides) {
  grpc::ByteBuffer buffer = InSlices(Frame().SerializeAsString());
  const absl::StatusOr<StreamMessage> read = ReadStreamMessage(&buffer);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->part, v1::SolveStreamRequest::kManyFieldNumber);
  EXPECT_EQ(read->id, 78u);
  EXPECT_EQ(TimeoutOf(*read).value(), absl::Seconds(1));
  EXPECT_EQ(Joined(*read), Frame().many().rhs());
  EXPECT_TRUE(read->request.many().rhs().empty());
  EXPECT_EQ(read->request.many().handles(), Frame().many().handles());
  EXPECT_TRUE(read->unparsed.empty());
}

// Its parsing is charged first.
TEST(StreamRequestTest, ALongHeadOfAFrameIsLeftUnparsed) {
  const v1::SolveStreamRequest wire = Frame(40'000);
  grpc::ByteBuffer buffer = InSlices(wire.SerializeAsString(), 4000);
  const absl::StatusOr<StreamMessage> read = ReadStreamMessage(&buffer);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->part, v1::SolveStreamRequest::kManyFieldNumber);
  EXPECT_FALSE(read->request.has_many());
  EXPECT_EQ(Joined(*read), wire.many().rhs());
  v1::SolveStreamRequest head;
  ASSERT_TRUE(head.ParseFromString(read->unparsed));
  head.mutable_many()->set_rhs(wire.many().rhs());
  EXPECT_EQ(head.SerializeAsString(), wire.SerializeAsString());
  // And one that is too long for any frame is no message.
  buffer = InSlices(Frame(200'000).SerializeAsString(), 1 << 20);
  EXPECT_TRUE(absl::IsInvalidArgument(ReadStreamMessage(&buffer).status()));
}

// The last of several parts counts, and parts of one kind are one.
TEST(StreamRequestTest, PartsTakeEachOtherBackAsTheParserHasIt) {
  v1::SolveStreamRequest cancel, bare;
  cancel.mutable_cancel();
  bare.mutable_many()->add_num_rhs(1);
  const std::vector<std::string> parts = {Request().SerializeAsString(),
                                          Frame().SerializeAsString(), cancel.SerializeAsString(),
                                          bare.SerializeAsString()};
  for (const std::string& a : parts) {
    for (const std::string& b : parts) {
      for (const std::string& c : parts) {
        const std::string bytes = a + b + c;
        v1::SolveStreamRequest parsed;
        ASSERT_TRUE(parsed.ParseFromString(bytes));
        grpc::ByteBuffer buffer = InSlices(bytes);
        const absl::StatusOr<StreamMessage> read = ReadStreamMessage(&buffer);
        ASSERT_TRUE(read.ok()) << read.status();
        v1::SolveStreamRequest again = read->request;
        if (read->part == v1::SolveStreamRequest::kManyFieldNumber) {
          again.mutable_many()->set_rhs(Joined(*read));
          if (parsed.many().rhs().empty()) again.mutable_many()->clear_rhs();
        } else if (read->part == v1::SolveStreamRequest::kRequestFieldNumber) {
          again.mutable_request()->set_rhs(Joined(*read));
        } else {
          EXPECT_TRUE(parsed.has_cancel());
        }
        EXPECT_EQ(again.SerializeAsString(), parsed.SerializeAsString());
      }
    }
  }
}

v1::SolveStreamRequest Refactor() {
  v1::SolveStreamRequest wire;
  wire.set_id(79);
  wire.mutable_refactor()->add_handle(std::string(24, 'h'));
  wire.mutable_refactor()->set_matrix(std::string(100'000, 'm'));
  wire.mutable_refactor()->set_rhs("right-hand sides");
  return wire;
}

// Whatever its length is: parsing it is charged first.
TEST(StreamRequestTest, AFrameOfRefactorsIsLeftToItsReader) {
  grpc::ByteBuffer buffer = InSlices(Refactor().SerializeAsString(), 4000);
  absl::StatusOr<StreamMessage> read = ReadStreamMessage(&buffer);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->part, v1::SolveStreamRequest::kRefactorFieldNumber);
  EXPECT_EQ(read->id, 79u);
  EXPECT_TRUE(read->unparsed.empty());
  EXPECT_EQ(read->request.part_case(), v1::SolveStreamRequest::PART_NOT_SET);
  EXPECT_EQ(Joined(*read), "");
  // The last part counts. What the parser would then forget is refused.
  v1::SolveStreamRequest cancel;
  cancel.mutable_cancel();
  for (const std::string& other :
       {Request().SerializeAsString(), Frame().SerializeAsString(), cancel.SerializeAsString()}) {
    buffer = InSlices(other + Refactor().SerializeAsString(), 4000);
    read = ReadStreamMessage(&buffer);
    ASSERT_TRUE(read.ok()) << read.status();
    EXPECT_EQ(read->part, v1::SolveStreamRequest::kRefactorFieldNumber);
    EXPECT_EQ(Joined(*read), "");
    buffer = InSlices(Refactor().SerializeAsString() + other, 4000);
    EXPECT_EQ(InvalidFieldOf(ReadStreamMessage(&buffer).status())->field, "part");
  }
}

// Reading in pieces gives the same message as the parser, but for fields that no message knows.
TEST(StreamRequestTest, DamagedMessagesAreReadAsTheParserReadsThem) {
  std::mt19937_64 random(3);
  const std::string seeds[] = {Request().SerializeAsString(), Frame().SerializeAsString()};
  for (int round = 0; round < 50'000; ++round) {
    std::string bytes = seeds[round / 3 % 2];
    for (int i = 0; i < 1 + round % 3; ++i) {
      bytes[random() % bytes.size()] = static_cast<char>(random());
    }
    if (round % 3 == 0) bytes.resize(random() % (bytes.size() + 1));
    v1::SolveStreamRequest parsed;
    const bool is_message = parsed.ParseFromString(bytes);
    grpc::ByteBuffer buffer = InSlices(bytes);
    absl::StatusOr<StreamMessage> read = ReadStreamMessage(&buffer);
    if (!read.ok()) {
      EXPECT_TRUE(absl::IsInvalidArgument(read.status()));
      const bool two_parts =
          InvalidFieldOf(read.status())->field == "part";  // as the parser allows
      EXPECT_FALSE(is_message && (parsed.has_request() || parsed.has_many()) && !two_parts)
          << parsed.ShortDebugString() << read.status();
      continue;
    }
    if (read->part == v1::SolveStreamRequest::kRefactorFieldNumber)
      continue;  // parsed later, or refused
    EXPECT_TRUE(is_message);
    parsed.DiscardUnknownFields();
    read->request.DiscardUnknownFields();
    if (read->part == v1::SolveStreamRequest::kManyFieldNumber) {
      EXPECT_EQ(Joined(*read), parsed.many().rhs());
      parsed.mutable_many()->clear_rhs();
      EXPECT_EQ(read->request.many().SerializeAsString(), parsed.many().SerializeAsString());
    } else if (read->part == v1::SolveStreamRequest::kRequestFieldNumber) {
      EXPECT_EQ(Joined(*read), parsed.request().rhs());
      parsed.mutable_request()->clear_rhs();
      EXPECT_EQ(read->request.request().SerializeAsString(), parsed.request().SerializeAsString());
    }
  }
}

TEST(StreamRequestTest, ACancelledCallsMessageIsNotReadOn) {
  v1::SolveStreamRequest chunk;
  chunk.set_chunk("bytes");
  for (const std::string& bytes : {Request().SerializeAsString(), Frame().SerializeAsString(),
                                   chunk.SerializeAsString(), Refactor().SerializeAsString()}) {
    grpc::ByteBuffer buffer = InSlices(bytes);
    std::atomic<bool> stop = false;
    EXPECT_TRUE(ReadStreamMessage(&buffer, &stop).ok());
    EXPECT_TRUE(SplitBytes(&buffer, v1::SolveRequest(), {.field = 3}, 1 << 20, &stop).ok());
    stop = true;
    EXPECT_TRUE(absl::IsCancelled(ReadStreamMessage(&buffer, &stop).status()));
    EXPECT_TRUE(absl::IsCancelled(
        SplitBytes(&buffer, v1::SolveRequest(), {.field = 3}, 1 << 20, &stop).status()));
  }
}

// Groups and numbers that the message does not know are left out, and refused where the parser
// refuses them.
TEST(RecentIdsTest, ForgetsTheOldest) {
  RecentIds ids(2);
  for (const uint64_t id : {1, 2, 2, 3}) ids.Add(id);
  EXPECT_FALSE(ids.Contains(1));
  EXPECT_TRUE(ids.Contains(2));
  ids.Remove(2);
  EXPECT_FALSE(ids.Contains(2));
  EXPECT_TRUE(ids.Contains(3));
}

TEST(RecentIdsTest, OneThatComesBackIsTheNewest) {
  RecentIds ids(2);
  for (int i = 0; i < 3; ++i) {
    ids.Remove(1);
    ids.Add(1);
    EXPECT_TRUE(ids.Contains(1)) << i;
  }
  ids.Add(2);
  EXPECT_TRUE(ids.Contains(1));
}

}  // namespace
}  // namespace blockd::server
