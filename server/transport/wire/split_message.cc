#include "server/transport/wire/split_message.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "google/protobuf/io/coded_stream.h"
#include "google/protobuf/wire_format_lite.h"
#include "server/core/common/errors.h"
#include "server/transport/wire/message_type.h"
#include "server/transport/wire/raw_message.h"

namespace blockd::server {
namespace {

using google::protobuf::Message;
using google::protobuf::internal::WireFormatLite;
using google::protobuf::io::CodedInputStream;
using google::protobuf::io::CodedOutputStream;

// Copies what its type knows of a message, but for what is lifted out of it.
class Splitter {
 public:
  Splitter(CodedInputStream* in, const LiftedBytes& lifted, int64_t max_rest, std::string* rest)
      : in_(in), lifted_(lifted), max_rest_(max_rest), rest_(rest) {}

  // False where it is no message or too long.
  bool Split(const MessageType& type) { return Copy(type, lifted_.field, true); }

  SplitMessage& message() { return message_; }
  bool too_long() const { return too_long_; }

 private:
  bool Copy(const MessageType& type, int lifted, bool is_top) {
    while (const uint32_t tag = ReadTag(in_)) {
      const MessageField* const field = type.Find(tag);
      if (!(field == nullptr ? SkipUnknown(in_, tag) : CopyField(*field, tag, lifted, is_top))) {
        return false;
      }
    }
    return in_->ConsumedEntireMessage();
  }

  bool CopyField(const MessageField& field, uint32_t tag, int lifted, bool is_top) {
    int length;
    switch (WireFormatLite::GetTagWireType(tag)) {
      case WireFormatLite::WIRETYPE_VARINT: {
        uint64_t number;
        return Append(tag) && in_->ReadVarint64(&number) && Append(number);
      }
      case WireFormatLite::WIRETYPE_FIXED64:
        return Append(tag) && CopyRaw(sizeof(uint64_t));
      case WireFormatLite::WIRETYPE_FIXED32:
        return Append(tag) && CopyRaw(sizeof(uint32_t));
      default:
        if (!ReadLength(in_, &length)) return false;
    }
    const int number = WireFormatLite::GetTagFieldNumber(tag);
    const bool is_outer = is_top && Has(lifted_.outers, number);
    if (is_outer || (is_top && IsMember(number))) SetPart(number);
    if (is_top && number == lifted_.whole) {
      message_.left_whole = true;
      return in_->Skip(length);
    }
    if (number == lifted) {
      Forget();  // of several, the last one counts
      message_.bytes = length;
      return TakePieces(in_, length, &message_.pieces);
    }
    if (!Append(tag)) return false;
    if (field.kind == MessageField::Kind::kMessage) {
      return CopyMessage(*field.type, length, is_outer ? lifted_.inner : LiftedBytes::kNone);
    }
    return Append(static_cast<uint64_t>(length)) && CopyRaw(length);
  }

  static bool Has(std::span<const int> numbers, int number) {
    return std::find(numbers.begin(), numbers.end(), number) != numbers.end();
  }
  bool IsMember(int number) const {
    return number == lifted_.field || number == lifted_.whole || Has(lifted_.others, number);
  }
  void SetPart(int number) {
    const int before = message_.part;
    if (before != 0 && (before == lifted_.field || number == lifted_.field)) message_.beside = true;
    if (number == before) return;
    Forget();
    message_.part = number;
  }

  // The length of what is copied of it is not more than `length`, and takes the place of that.
  bool CopyMessage(const MessageType& type, int length, int lifted) {
    const size_t head = rest_->size();
    if (!Append(static_cast<uint64_t>(length))) return false;
    const size_t begin = rest_->size();
    const int held = in_->BytesUntilLimit();  // PushLimit would cut what is longer
    if ((held >= 0 && length > held) || !in_->IncrementRecursionDepth()) return false;
    const CodedInputStream::Limit limit = in_->PushLimit(length);
    if (!Copy(type, lifted, false) || in_->BytesUntilLimit() != 0) return false;
    in_->PopLimit(limit);
    in_->DecrementRecursionDepth();
    size_t left = rest_->size() - begin;
    for (size_t at = head; at < begin; ++at, left >>= 7) {
      const bool last = at + 1 == begin;
      (*rest_)[at] = static_cast<char>((left & 0x7f) | (last ? 0 : 0x80));
    }
    return true;
  }

  // Piece by piece, so that nothing is cleared for a length that the message does not have.
  bool CopyRaw(int length) {
    if (!HasRoomFor(length)) return false;
    while (length > 0) {
      const void* data;
      int available;
      if (!in_->GetDirectBufferPointer(&data, &available) || available == 0) return false;
      const int taken = std::min(available, length);
      rest_->append(static_cast<const char*>(data), static_cast<size_t>(taken));
      if (!in_->Skip(taken)) return false;
      length -= taken;
    }
    return true;
  }
  // As a varint. A stream of protobuf's, made for each field, would clear all the room that the
  // string has left: time that grows with the square of the message.
  bool Append(uint64_t number) {
    uint8_t bytes[kMaxVarintBytes];
    const uint8_t* const end = CodedOutputStream::WriteVarint64ToArray(number, bytes);
    rest_->append(reinterpret_cast<const char*>(bytes), static_cast<size_t>(end - bytes));
    return HasRoomFor(0);
  }
  bool HasRoomFor(int64_t more) {
    too_long_ = too_long_ || static_cast<int64_t>(rest_->size()) > max_rest_ - more;
    return !too_long_;
  }

  void Forget() {
    message_.pieces.clear();
    message_.bytes = 0;
  }

  CodedInputStream* const in_;
  const LiftedBytes lifted_;
  const int64_t max_rest_;
  std::string* const rest_;
  bool too_long_ = false;
  SplitMessage message_;
};

}  // namespace

absl::StatusOr<SplitMessage> SplitBytes(grpc::ByteBuffer* buffer, const Message& type,
                                        const LiftedBytes& lifted, int64_t max_rest,
                                        const std::atomic<bool>* stop) {
  if (buffer->Length() == 0) return SplitMessage();
  MessageReader reader(*buffer, stop);
  CodedInputStream in(&reader);
  in.SetTotalBytesLimit(std::numeric_limits<int>::max());
  std::string rest;
  Splitter splitter(&in, lifted, max_rest, &rest);
  const bool is_message = reader.status().ok() && splitter.Split(TypeOf(type));
  if (reader.stopped()) return StoppedError();
  if (!is_message) {
    return InvalidFieldError("",
                             splitter.too_long()
                                 ? absl::StrCat("more than ", max_rest, " bytes beside the content")
                                 : "bytes that are not the request's message",
                             absl::StrCat("a ", type.GetTypeName()));
  }
  splitter.message().rest = std::move(rest);
  return std::move(splitter.message());
}

absl::Status ChunkNotAlone() {
  return InvalidFieldError("part", "a chunk and something else", "one part in a message");
}

absl::StatusOr<SplitMessage> SplitPart(grpc::ByteBuffer* buffer, const Message& type,
                                       const LiftedBytes& chunk, int64_t max_rest,
                                       const std::atomic<bool>* stop) {
  absl::StatusOr<SplitMessage> split = SplitBytes(buffer, type, chunk, max_rest, stop);
  if (split.ok() && split->beside) return ChunkNotAlone();
  return split;
}

bool CopyKnown(const grpc::ByteBuffer& buffer, const Message& type, std::string* known,
               const std::atomic<bool>* stop) {
  if (buffer.Length() == 0) return true;
  MessageReader reader(buffer, stop);
  if (!reader.status().ok()) return false;
  CodedInputStream in(&reader);
  in.SetTotalBytesLimit(std::numeric_limits<int>::max());
  Splitter copier(&in, LiftedBytes(), std::numeric_limits<int64_t>::max(), known);
  return copier.Split(TypeOf(type)) && !reader.stopped();
}

}  // namespace blockd::server
