#include "server/transport/wire/raw_message.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <new>
#include <string>

#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"
#include "google/protobuf/io/coded_stream.h"
#include "google/protobuf/wire_format_lite.h"
#include "server/core/common/errors.h"

namespace blockd::server {

using google::protobuf::MessageLite;
using google::protobuf::internal::WireFormatLite;
using google::protobuf::io::CodedInputStream;
using google::protobuf::io::CodedOutputStream;

void AppendLengthHeader(std::string* out, int field, int64_t length) {
  uint8_t head[20];
  uint8_t* end = CodedOutputStream::WriteTagToArray(
      WireFormatLite::MakeTag(field, WireFormatLite::WIRETYPE_LENGTH_DELIMITED), head);
  end = CodedOutputStream::WriteVarint64ToArray(static_cast<uint64_t>(length), end);
  out->append(reinterpret_cast<char*>(head), end - head);
}

namespace {

int64_t LengthHeaderBytes(int field, int64_t length) {
  std::string head;
  AppendLengthHeader(&head, field, length);
  return static_cast<int64_t>(head.size());
}

grpc::ByteBuffer Join(const std::string& head, const Payload& bytes, int64_t offset,
                      int64_t length) {
  const grpc::Slice slices[] = {grpc::Slice(head), bytes.slice(offset, length)};
  return grpc::ByteBuffer(slices, length > 0 ? 2 : 1);
}

}  // namespace

absl::StatusOr<Payload> Payload::Allocate(int64_t bytes, const std::shared_ptr<MemoryPool>& pool) {
  struct Piece {
    std::shared_ptr<MemoryPool> pool;
    DeviceBuffer buffer;
  };
  constexpr int64_t kPart = 8;
  Payload payload;
  payload.bytes_ = bytes;
  if (pool != nullptr && bytes > 0 && bytes <= pool->capacity_bytes() / kPart) {
    if (absl::StatusOr<DeviceBuffer> buffer = pool->Allocate(bytes); buffer.ok()) {
      const std::shared_ptr<Piece> piece(new Piece{pool, *std::move(buffer)});
      payload.data_ = std::shared_ptr<std::byte[]>(piece, piece->buffer.data());
      return payload;
    }
  }
  payload.data_.reset(new (std::nothrow) std::byte[static_cast<size_t>(bytes)]);
  if (payload.data_ == nullptr) {
    return absl::ResourceExhaustedError(absl::StrCat("no ", bytes, " bytes of host memory"));
  }
  return payload;
}

grpc::Slice Payload::slice(int64_t offset, int64_t bytes) const {
  auto* owner = new std::shared_ptr<std::byte[]>(data_);
  return grpc::Slice(
      data_.get() + offset, static_cast<size_t>(bytes),
      [](void* kept) { delete static_cast<std::shared_ptr<std::byte[]>*>(kept); }, owner);
}

absl::Status StoppedError() { return absl::CancelledError("the call was cancelled"); }

grpc::ByteBuffer AsBuffer(std::string_view bytes) {
  constexpr size_t kPieceBytes = 256 << 10;  // how often a reader looks whether to stop
  absl::InlinedVector<grpc::Slice, 1> slices;
  for (; !bytes.empty(); bytes.remove_prefix(slices.back().size())) {
    const std::string_view piece = bytes.substr(0, kPieceBytes);
    slices.emplace_back(piece.data(), piece.size(), grpc::Slice::STATIC_SLICE);
  }
  return grpc::ByteBuffer(slices.data(), slices.size());
}

size_t NumPieces(const grpc::ByteBuffer& buffer) {
  if (buffer.Length() == 0) return 0;  // as ParseMessage
  MessageReader reader(buffer);
  const void* data;
  int size;
  size_t pieces = 0;
  while (reader.status().ok() && reader.Next(&data, &size)) ++pieces;
  return pieces;
}

bool ParseMessage(const grpc::ByteBuffer& buffer, MessageLite* message,
                  const std::atomic<bool>* stop) {
  if (buffer.Length() == 0) {  // a reader refuses an empty buffer; an empty message is a message
    message->Clear();
    return true;
  }
  MessageReader reader(buffer, stop);
  return reader.status().ok() && message->ParseFromZeroCopyStream(&reader) && !reader.stopped();
}

grpc::ByteBuffer SerializeMessage(const MessageLite& message) {
  const grpc::Slice slice(message.SerializeAsString());
  return grpc::ByteBuffer(&slice, 1);
}

grpc::ByteBuffer SerializeWithBytes(const MessageLite& message, int field, const Payload& bytes) {
  return SerializeChunk(message, field, bytes, 0, bytes.bytes());
}

grpc::ByteBuffer SerializeChunk(const MessageLite& message, int field, const Payload& bytes,
                                int64_t offset, int64_t length) {
  std::string head = message.SerializeAsString();
  AppendLengthHeader(&head, field, length);
  return Join(head, bytes, offset, length);
}

grpc::ByteBuffer SerializeNestedWithBytes(const MessageLite& outer, int outer_field,
                                          const MessageLite& message, int field,
                                          const Payload& bytes) {
  const std::string inner = message.SerializeAsString();
  std::string head = outer.SerializeAsString();
  const int64_t field_bytes = field == 0 ? 0 : LengthHeaderBytes(field, bytes.bytes());
  AppendLengthHeader(&head, outer_field,
                     static_cast<int64_t>(inner.size()) + field_bytes + bytes.bytes());
  head += inner;
  if (field != 0) AppendLengthHeader(&head, field, bytes.bytes());
  return Join(head, bytes, 0, bytes.bytes());
}

bool TakePieces(CodedInputStream* in, int64_t length,
                std::vector<std::span<const std::byte>>* pieces) {
  while (length > 0) {
    const void* data;
    int available;
    if (!in->GetDirectBufferPointer(&data, &available) || available == 0) return false;
    const int taken = static_cast<int>(std::min<int64_t>(available, length));
    pieces->emplace_back(static_cast<const std::byte*>(data), taken);
    if (!in->Skip(taken)) return false;
    length -= taken;
  }
  return true;
}

void CopyPieces(std::span<const std::span<const std::byte>> pieces, std::byte* to) {
  for (std::span<const std::byte> piece : pieces) {
    std::memcpy(to, piece.data(), piece.size());
    to += piece.size();
  }
}

}  // namespace blockd::server
