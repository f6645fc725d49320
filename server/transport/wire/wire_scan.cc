#include "server/transport/wire/wire_scan.h"

#include <algorithm>
#include <limits>
#include <string>

#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/io/coded_stream.h"
#include "google/protobuf/unknown_field_set.h"
#include "google/protobuf/wire_format_lite.h"
#include "server/core/common/errors.h"
#include "server/transport/wire/message_type.h"
#include "server/transport/wire/raw_message.h"
#include "server/transport/wire/split_message.h"

namespace blockd::server {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::UnknownField;
using google::protobuf::UnknownFieldSet;
using google::protobuf::internal::WireFormatLite;
using google::protobuf::io::CodedInputStream;

constexpr int kMaxDepth = 100;  // as the parser's own
// The bytes that the allocator adds to a piece, with those that it rounds the piece up by.
constexpr int64_t kPiece = 32;
constexpr int64_t kPage = 4096 + 32;  // the same, of a large one
// An array that has doubled to make room for an element holds two places for it, and the one that
// it was copied from is still there.
constexpr int64_t kGrowth = 3;
constexpr int64_t kFirstElement = 8 * 8 + kPiece;  // the smallest array, with its head
constexpr int64_t kLargeArray = 1024;              // elements
// A string that is longer is read piece by piece, into room that doubles.
constexpr int64_t kReadAtOnce = 50'000'000;

int64_t StringBytes(int64_t length) {
  const int64_t text = length < 16 ? 0 : length + 1 + (length < kPage ? kPiece : kPage);
  return static_cast<int64_t>(sizeof(std::string)) + kPiece +
         (length > kReadAtOnce ? kGrowth * text : text);
}

class Scanner {
 public:
  Scanner(CodedInputStream* in, std::span<const ElementLimit> limits, int64_t enough)
      : in_(in), limits_(limits), enough_(enough), counts_(limits.size()) {}

  // The fields of one message, to the end or the limit of the stream. False: stop.
  bool Scan(const MessageType& type, int depth) {
    if (depth > kMaxDepth) return false;
    absl::InlinedVector<int64_t, 16> elements(type.fields.size());
    bool has_unknown = false;
    while (const uint32_t tag = ReadTag(in_)) {
      if (bytes_ > enough_) return false;
      const MessageField* const found = type.Find(tag);
      const WireFormatLite::WireType wire_type = WireFormatLite::GetTagWireType(tag);
      if (found == nullptr) {
        const int64_t known_bytes = bytes_ - unknown_bytes_;
        if (!has_unknown) bytes_ += static_cast<int64_t>(sizeof(UnknownFieldSet)) + 2 * kPiece;
        has_unknown = true;
        if (!Unknown(tag, depth)) return false;
        unknown_bytes_ = bytes_ - known_bytes;
        continue;
      }
      const MessageField& field = *found;
      int64_t& count = elements[static_cast<size_t>(field.index)];
      const int64_t before = count;
      if (!Known(field, wire_type, depth, &count)) {
        Within(field);
        return false;
      }
      if (field.repeated && before == 0) bytes_ += kFirstElement;
      if (field.repeated && before < kLargeArray && count >= kLargeArray) bytes_ += 2 * kPage;
      if (field.repeated && IsOver(field, count - before)) return false;
    }
    return in_->ConsumedEntireMessage();
  }

  int64_t bytes() const { return bytes_; }
  int64_t unknown_bytes() const { return unknown_bytes_; }  // of them
  const absl::Status& refusal() const { return refusal_; }

 private:
  bool Known(const MessageField& field, WireFormatLite::WireType wire_type, int depth,
             int64_t* count) {
    if (wire_type != WireFormatLite::WIRETYPE_LENGTH_DELIMITED) {
      if (field.repeated) bytes_ += kGrowth * field.number_bytes;
      ++*count;
      return Skip(wire_type);
    }
    int length;
    if (!ReadLength(in_, &length)) return false;
    if (field.kind == MessageField::Kind::kNumber) return Packed(field, length, count);
    if (field.repeated) bytes_ += kGrowth * static_cast<int64_t>(sizeof(void*));
    ++*count;
    if (field.kind == MessageField::Kind::kString) {
      bytes_ += StringBytes(length);
      return in_->Skip(length);
    }
    // A message that stands alone and comes twice is merged into the one that is there.
    if (field.repeated || *count == 1) bytes_ += field.type->object_bytes + kPiece;
    if (length == 0) return true;
    if (!HoldsAll(length)) return false;
    const CodedInputStream::Limit limit = in_->PushLimit(length);
    if (!Scan(*field.type, depth + 1) || in_->BytesUntilLimit() != 0) return false;
    in_->PopLimit(limit);
    return true;
  }

  // PushLimit would cut what is longer than the message that it is in.
  bool HoldsAll(int length) const {
    const int left = in_->BytesUntilLimit();
    return left < 0 || length <= left;
  }

  bool Packed(const MessageField& field, int64_t length, int64_t* count) {
    int64_t elements = 0;
    if (field.wire_type == WireFormatLite::WIRETYPE_VARINT) {
      if (!CountVarints(length, &elements)) return false;
    } else {
      const int64_t bytes = field.wire_type == WireFormatLite::WIRETYPE_FIXED64 ? 8 : 4;
      if (length % bytes != 0) return false;
      elements = length / bytes;
      if (!in_->Skip(static_cast<int>(length))) return false;
    }
    *count += elements;
    bytes_ += kGrowth * field.number_bytes * elements;
    return true;
  }

  // Each ends with a byte whose highest bit is not set, the tenth at the latest.
  bool CountVarints(int64_t length, int64_t* elements) {
    int unended = 0;  // bytes of the one that the next piece goes on with
    while (length > 0) {
      const void* data;
      int available;
      if (!in_->GetDirectBufferPointer(&data, &available) || available == 0) return false;
      const int taken = static_cast<int>(std::min<int64_t>(available, length));
      const auto* const bytes = static_cast<const uint8_t*>(data);
      int ends = 0;
      for (int i = 0; i < taken; ++i) ends += bytes[i] >> 7 ^ 1;
      // The loop above is many bytes at a time, and mostly all that is needed.
      if (ends < taken || unended > 0) {
        for (int i = 0; i < taken; ++i) {
          unended = bytes[i] >> 7 != 0 ? unended + 1 : 0;
          if (unended == kMaxVarintBytes) return false;
        }
      }
      *elements += ends;
      if (!in_->Skip(taken)) return false;
      length -= taken;
    }
    return unended == 0;
  }

  bool Skip(WireFormatLite::WireType wire_type) {
    uint64_t number;
    switch (wire_type) {
      case WireFormatLite::WIRETYPE_VARINT:
        return in_->ReadVarint64(&number);
      case WireFormatLite::WIRETYPE_FIXED64:
        return in_->Skip(8);
      case WireFormatLite::WIRETYPE_FIXED32:
        return in_->Skip(4);
      default:
        return false;
    }
  }

  // Counts a field that the message does not know: the parser keeps it too.
  bool Unknown(uint32_t tag, int depth) {
    if (depth > kMaxDepth || bytes_ > enough_) return false;
    if (WireFormatLite::GetTagFieldNumber(tag) == 0) return false;
    bytes_ += kGrowth * static_cast<int64_t>(sizeof(UnknownField)) + kPiece;
    const WireFormatLite::WireType wire_type = WireFormatLite::GetTagWireType(tag);
    if (wire_type == WireFormatLite::WIRETYPE_LENGTH_DELIMITED) {
      int length;
      if (!ReadLength(in_, &length)) return false;
      bytes_ += StringBytes(length);
      return in_->Skip(length);
    }
    if (wire_type != WireFormatLite::WIRETYPE_START_GROUP) {
      return Skip(wire_type);
    }
    bytes_ += static_cast<int64_t>(sizeof(UnknownFieldSet)) + kPiece;
    while (const uint32_t inner = ReadTag(in_)) {
      if (WireFormatLite::GetTagWireType(inner) == WireFormatLite::WIRETYPE_END_GROUP) {
        return WireFormatLite::GetTagFieldNumber(inner) == WireFormatLite::GetTagFieldNumber(tag);
      }
      if (!Unknown(inner, depth + 1)) return false;
    }
    return false;
  }

  // With `more` elements. A message that comes in parts, which are merged, is counted as one.
  bool IsOver(const MessageField& field, int64_t more) {
    if (field.descriptor != counted_) {  // not by name for each of a million elements
      counted_ = field.descriptor;
      const std::string& name = counted_->full_name();
      limit_ = static_cast<size_t>(
          std::find_if(limits_.begin(), limits_.end(),
                       [&](const ElementLimit& l) { return std::string_view(name) == l.field; }) -
          limits_.begin());
    }
    if (limit_ == limits_.size()) return false;
    counts_[limit_] += more;
    if (counts_[limit_] <= limits_[limit_].most) return false;
    refused_at_ = field.descriptor->name();
    most_ = limits_[limit_].most;
    SetRefusal();
    return true;
  }
  // The path of what was refused begins with the field that it is in.
  void Within(const MessageField& field) {
    if (refusal_.ok()) return;
    refused_at_ = absl::StrCat(field.descriptor->name(), ".", refused_at_);
    SetRefusal();
  }
  void SetRefusal() {
    refusal_ = InvalidFieldError(refused_at_, absl::StrCat("more than ", most_, " elements"),
                                 absl::StrCat("at most ", most_));
  }

  CodedInputStream* const in_;
  const std::span<const ElementLimit> limits_;
  const int64_t enough_;
  int64_t bytes_ = 0, unknown_bytes_ = 0;
  absl::InlinedVector<int64_t, 8> counts_;    // of elements, by limit
  const FieldDescriptor* counted_ = nullptr;  // the last one, and its limit
  size_t limit_ = 0;
  std::string refused_at_;
  int64_t most_ = 0;
  absl::Status refusal_;
};

}  // namespace

absl::StatusOr<int64_t> ParsedBytes(const grpc::ByteBuffer& bytes, const Message& message,
                                    std::span<const ElementLimit> limits, int64_t enough,
                                    int64_t* unknown, const std::atomic<bool>* stop) {
  if (unknown != nullptr) *unknown = 0;
  if (bytes.Length() == 0) return 0;
  MessageReader reader(bytes, stop);
  if (reader.status().ok()) {
    CodedInputStream in(&reader);
    in.SetTotalBytesLimit(std::numeric_limits<int>::max());
    Scanner scanner(&in, limits, enough);
    const bool is_message = scanner.Scan(TypeOf(message), 0);
    if (reader.stopped()) return StoppedError();
    if (unknown != nullptr) *unknown = scanner.unknown_bytes();
    if (is_message || scanner.bytes() > enough) return scanner.bytes();
    if (!scanner.refusal().ok()) return scanner.refusal();
  }
  return InvalidFieldError("", "bytes that are not the request's message",
                           absl::StrCat("a ", message.GetTypeName()));
}

bool ParseScanned(const grpc::ByteBuffer& bytes, int64_t unknown, Message* message,
                  const std::atomic<bool>* stop) {
  if (unknown < static_cast<int64_t>(bytes.Length())) return ParseMessage(bytes, message, stop);
  std::string known;
  known.reserve(
      bytes.Length());  // at most `unknown`; a string that grows would take three times it
  if (!CopyKnown(bytes, *message, &known, stop)) return false;
  return ParseMessage(AsBuffer(known), message, stop);
}

}  // namespace blockd::server
