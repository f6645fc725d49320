// Bytes are lifted out of messages of any kind, cut anywhere, as the parser would have read them.
#include "server/transport/wire/split_message.h"

#include <gtest/gtest.h>

#include <random>
#include <span>
#include <string>
#include <vector>

#include "blockd/v1/blockd.pb.h"
#include "server/core/common/errors.h"
#include "tests/support/byte_buffers.h"

namespace blockd::server {
namespace {

using test::InSlices;

std::string Joined(const SplitMessage& message) {
  std::string all = test::Joined(message.pieces);
  EXPECT_EQ(static_cast<int64_t>(all.size()), message.bytes);
  return all;
}

constexpr int kJoin[] = {v1::FactorStreamRequest::kJoinFieldNumber};

class SplitPartTest : public testing::Test {
 protected:
  // The pieces lie in `buffer_`, until the next one.
  absl::StatusOr<SplitMessage> SplitUpload(const std::string& bytes, int64_t max_rest = 100) {
    buffer_ = InSlices(bytes);
    return SplitPart(&buffer_, v1::FactorStreamRequest(),
                     {.field = v1::FactorStreamRequest::kChunkFieldNumber,
                      .others = kJoin,
                      .whole = v1::FactorStreamRequest::kHeaderFieldNumber},
                     max_rest);
  }

 private:
  grpc::ByteBuffer buffer_;
};

v1::FactorStreamRequest Chunk(const std::string& bytes) {
  v1::FactorStreamRequest message;
  message.set_chunk(bytes);
  return message;
}

TEST(SplitBytesTest, WhatIsLiftedOutLiesInTheBuffer) {
  v1::SolveRequest request;
  request.set_handle("handle");
  request.set_num_rhs(3);
  const std::string rhs(5000, 'r');
  request.set_rhs(rhs);
  const std::string bytes = request.SerializeAsString();
  request.clear_rhs();
  for (const size_t slice_bytes : {size_t{1}, size_t{700}, bytes.size()}) {
    SCOPED_TRACE(slice_bytes);
    grpc::ByteBuffer buffer = InSlices(bytes, slice_bytes);
    const absl::StatusOr<SplitMessage> split =
        SplitBytes(&buffer, v1::SolveRequest(), {.field = v1::SolveRequest::kRhsFieldNumber}, 100);
    ASSERT_TRUE(split.ok()) << split.status();
    EXPECT_EQ(Joined(*split), rhs);
    EXPECT_EQ(split->rest, request.SerializeAsString());
    if (slice_bytes == 1) continue;  // gRPC holds such slices within itself
    std::vector<grpc::Slice> slices;
    ASSERT_TRUE(buffer.Dump(&slices).ok());
    const std::span<const std::byte> last = split->pieces.back();
    EXPECT_EQ(reinterpret_cast<const uint8_t*>(last.data() + last.size()), slices.back().end());
  }
}

TEST_F(SplitPartTest, SaysWhichPartAMessageHas) {
  v1::FactorStreamRequest header, join;
  header.mutable_header()->set_num_systems(1);
  join.mutable_join()->set_upload_id("id");
  for (const std::string chunk : {"", "abcd"}) {
    const absl::StatusOr<SplitMessage> split = SplitUpload(Chunk(chunk).SerializeAsString());
    ASSERT_TRUE(split.ok()) << split.status();
    EXPECT_EQ(split->part, v1::FactorStreamRequest::kChunkFieldNumber);
    EXPECT_EQ(Joined(*split), chunk);
    EXPECT_EQ(split->rest, "");
  }
  absl::StatusOr<SplitMessage> split = SplitUpload(header.SerializeAsString());
  ASSERT_TRUE(split.ok()) << split.status();
  EXPECT_EQ(split->part, v1::FactorStreamRequest::kHeaderFieldNumber);
  EXPECT_TRUE(split->left_whole);
  EXPECT_EQ(split->rest, "");
  split = SplitUpload(join.SerializeAsString());
  ASSERT_TRUE(split.ok()) << split.status();
  EXPECT_EQ(split->part, v1::FactorStreamRequest::kJoinFieldNumber);
  EXPECT_EQ(split->rest, join.SerializeAsString());
  EXPECT_FALSE(SplitUpload(join.SerializeAsString(), 5).ok());
  EXPECT_EQ(SplitUpload("")->part, 0);
}

TEST_F(SplitPartTest, RefusesAChunkAndAnotherPart) {
  v1::FactorStreamRequest header;
  header.mutable_header()->set_num_systems(1);
  const std::string one = header.SerializeAsString(), two = Chunk("abcd").SerializeAsString();
  for (const std::string& bytes : {one + two, two + one, two + two}) {
    EXPECT_EQ(InvalidFieldOf(SplitUpload(bytes).status())->field, "part");
  }
  // But not one and what later versions may say with it.
  const std::string unknown = "\xf8\x07\x01";  // field 127, a number
  for (const std::string& bytes : {two + unknown, unknown + two}) {
    const absl::StatusOr<SplitMessage> split = SplitUpload(bytes);
    ASSERT_TRUE(split.ok()) << split.status();
    EXPECT_EQ(Joined(*split), "abcd");
    EXPECT_EQ(split->rest, "");
  }
}

TEST_F(SplitPartTest, RefusesBytesThatAreNoMessage) {
  const std::string whole = Chunk(std::string(50, 'c')).SerializeAsString();
  for (const std::string& bytes :
       {whole.substr(0, whole.size() - 1),            // a chunk that ends early
        whole + std::string("\x00\x01", 2),           // a tag of zero
        whole + "\x0c",                               // the end of a group that did not begin
        std::string("\x12"),                          // a chunk without its length
        std::string("\x12\xff\xff\xff\xff\xff\x01"),  // a length beyond 31 bits
        std::string("\x0a\x7f too short"),            // another part that ends early
        std::string("\x1a\x03\x0a\x05z"),             // one whose field is longer than it
        std::string(20, '\xff')}) {
    EXPECT_EQ(InvalidFieldOf(SplitUpload(bytes).status())->came,
              "bytes that are not the request's message")
        << testing::PrintToString(bytes);
  }
}

TEST(SplitBytesTest, LeavesOutWhatIsNotKnownAsTheParserReadsIt) {
  std::mt19937_64 random(5);
  const std::string seeds[] = {
      {"\x7b\x78\x05\x79"
       "12345678"
       "\x7d"
       "1234"
       "\x7a\x03"
       "abc"
       "\x73\x74\x7c\x78\xff\x7f\x0a\x02hh\x1a\x03rhs\x10\x03"}};
  for (int round = 0; round < 20'000; ++round) {
    std::string bytes = seeds[0];
    for (int i = 0; i < round % 3; ++i) {
      bytes[random() % bytes.size()] = static_cast<char>(random());
    }
    v1::SolveRequest parsed;
    const bool is_message = parsed.ParseFromString(bytes);
    grpc::ByteBuffer buffer = InSlices(bytes);
    const absl::StatusOr<SplitMessage> split = SplitBytes(
        &buffer, v1::SolveRequest(), {.field = v1::SolveRequest::kRhsFieldNumber}, 1 << 20);
    if (!split.ok()) {
      EXPECT_FALSE(is_message) << split.status();
      continue;
    }
    v1::SolveRequest rest;
    EXPECT_EQ(rest.ParseFromString(split->rest), is_message);
    parsed.clear_rhs();
    parsed.DiscardUnknownFields();
    if (!is_message) continue;
    EXPECT_EQ(rest.SerializeAsString(), parsed.SerializeAsString());
  }
  // The rest counts as it is on the wire.
  grpc::ByteBuffer buffer = InSlices(seeds[0]);
  const auto fits = [&](int64_t most) {
    return SplitBytes(&buffer, v1::SolveRequest(), {.field = 3}, most).ok();
  };
  EXPECT_TRUE(fits(6));
  EXPECT_FALSE(fits(5));
}

}  // namespace
}  // namespace blockd::server
