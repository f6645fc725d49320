#include "server/transport/split_message.h"

#include <algorithm>
#include <initializer_list>
#include <limits>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "google/protobuf/io/coded_stream.h"
#include "google/protobuf/wire_format_lite.h"
#include "server/transport/message_type.h"
#include "server/transport/raw_message.h"

namespace blockd::server {
namespace {

using google::protobuf::Message;
using google::protobuf::internal::WireFormatLite;
using google::protobuf::io::CodedInputStream;
using google::protobuf::io::CodedOutputStream;

constexpr size_t kMaxVarintBytes = 10;

class Splitter {
 public:
  Splitter(CodedInputStream* in, int64_t max_rest) : in_(in), max_rest_(max_rest) {}

  // Copies all fields that the type knows but the bytes, of the message itself where there are no
  // `outers`. Stops, with false, where it is no message or too long.
  bool Split(const MessageType& type, const NestedBytes& nested, std::string* rest) {
    const auto& [outers, bytes, other, whole] = nested;
    while (const uint32_t tag = ReadTag(in_)) {
      const MessageField* const field = type.Find(tag);
      if (field == nullptr) {
        if (!SkipUnknown(in_, tag)) return false;
        continue;
      }
      if (WireFormatLite::GetTagWireType(tag) != WireFormatLite::WIRETYPE_LENGTH_DELIMITED) {
        if (!CopyNumber(tag, rest)) return false;
        continue;
      }
      const int number = WireFormatLite::GetTagFieldNumber(tag);
      int length;
      if (!ReadLength(in_, &length)) return false;
      const bool outer = std::find(outers.begin(), outers.end(), number) != outers.end();
      if ((outer || number == other || number == whole) && number != message_.part) {
        Forget();
        message_.part = number;
      }
      if (outer) {
        if (!SplitInner(*field, length, bytes, rest)) return false;
      } else if (number == whole) {
        message_.left_whole = true;
        if (!in_->Skip(length)) return false;
      } else if (outers.empty() && number == bytes) {
        Forget();  // of several, the last one counts
        message_.bytes = length;
        if (!TakePieces(in_, length, &message_.pieces)) return false;
      } else if (!CopyBytes(number, length, rest)) {
        return false;
      }
    }
    return in_->ConsumedEntireMessage();
  }

  SplitMessage& message() { return message_; }
  bool too_long() const { return copied_ > max_rest_; }

 private:
  bool SplitInner(const MessageField& outer, int length, int bytes, std::string* rest) {
    std::string inner;
    if (length > 0) {
      const CodedInputStream::Limit limit = in_->PushLimit(length);
      if (!in_->IncrementRecursionDepth() ||
          !Split(*outer.type, {.outers = {}, .field = bytes}, &inner) ||
          in_->BytesUntilLimit() != 0) {
        return false;
      }
      in_->DecrementRecursionDepth();
      in_->PopLimit(limit);
    }
    AppendLengthHeader(rest, outer.descriptor->number(), static_cast<int64_t>(inner.size()));
    *rest += inner;
    return Count(2);
  }

  // False, and the field is not copied, if the rest would become too long.
  bool CopyBytes(int field, int length, std::string* rest) {
    if (!Count(length)) return false;
    AppendLengthHeader(rest, field, length);
    return CopyRaw(length, rest);
  }

  bool CopyNumber(uint32_t tag, std::string* rest) {
    const int before = in_->CurrentPosition();
    uint64_t number;
    switch (WireFormatLite::GetTagWireType(tag)) {
      case WireFormatLite::WIRETYPE_VARINT:
        if (!in_->ReadVarint64(&number)) return false;
        Append({tag, number}, rest);
        return Count(1 + in_->CurrentPosition() - before);
      case WireFormatLite::WIRETYPE_FIXED64:
        return Count(1 + sizeof(uint64_t)) && CopyFixed(tag, sizeof(uint64_t), rest);
      default:
        return Count(1 + sizeof(uint32_t)) && CopyFixed(tag, sizeof(uint32_t), rest);
    }
  }

  bool CopyFixed(uint32_t tag, int length, std::string* rest) {
    Append({tag}, rest);
    return CopyRaw(length, rest);
  }
  // Piece by piece, so that nothing is cleared for a length that the message does not have.
  bool CopyRaw(int length, std::string* rest) {
    while (length > 0) {
      const void* data;
      int available;
      if (!in_->GetDirectBufferPointer(&data, &available) || available == 0) return false;
      const int taken = std::min(available, length);
      rest->append(static_cast<const char*>(data), static_cast<size_t>(taken));
      if (!in_->Skip(taken)) return false;
      length -= taken;
    }
    return true;
  }
  // Varints. A stream of protobuf's, made for each field, would clear all the room that the string
  // has left: time that grows with the square of the message.
  static void Append(std::initializer_list<uint64_t> numbers, std::string* rest) {
    uint8_t bytes[2 * kMaxVarintBytes];
    uint8_t* end = bytes;
    for (const uint64_t number : numbers) {
      end = CodedOutputStream::WriteVarint64ToArray(number, end);
    }
    rest->append(reinterpret_cast<const char*>(bytes), static_cast<size_t>(end - bytes));
  }

  void Forget() {
    message_.pieces.clear();
    message_.bytes = 0;
  }

  bool Count(int64_t bytes) {
    copied_ += bytes;
    return !too_long();
  }

  CodedInputStream* const in_;
  const int64_t max_rest_;
  int64_t copied_ = 0;
  SplitMessage message_;
};

}  // namespace

absl::StatusOr<SplitMessage> SplitNestedBytes(grpc::ByteBuffer* buffer, const Message& type,
                                              const NestedBytes& nested, int64_t max_rest,
                                              const std::atomic<bool>* stop) {
  if (buffer->Length() == 0) return SplitMessage();
  MessageReader reader(*buffer, stop);
  if (!reader.status().ok()) return absl::InvalidArgumentError("bytes that cannot be read");
  CodedInputStream in(&reader);
  in.SetTotalBytesLimit(std::numeric_limits<int>::max());
  Splitter splitter(&in, max_rest);
  std::string rest;
  const bool is_message = splitter.Split(TypeOf(type), nested, &rest);
  if (reader.stopped()) return StoppedError();
  if (!is_message) {
    return absl::InvalidArgumentError(
        splitter.too_long() ? absl::StrCat("more than ", max_rest, " bytes beside the content")
                            : "bytes that are not the request's message");
  }
  splitter.message().rest = std::move(rest);
  return std::move(splitter.message());
}

absl::StatusOr<SplitMessage> SplitBytes(grpc::ByteBuffer* buffer, const Message& type, int field,
                                        int64_t max_rest, const std::atomic<bool>* stop) {
  return SplitNestedBytes(buffer, type, {.outers = {}, .field = field}, max_rest, stop);
}

}  // namespace blockd::server
