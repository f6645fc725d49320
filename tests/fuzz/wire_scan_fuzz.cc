// The scanner beside the parser, on any bytes, in slices of any length: what the scanner accepts
// parses, takes no more than it was charged for and has no more elements than the limits say; and
// nothing that parses is refused for anything but its elements. What is parsed without the fields
// that the message does not know is the same in all others.
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "blockd/v1/blockd.pb.h"
#include "server/core/common/errors.h"
#include "server/transport/wire/raw_message.h"
#include "server/transport/wire/wire_scan.h"
#include "tests/fuzz/check.h"
#include "tests/support/byte_buffers.h"
#include "tests/support/hooks/heap_hook.h"

namespace blockd::server {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

constexpr int64_t kMost = 5;
constexpr ElementLimit kLimits[] = {{"blockd.v1.ReleaseRequest.handle", kMost},
                                    {"blockd.v1.FactorRequest.system", kMost},
                                    {"blockd.v1.FactorOptions.handle", kMost},
                                    {"blockd.v1.SolveManyRequest.num_rhs", kMost},
                                    {"blockd.v1.SolveManyRequest.rhs_bytes", kMost},
                                    {"blockd.v1.Palette.diagonal_index", kMost},
                                    {"blockd.v1.FactorSolveManyRequest.handle", kMost}};
// The reader itself has a little on the heap.
constexpr int64_t kReader = 512;

std::vector<const Message*> Prototypes() {
  return {&v1::FactorRequest::default_instance(),
          &v1::FactorStreamRequest::default_instance(),
          &v1::SolveRequest::default_instance(),
          &v1::SolveStreamRequest::default_instance(),
          &v1::FactorSolveRequest::default_instance(),
          &v1::ReleaseRequest::default_instance(),
          &v1::GetFactorizationRequest::default_instance(),
          &v1::ListFactorizationsRequest::default_instance(),
          &v1::GetPlanRequest::default_instance(),
          &v1::SolveManyRequest::default_instance(),
          &v1::FactorSolveManyRequest::default_instance()};
}

// The most elements of any one field that has a limit.
int64_t MostElements(const Message& message) {
  int64_t most = 0;
  const auto* const reflection = message.GetReflection();
  std::vector<const FieldDescriptor*> fields;
  reflection->ListFields(message, &fields);
  for (const FieldDescriptor* field : fields) {
    if (field->is_repeated()) {
      for (const ElementLimit& limit : kLimits) {
        if (field->full_name() != limit.field) continue;
        most = std::max<int64_t>(most, reflection->FieldSize(message, field));
      }
    } else if (field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) {
      most = std::max(most, MostElements(reflection->GetMessage(message, field)));
    }
  }
  return most;
}

void CompareKnown(const grpc::ByteBuffer& bytes, int64_t charge, int64_t unknown,
                  Message* message) {
  const std::unique_ptr<Message> known(message->New());
  {
    const test::HeapCount heap;
    FUZZ_CHECK(ParseScanned(bytes, unknown, known.get()));
    FUZZ_CHECK(heap.peak_bytes() <= charge + kReader);
  }
  message->DiscardUnknownFields();
  known->DiscardUnknownFields();
  FUZZ_CHECK(known->SerializeAsString() == message->SerializeAsString());
}

void Compare(const grpc::ByteBuffer& bytes, const Message& prototype) {
  int64_t unknown = 0;
  const absl::StatusOr<int64_t> charge =
      ParsedBytes(bytes, prototype, {}, std::numeric_limits<int64_t>::max(), &unknown);
  const absl::StatusOr<int64_t> limited =
      ParsedBytes(bytes, prototype, kLimits, std::numeric_limits<int64_t>::max());
  const std::unique_ptr<Message> message(prototype.New());
  bool parses = false;
  int64_t peak = 0;
  {
    const test::HeapCount heap;
    parses = ParseMessage(bytes, message.get());
    peak = heap.peak_bytes();
  }
  FUZZ_CHECK(charge.ok() == parses);
  if (!charge.ok()) {
    FUZZ_CHECK(InvalidFieldOf(charge.status()).has_value());
    FUZZ_CHECK(!limited.ok());
    return;
  }
  FUZZ_CHECK(peak <= *charge + kReader);
  // Elements count that a later part of the same oneof takes back: parsing makes them all.
  const bool within = MostElements(*message) <= kMost;
  const bool all_there = message->ByteSizeLong() >= bytes.Length();
  FUZZ_CHECK(limited.ok() ? within : !within || !all_there);
  FUZZ_CHECK(limited.ok() ? *limited == *charge : InvalidFieldOf(limited.status()).has_value());
  // It stops early, and only then.
  const absl::StatusOr<int64_t> enough = ParsedBytes(bytes, prototype, {}, *charge / 2);
  FUZZ_CHECK(enough.ok() && *enough <= *charge && (*charge == 0 || *enough > *charge / 2));
  CompareKnown(bytes, *charge, unknown, message.get());
}

}  // namespace
}  // namespace blockd::server

// The first byte says the message, the second the slices.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace blockd::server;
  static const auto& prototypes = *new std::vector<const google::protobuf::Message*>(Prototypes());
  if (size < 2) return 0;
  const size_t slice_bytes = data[1] < 128 ? 1 + data[1] : size;
  const std::string_view bytes(reinterpret_cast<const char*>(data) + 2, size - 2);
  Compare(blockd::test::InSlices(bytes, slice_bytes), *prototypes[data[0] % prototypes.size()]);
  return 0;
}
