#include "server/transport/split_message.h"

#include <grpcpp/support/proto_buffer_reader.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "google/protobuf/io/zero_copy_stream_impl_lite.h"
#include "google/protobuf/wire_format_lite.h"
#include "server/core/heap_reserve.h"
#include "server/transport/raw_message.h"

namespace blockd::server {
namespace {

using google::protobuf::internal::WireFormatLite;
using google::protobuf::io::CodedInputStream;
using google::protobuf::io::CodedOutputStream;

class Splitter {
 public:
  Splitter(CodedInputStream* in, int64_t max_rest) : in_(in), max_rest_(max_rest) {}

  // Copies all fields but the bytes, of the message itself where there are no `outers`. Stops, with
  // false, where it is no message or too long.
  bool Split(const NestedBytes& nested, std::string* rest) {
    while (const uint32_t tag = ReadTag(in_)) {
      const int number = WireFormatLite::GetTagFieldNumber(tag);
      if (WireFormatLite::GetTagWireType(tag) != WireFormatLite::WIRETYPE_LENGTH_DELIMITED) {
        if (!CopyShort(tag, rest)) return false;
        continue;
      }
      int length;
      if (!in_->ReadVarintSizeAsInt(&length)) return false;
      const auto& [outers, field, other, whole] = nested;
      const bool outer = std::find(outers.begin(), outers.end(), number) != outers.end();
      if ((outer || number == other || number == whole) && number != message_.part) {
        Forget();
        message_.part = number;
      }
      if (outer) {
        if (!SplitInner(number, length, field, rest)) return false;
      } else if (number == whole) {
        message_.left_whole = true;
        if (!in_->Skip(length)) return false;
      } else if (outers.empty() && number == field) {
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
  bool SplitInner(int outer, int length, int field, std::string* rest) {
    const CodedInputStream::Limit limit = in_->PushLimit(length);
    std::string inner;
    if (!Split({.outers = {}, .field = field}, &inner) || in_->BytesUntilLimit() != 0) return false;
    in_->PopLimit(limit);
    AppendLengthHeader(rest, outer, static_cast<int64_t>(inner.size()));
    *rest += inner;
    return Count(2);
  }

  // What is too long is not copied.
  bool CopyBytes(int field, int length, std::string* rest) {
    if (!Count(length)) return false;
    AppendLengthHeader(rest, field, length);
    const size_t old = rest->size();
    rest->resize(old + static_cast<size_t>(length));
    return length == 0 || in_->ReadRaw(rest->data() + old, length);
  }

  // A number, or a group of fields.
  bool CopyShort(uint32_t tag, std::string* rest) {
    const int before = in_->CurrentPosition();
    google::protobuf::io::StringOutputStream out(rest);
    CodedOutputStream coded(&out);
    const bool whole = WireFormatLite::SkipField(in_, tag, &coded);
    return Count(in_->CurrentPosition() - before + 1) && whole;
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

absl::StatusOr<SplitMessage> SplitNestedBytes(grpc::ByteBuffer* buffer, const NestedBytes& nested,
                                              int64_t max_rest) {
  if (buffer->Length() == 0) return SplitMessage();
  const HeapMayFail may_fail;  // the sender says in how many pieces the bytes come
  grpc::ProtoBufferReader reader(buffer);
  if (!reader.status().ok()) return absl::InvalidArgumentError("bytes that cannot be read");
  CodedInputStream in(&reader);
  in.SetTotalBytesLimit(std::numeric_limits<int>::max());
  Splitter splitter(&in, max_rest);
  std::string rest;
  if (!splitter.Split(nested, &rest)) {
    return absl::InvalidArgumentError(
        splitter.too_long() ? absl::StrCat("more than ", max_rest, " bytes beside the content")
                            : "bytes that are not the request's message");
  }
  splitter.message().rest = std::move(rest);
  return std::move(splitter.message());
}

absl::StatusOr<SplitMessage> SplitBytes(grpc::ByteBuffer* buffer, int field, int64_t max_rest) {
  return SplitNestedBytes(buffer, {.outers = {}, .field = field}, max_rest);
}

}  // namespace blockd::server
