// One message of a stream, of any bytes, in slices of any length: taken apart without copying its
// bulk it says what the parser says of it, and the bytes that are copied and cleared for that are
// so many times its length at most.
#include <cstdint>
#include <string>
#include <vector>

#include "blockd/v1/blockd.pb.h"
#include "google/protobuf/util/message_differencer.h"
#include "server/core/common/errors.h"
#include "server/transport/stream/stream_request.h"
#include "server/transport/wire/split_message.h"
#include "tests/fuzz/check.h"
#include "tests/support/byte_buffers.h"
#include "tests/support/hooks/copy_hook.h"

namespace blockd::server {
namespace {

using test::InSlices;
using test::Joined;

// A message that is read in time that grows with the square of its length copies thousands of times
// that.
void CheckLinear(const test::CopyCount& copies, const std::string& bytes) {
  constexpr int64_t kLittle = 256 << 10;  // descriptors, the first time
  constexpr int64_t kMostCopies = 64;
  FUZZ_CHECK(copies.bytes() <= kLittle + kMostCopies * static_cast<int64_t>(bytes.size()));
}

// Compares all but unknown fields, which the reader may leave out.
bool SameButForUnknown(google::protobuf::Message& a, google::protobuf::Message& b) {
  a.DiscardUnknownFields();
  b.DiscardUnknownFields();
  return google::protobuf::util::MessageDifferencer::Equals(a, b);
}

void CompareSolveStream(const std::string& bytes, size_t slice_bytes) {
  grpc::ByteBuffer buffer = InSlices(bytes, slice_bytes);
  const test::CopyCount copies;
  absl::StatusOr<StreamMessage> read = ReadStreamMessage(&buffer);
  CheckLinear(copies, bytes);
  v1::SolveStreamRequest parsed;
  const bool parses = parsed.ParseFromString(bytes);
  if (!read.ok()) {
    FUZZ_CHECK(InvalidFieldOf(read.status()).has_value());
    // Refused for what the message says, or for what is no message; never a plain one.
    const bool plain = parses &&
                       (parsed.has_request() || parsed.has_many() || parsed.has_refactor()) &&
                       parsed.SerializeAsString() == bytes;
    FUZZ_CHECK(!plain);
    return;
  }
  if (read->part ==
      v1::SolveStreamRequest::kRefactorFieldNumber) {  // whose reader parses it, or refuses it
    FUZZ_CHECK(!parses || (parsed.has_refactor() && read->id == parsed.id()));
    return;
  }
  FUZZ_CHECK(parses);
  FUZZ_CHECK(read->id == parsed.id());
  const std::string pieces = Joined(read->pieces);
  FUZZ_CHECK(static_cast<int64_t>(pieces.size()) == read->bytes);
  switch (read->part) {
    case v1::SolveStreamRequest::kChunkFieldNumber:
      FUZZ_CHECK(parsed.has_chunk() && parsed.chunk() == pieces);
      break;
    case v1::SolveStreamRequest::kCancelFieldNumber:
      FUZZ_CHECK(parsed.has_cancel());
      break;
    case v1::SolveStreamRequest::kRefactorFieldNumber:
      break;
    case v1::SolveStreamRequest::kManyFieldNumber: {
      FUZZ_CHECK(parsed.has_many() && parsed.many().rhs() == pieces);
      v1::SolveStreamRequest whole = read->request;
      if (!read->unparsed.empty()) FUZZ_CHECK(whole.ParseFromString(read->unparsed));
      whole.mutable_many()->set_rhs(pieces);
      FUZZ_CHECK(SameButForUnknown(whole, parsed));
      (void)TimeoutOf(*read);
      break;
    }
    case v1::SolveStreamRequest::kRequestFieldNumber: {
      FUZZ_CHECK(parsed.has_request() && parsed.request().rhs() == pieces);
      v1::SolveStreamRequest whole = read->request;
      whole.mutable_request()->set_rhs(pieces);
      FUZZ_CHECK(SameButForUnknown(whole, parsed));
      (void)TimeoutOf(*read);
      break;
    }
  }
}

constexpr int kJoin[] = {v1::FactorStreamRequest::kJoinFieldNumber};

void CompareFactorStream(const std::string& bytes, size_t slice_bytes) {
  grpc::ByteBuffer buffer = InSlices(bytes, slice_bytes);
  const test::CopyCount copies;
  constexpr int kChunk = v1::FactorStreamRequest::kChunkFieldNumber;
  const absl::StatusOr<SplitMessage> part = SplitBytes(
      &buffer, v1::FactorStreamRequest(),
      {.field = kChunk, .others = kJoin, .whole = v1::FactorStreamRequest::kHeaderFieldNumber},
      static_cast<int64_t>(bytes.size()));
  CheckLinear(copies, bytes);
  v1::FactorStreamRequest parsed;
  const bool parses = parsed.ParseFromString(bytes);
  if (!part.ok()) {
    FUZZ_CHECK(InvalidFieldOf(part.status()).has_value() && !parses);
    return;
  }
  if (part->left_whole && !parses) return;  // its own parser says so
  FUZZ_CHECK(parses && static_cast<int>(parsed.part_case()) == part->part);
  if (part->part != kChunk) return;
  FUZZ_CHECK(parsed.chunk() == Joined(part->pieces));
  FUZZ_CHECK(part->bytes == static_cast<int64_t>(parsed.chunk().size()));
}

}  // namespace
}  // namespace blockd::server

// The first byte says the stream and the slices, and of the longest of these that the message is
// repeated until it is long: parts of a message one after another are a message.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace blockd::server;
  constexpr size_t kRepeated = 0xfe, kLongBytes = 8 << 10;
  if (size < 1) return 0;
  const std::string message(reinterpret_cast<const char*>(data + 1), size - 1);
  std::string bytes = message;
  while (data[0] >= kRepeated && size > 1 && bytes.size() < kLongBytes) bytes += message;
  const size_t slice_bytes = 1 + (data[0] >> 1);
  (data[0] & 1 ? CompareFactorStream : CompareSolveStream)(bytes, slice_bytes);
  return 0;
}
