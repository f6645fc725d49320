// Between the caller's memory and gRPC messages. Internal to the client.
#ifndef BLOCKD_CLIENT_WIRE_WIRE_H_
#define BLOCKD_CLIENT_WIRE_WIRE_H_

#include <grpcpp/support/byte_buffer.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "blockd/client/system.h"
#include "blockd/v1/blockd.pb.h"
#include "google/protobuf/message_lite.h"

namespace blockd::client {

using Bytes = std::span<const std::byte>;
inline bool Overlap(Bytes a, Bytes b) {
  return a.data() < b.data() + b.size() && b.data() < a.data() + a.size();
}

v1::ScalarType ToProto(Scalar scalar);
v1::SystemSpec ToProto(const SystemView& view);
google::protobuf::Duration ToProto(absl::Duration duration);

// Lends memory to gRPC without a copy and knows when it came back: gRPC may hold a slice for a
// little longer than its call, while a write to the socket is under way. Thread-safe.
class MemoryLoan {
 public:
  ~MemoryLoan();
  grpc::Slice Lend(Bytes memory);
  // True once everything lent has come back; false after `limit`.
  bool AwaitReturn(absl::Duration limit);

 private:
  static void Return(void* loan);

  absl::Mutex mutex_;
  int64_t lent_ ABSL_GUARDED_BY(mutex_) = 0;
};

// Cuts regions of memory into chunks of at most `chunk_bytes`, each a serialized message whose
// bytes field `chunk_field` holds the chunk, after a prefix that may differ from chunk to chunk.
// Large pieces are lent, small ones copied; with no loan everything is copied.
class Chunker {
 public:
  Chunker(std::vector<Bytes> regions, size_t chunk_bytes, int chunk_field, std::string prefix,
          MemoryLoan* loan);
  bool done() const { return region_ == regions_.size(); }
  grpc::ByteBuffer Next();
  int64_t sent_bytes() const { return sent_bytes_; }

 private:
  void SkipEmpty();

  std::vector<Bytes> regions_;
  size_t chunk_bytes_;
  int chunk_field_;
  std::string prefix_;
  MemoryLoan* loan_;
  size_t region_ = 0;
  size_t offset_ = 0;  // in the region
  int64_t sent_bytes_ = 0;
};

grpc::ByteBuffer Serialize(const google::protobuf::MessageLite& message);
// A request that has no right-hand sides, with these.
grpc::ByteBuffer SolveMessage(v1::SolveRequest request, const grpc::Slice& rhs);
// A field of raw bytes.
struct BytesField {
  int field = 0;
  grpc::Slice bytes;
};
// `outer` with its field `frame_field`: the message `frame` and, behind what it has, `bytes`, which
// are not copied.
grpc::ByteBuffer SerializeFrame(const v1::SolveStreamRequest& outer, int frame_field,
                                const google::protobuf::MessageLite& frame,
                                std::span<const BytesField> bytes);
// False if the bytes are no such message.
bool Parse(const grpc::ByteBuffer& buffer, google::protobuf::MessageLite* message);
// The same, but the bytes of one field, which has to have as many as `to`, go straight there.
// `fits`: whether it has.
bool ParseInto(const grpc::ByteBuffer& buffer, int field, std::span<std::byte> to, bool* fits,
               google::protobuf::MessageLite* message);

// A SolveStreamReply whose chunk, if it is one, goes straight into the caller's memory:
// `destination` says where the chunk of `id` with so many bytes belongs, or null if it belongs
// nowhere.
struct StreamReply {
  v1::SolveStreamReply message;  // without the chunk
  bool is_chunk = false;
  bool misplaced = false;  // `destination` did not want it
};
bool ParseStreamReply(const grpc::ByteBuffer& buffer,
                      const std::function<std::byte*(uint64_t id, size_t bytes)>& destination,
                      StreamReply* reply);

}  // namespace blockd::client

#endif  // BLOCKD_CLIENT_WIRE_WIRE_H_
