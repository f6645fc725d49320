#include "server/transport/wire/wire_scan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "blockd/v1/blockd.pb.h"
#include "server/core/common/errors.h"
#include "server/transport/wire/raw_message.h"
#include "tests/support/byte_buffers.h"
#include "tests/support/hooks/heap_hook.h"

namespace blockd::server {
namespace {

constexpr int64_t kNoEnd = std::numeric_limits<int64_t>::max();
constexpr size_t kSlice = 5000;  // bytes

template <typename Type>
absl::StatusOr<int64_t> Scan(const std::string& bytes, std::span<const ElementLimit> limits = {},
                             int64_t enough = kNoEnd) {
  return ParsedBytes(test::InSlices(bytes, kSlice), Type(), limits, enough);
}

// Checks that the bytes of the scan cover the bytes that parsing takes.
template <typename Type>
void ExpectCovers(const std::string& bytes, bool must_be_message = true) {
  const grpc::ByteBuffer buffer = test::InSlices(bytes, kSlice);
  int64_t unknown = 0;
  const absl::StatusOr<int64_t> scanned = ParsedBytes(buffer, Type(), {}, kNoEnd, &unknown);
  if (!scanned.ok()) {
    EXPECT_FALSE(must_be_message) << scanned.status();
    EXPECT_TRUE(absl::IsInvalidArgument(scanned.status())) << scanned.status();
    return;
  }
  EXPECT_LE(unknown, *scanned);
  Type message, known;
  int64_t peak = 0, known_peak = 0;
  {
    const test::HeapCount heap;
    EXPECT_TRUE(ParseMessage(buffer, &message) || !must_be_message);
    peak = heap.peak_bytes();
  }
  {
    const test::HeapCount heap;
    EXPECT_TRUE(ParseScanned(buffer, unknown, &known) || !must_be_message);
    known_peak = heap.peak_bytes();
  }
  // The reader itself has a little on the heap.
  EXPECT_GE(*scanned + 512, std::max(peak, known_peak))
      << message.GetTypeName() << ", " << bytes.size() << " bytes";
  if (unknown < static_cast<int64_t>(bytes.size())) {
    EXPECT_EQ(known.SerializeAsString(), message.SerializeAsString());
  }
  message.DiscardUnknownFields();
  known.DiscardUnknownFields();
  EXPECT_EQ(known.SerializeAsString(), message.SerializeAsString());
  if (must_be_message) {
    EXPECT_LE(*scanned, 8 * peak + 4096);  // and not any number
  }
}

std::string Repeat(const std::string& piece, size_t count) {
  std::string all;
  all.reserve(piece.size() * count);
  for (size_t i = 0; i < count; ++i) all += piece;
  return all;
}

v1::FactorRequest SmallFactor() {
  v1::FactorRequest request;
  request.mutable_spec()->set_num_blocks(4);
  request.mutable_spec()->set_block_size(2);
  for (int i = 0; i < 4; ++i) request.mutable_spec()->mutable_palette()->add_diagonal_index(i);
  request.mutable_options()->add_handle(std::string(24, 'h'));
  request.mutable_options()->set_idempotency_key("a key that is longer than 15 bytes");
  request.mutable_options()->mutable_lease()->set_seconds(3);
  for (int i = 0; i < 3; ++i) {
    request.add_system()->set_diagonal(std::string(128, 'd'));
    request.mutable_system(i)->set_coupling(std::string(96, 'c'));
  }
  return request;
}

TEST(WireScanTest, CoversWhatOrdinaryMessagesTake) {
  ExpectCovers<v1::FactorRequest>(SmallFactor().SerializeAsString());
  ExpectCovers<v1::ReleaseRequest>("");
  v1::SolveRequest solve;
  solve.set_handle(std::string(24, 'h'));
  for (const size_t length : {0, 1, 15, 16, 100'000, 49'999'999, 50'000'001, 60'000'000}) {
    solve.set_rhs(std::string(length, 'r'));
    ExpectCovers<v1::SolveRequest>(solve.SerializeAsString());
  }
}

TEST(WireScanTest, CoversManyEmptyElements) {
  for (const size_t count : {1, 2, 3, 4, 5, 1000, 100'001}) {
    ExpectCovers<v1::ReleaseRequest>(Repeat(std::string("\x0a\x00", 2), count));
    ExpectCovers<v1::FactorRequest>(Repeat(std::string("\x12\x00", 2), count));
    ExpectCovers<v1::RpcStatus>(Repeat(std::string("\x1a\x00", 2), count));
  }
  // One message that comes many times is one message still.
  const std::string again = Repeat(std::string("\x0a\x00", 2), 100'000);
  ExpectCovers<v1::FactorRequest>(again);
  EXPECT_LT(*Scan<v1::FactorRequest>(again), 1000);
}

TEST(WireScanTest, CoversNumbersPackedAndNot) {
  for (const size_t count : {1, 10, 70'000, 1'000'000}) {
    v1::Palette palette;
    for (size_t i = 0; i < count; ++i) palette.add_diagonal_index(i % 300);
    ExpectCovers<v1::Palette>(palette.SerializeAsString());
    const int field = v1::Palette::kDiagonalIndexFieldNumber;
    ExpectCovers<v1::Palette>(Repeat(std::string({static_cast<char>(field << 3), 7}), count));
  }
}

TEST(WireScanTest, CoversWhatTheMessageDoesNotKnow) {
  for (const size_t count : {1, 1000, 50'000}) {
    ExpectCovers<v1::ReleaseRequest>(Repeat(std::string("\xa0\x06\x05", 3), count));  // a number
    ExpectCovers<v1::ReleaseRequest>(Repeat(std::string("\xa2\x06\x00", 3), count));  // bytes
    ExpectCovers<v1::ReleaseRequest>(
        Repeat("\xa1\x06"
               "12345678",
               count));
    ExpectCovers<v1::ReleaseRequest>(
        Repeat("\xa5\x06"
               "1234",
               count));
    ExpectCovers<v1::ReleaseRequest>(Repeat("\xa3\x06\xa4\x06", count));          // a group
    ExpectCovers<v1::ReleaseRequest>(Repeat(std::string("\x08\x05", 2), count));  // another type
  }
}

TEST(WireScanTest, LeavesOutWhatTheMessageDoesNotKnowWhereThatIsMuch) {
  const std::string unknown = Repeat(std::string("\x78\x05", 2), 1000) + "\x7b\x7c";
  v1::FactorRequest request = SmallFactor();
  const auto add = [&](google::protobuf::Message* message) {
    EXPECT_TRUE(message->MergeFromString(unknown));
  };
  add(&request);
  add(request.mutable_spec());
  add(request.mutable_spec()->mutable_palette());
  add(request.mutable_system(1));
  add(request.mutable_options()->mutable_lease());
  const std::string bytes = request.SerializeAsString();
  ExpectCovers<v1::FactorRequest>(bytes);
  const grpc::ByteBuffer buffer = test::InSlices(bytes, kSlice);
  int64_t unknown_bytes = 0;
  ASSERT_TRUE(ParsedBytes(buffer, v1::FactorRequest(), {}, kNoEnd, &unknown_bytes).ok());
  v1::FactorRequest known;
  ASSERT_TRUE(ParseScanned(buffer, unknown_bytes, &known));
  EXPECT_EQ(known.SerializeAsString(), SmallFactor().SerializeAsString());
  // And not where it is little.
  v1::FactorRequest one = SmallFactor();
  one.GetReflection()->MutableUnknownFields(&one)->AddVarint(15, 5);
  ExpectCovers<v1::FactorRequest>(one.SerializeAsString());
}

TEST(WireScanTest, CoversTheCopyOfWhatTheMessageKnows) {
  for (size_t handles = 1; handles < 200; ++handles) {
    v1::ReleaseRequest request;
    for (size_t i = 0; i < handles; ++i) request.add_handle(std::string(100, 'h'));
    auto* const unknown = request.GetReflection()->MutableUnknownFields(&request);
    // Just enough that it is left out.
    for (size_t count = 0; count < 1 + 4 * handles / 3; ++count) unknown->AddVarint(15, 5);
    ExpectCovers<v1::ReleaseRequest>(request.SerializeAsString());
  }
}

TEST(WireScanTest, StopsWhereTheCallIsCancelled) {
  const grpc::ByteBuffer buffer = test::InSlices(SmallFactor().SerializeAsString(), kSlice);
  std::atomic<bool> stop = false;
  int64_t unknown = 0;
  EXPECT_TRUE(ParsedBytes(buffer, v1::FactorRequest(), {}, kNoEnd, &unknown, &stop).ok());
  v1::FactorRequest message;
  EXPECT_TRUE(ParseScanned(buffer, unknown, &message, &stop));
  stop = true;
  EXPECT_TRUE(absl::IsCancelled(
      ParsedBytes(buffer, v1::FactorRequest(), {}, kNoEnd, &unknown, &stop).status()));
  for (const int64_t left_out : {int64_t{0}, kNoEnd}) {
    v1::FactorRequest nothing;
    EXPECT_FALSE(ParseScanned(buffer, left_out, &nothing, &stop));
    EXPECT_EQ(nothing.ByteSizeLong(), 0);
  }
}

TEST(WireScanTest, NestingEndsWhereTheParsersDoes) {
  for (const size_t depth : {1, 50, 90, 98, 99, 100, 101, 102, 1000, 100'000}) {
    const std::string bytes = Repeat("\xa3\x06", depth) + Repeat("\xa4\x06", depth);
    v1::ReleaseRequest message;
    const bool parses = ParseMessage(test::InSlices(bytes, kSlice), &message);
    const absl::StatusOr<int64_t> scanned = Scan<v1::ReleaseRequest>(bytes);
    EXPECT_TRUE(scanned.ok() || !parses) << depth;
    EXPECT_FALSE(scanned.ok() && depth >= 1000);
    ExpectCovers<v1::ReleaseRequest>(bytes, /*must_be_message=*/false);
  }
}

TEST(WireScanTest, TooManyElementsAreRefusedWithTheirPath) {
  const ElementLimit limits[] = {{"blockd.v1.ReleaseRequest.handle", 10},
                                 {"blockd.v1.FactorOptions.handle", 2},
                                 {"blockd.v1.Palette.diagonal_index", 5}};
  const std::string handle("\x0a\x00", 2);
  EXPECT_TRUE(Scan<v1::ReleaseRequest>(Repeat(handle, 10), limits).ok());
  const auto invalid = [](const absl::Status& status, std::string_view field, int64_t most) {
    const auto detail = InvalidFieldOf(status);
    ASSERT_TRUE(detail.has_value()) << status;
    EXPECT_EQ(detail->field, field);
    EXPECT_EQ(detail->came, absl::StrCat("more than ", most, " elements"));
    EXPECT_EQ(detail->expected, absl::StrCat("at most ", most));
  };
  invalid(Scan<v1::ReleaseRequest>(Repeat(handle, 11), limits).status(), "handle", 10);
  v1::FactorRequest factor = SmallFactor();
  EXPECT_TRUE(Scan<v1::FactorRequest>(factor.SerializeAsString(), limits).ok());
  factor.mutable_options()->add_handle("2");
  EXPECT_TRUE(Scan<v1::FactorRequest>(factor.SerializeAsString(), limits).ok());
  factor.mutable_options()->add_handle("3");
  invalid(Scan<v1::FactorRequest>(factor.SerializeAsString(), limits).status(), "options.handle",
          2);
  factor.clear_options();
  for (int i = 0; i < 2; ++i) factor.mutable_spec()->mutable_palette()->add_diagonal_index(0);
  invalid(Scan<v1::FactorRequest>(factor.SerializeAsString(), limits).status(),
          "spec.palette.diagonal_index", 5);
}

TEST(WireScanTest, AMessageThatComesInPartsHasOneLimit) {
  const ElementLimit limits[] = {{"blockd.v1.FactorOptions.handle", 4}};
  const std::string options("\x1a\x04\x0a\x00\x0a\x00", 6);  // two handles
  EXPECT_TRUE(Scan<v1::FactorRequest>(options + options, limits).ok());
  const auto detail =
      InvalidFieldOf(Scan<v1::FactorRequest>(options + options + options, limits).status());
  ASSERT_TRUE(detail.has_value());
  EXPECT_EQ(detail->field, "options.handle");
}

TEST(WireScanTest, RefusesWhatTheParserRefuses) {
  const std::string refused[] = {
      {"\x0a\x04\x32\x06\x08\x01", 6},      // longer than the message that it is in
      {"\x02\x00", 2},                      // a field 0
      "\x8a\x80\x80\x80\x80\x80",           // a tag of more than 5 bytes
      {"\x0a\x80\x80\x80\x80\x80\x00", 7},  // a length of as many
      "\x0a\x06\x32\x04\x1a\x02\x01\x80",   // a packed number without an end
      "\x0a\x0f\x32\x0d\x1a\x0b" + std::string(10, '\x80') + "\x01",  // one of 11 bytes
  };
  for (const std::string& bytes : refused) {
    v1::FactorRequest message;
    EXPECT_FALSE(ParseMessage(test::InSlices(bytes, kSlice), &message));
    EXPECT_TRUE(absl::IsInvalidArgument(Scan<v1::FactorRequest>(bytes).status()));
  }
}

TEST(WireScanTest, StopsOnceItIsEnough) {
  const std::string bytes = Repeat(std::string("\x0a\x00", 2), 1'000'000);
  const absl::StatusOr<int64_t> scanned = Scan<v1::ReleaseRequest>(bytes, {}, 1'000'000);
  ASSERT_TRUE(scanned.ok()) << scanned.status();
  EXPECT_GT(*scanned, 1'000'000);
  EXPECT_LT(*scanned, 1'001'000);
}

TEST(WireScanTest, CoversWhateverBytesComeAndRefusesWhatIsNoMessage) {
  std::mt19937_64 random(11);
  const std::string seed = SmallFactor().SerializeAsString();
  for (int round = 0; round < 20'000; ++round) {
    std::string bytes = seed;
    for (int i = 0; i < 1 + round % 5; ++i) {
      bytes[random() % bytes.size()] = static_cast<char>(random());
    }
    if (round % 4 == 0) bytes.resize(random() % (bytes.size() + 1));
    if (round % 7 == 0) bytes += bytes;
    ExpectCovers<v1::FactorRequest>(bytes, /*must_be_message=*/false);
    // Not a byte that the parser takes is refused.
    v1::FactorRequest message;
    EXPECT_EQ(Scan<v1::FactorRequest>(bytes).ok() ||
                  !ParseMessage(test::InSlices(bytes, kSlice), &message),
              true);
  }
}

}  // namespace
}  // namespace blockd::server
