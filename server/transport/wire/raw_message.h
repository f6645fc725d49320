// gRPC messages as the transport holds them: read without copying their bulk, written around memory
// that a solution already lies in.
//
// Plain functions and values; a value is used by one thread at a time.
#ifndef BLOCKD_SERVER_TRANSPORT_WIRE_RAW_MESSAGE_H_
#define BLOCKD_SERVER_TRANSPORT_WIRE_RAW_MESSAGE_H_

#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/proto_buffer_reader.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "blockd/engine/memory_pool.h"
#include "google/protobuf/io/coded_stream.h"
#include "google/protobuf/message_lite.h"

namespace blockd::server {

// Bytes on the host, not initialised, aligned for any scalar; shared by copies.
class Payload {
 public:
  Payload() = default;
  // Takes the bytes from `pool`, which the device reaches, if it is not null, has room, and they
  // are at most an eighth of it. Else from the heap: RESOURCE_EXHAUSTED if that has no such piece.
  static absl::StatusOr<Payload> Allocate(int64_t bytes,
                                          const std::shared_ptr<MemoryPool>& pool = nullptr);
  std::span<std::byte> span() const { return {data_.get(), static_cast<size_t>(bytes_)}; }
  int64_t bytes() const { return bytes_; }
  // Part of it as a slice that keeps the memory alive.
  grpc::Slice slice(int64_t offset, int64_t bytes) const;

 private:
  std::shared_ptr<std::byte[]> data_;
  int64_t bytes_ = 0;
};

// Reads a buffer, to its end or until `stop` is set, if it is not null: looked at before each
// piece. What reads may take that for the end of the message, so whoever has set it looks again.
class MessageReader final : public grpc::ProtoBufferReader {
 public:
  explicit MessageReader(const grpc::ByteBuffer& buffer, const std::atomic<bool>* stop = nullptr)
      // Its interface is not const, though it only reads.
      : grpc::ProtoBufferReader(const_cast<grpc::ByteBuffer*>(&buffer)), stop_(stop) {}
  bool Next(const void** data, int* size) override {
    return !stopped() && grpc::ProtoBufferReader::Next(data, size);
  }
  bool stopped() const { return stop_ != nullptr && stop_->load(std::memory_order_relaxed); }

 private:
  const std::atomic<bool>* const stop_;
};
absl::Status StoppedError();

// `bytes`, which stay valid as long as the buffer is used, in pieces of at most 256 KiB. Not
// copied.
grpc::ByteBuffer AsBuffer(std::string_view bytes);
// The number of pieces of memory that the buffer lies in.
size_t NumPieces(const grpc::ByteBuffer& buffer);
// False if the bytes are not such a message, or `stop` was set.
bool ParseMessage(const grpc::ByteBuffer& buffer, google::protobuf::MessageLite* message,
                  const std::atomic<bool>* stop = nullptr);

grpc::ByteBuffer SerializeMessage(const google::protobuf::MessageLite& message);

// `message`, which leaves the field empty, with `bytes` as its field number `field`. Not copied.
grpc::ByteBuffer SerializeWithBytes(const google::protobuf::MessageLite& message, int field,
                                    const Payload& bytes);

// The same as the field `outer_field` of `outer`, which leaves it out. `field` 0: a message without
// bytes.
grpc::ByteBuffer SerializeNestedWithBytes(const google::protobuf::MessageLite& outer,
                                          int outer_field,
                                          const google::protobuf::MessageLite& message, int field,
                                          const Payload& bytes);

// `message` with a piece of `bytes` as its field number `field`. Not copied.
grpc::ByteBuffer SerializeChunk(const google::protobuf::MessageLite& message, int field,
                                const Payload& bytes, int64_t offset, int64_t length);

inline constexpr int kMaxVarintBytes = 10;
// The next tag; 0 at the end, and for what the parser does not take: one of more than 5 bytes.
inline uint32_t ReadTag(google::protobuf::io::CodedInputStream* in) {
  constexpr int kMaxTagBytes = 5;
  const int before = in->CurrentPosition();
  const uint32_t tag = in->ReadTag();
  return in->CurrentPosition() - before > kMaxTagBytes ? 0 : tag;
}
// The length of a field. False for what the parser does not take: one of more than 5 bytes too.
inline bool ReadLength(google::protobuf::io::CodedInputStream* in, int* length) {
  constexpr int kMaxLengthBytes = 5;
  const int before = in->CurrentPosition();
  return in->ReadVarintSizeAsInt(length) && in->CurrentPosition() - before <= kMaxLengthBytes;
}
// Takes the next `length` bytes of `in` as pieces of memory that they already lie in.
bool TakePieces(google::protobuf::io::CodedInputStream* in, int64_t length,
                std::vector<std::span<const std::byte>>* pieces);
void CopyPieces(std::span<const std::span<const std::byte>> pieces, std::byte* to);
// The head of a field of so many bytes.
void AppendLengthHeader(std::string* out, int field, int64_t length);

}  // namespace blockd::server

#endif  // BLOCKD_SERVER_TRANSPORT_WIRE_RAW_MESSAGE_H_
