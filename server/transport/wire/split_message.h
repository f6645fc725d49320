// Lifts bytes out of a message, so that they need not be copied to parse the rest. Fields that the
// message does not know are left out of the rest.
#ifndef BLOCKD_SERVER_TRANSPORT_WIRE_SPLIT_MESSAGE_H_
#define BLOCKD_SERVER_TRANSPORT_WIRE_SPLIT_MESSAGE_H_

#include <grpcpp/support/byte_buffer.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "google/protobuf/message.h"

namespace blockd::server {

// The bytes to lift out of a message. The fields that are named here are members of a oneof, where
// there are several: each takes back what came before it.
struct LiftedBytes {
  static constexpr int kNone = -1;
  int field = kNone;                 // bytes of the message itself
  std::span<const int> outers = {};  // messages in it that have such bytes too,
  int inner = kNone;                 // as this field of each of them
  std::span<const int> others = {};  // members without such bytes
  int whole = kNone;                 // one that is to be parsed as it is: left out of the rest
};

struct SplitMessage {
  std::string rest;                                // the message without the bytes
  std::vector<std::span<const std::byte>> pieces;  // they; they lie in the buffer
  int64_t bytes = 0;
  int part = 0;             // the last one that came of the fields named above; 0: none
  bool left_whole = false;  // `whole` was left out of the rest
  bool beside = false;      // another of them, or a second `field`, came with a `field`
};

// The message is a `type`. INVALID_ARGUMENT with InvalidField if this is none or its rest has more
// than `max_rest` bytes; CANCELLED once `stop` is set.
absl::StatusOr<SplitMessage> SplitBytes(grpc::ByteBuffer* buffer,
                                        const google::protobuf::Message& type,
                                        const LiftedBytes& lifted, int64_t max_rest,
                                        const std::atomic<bool>* stop = nullptr);
absl::Status ChunkNotAlone();
// The same of a stream's message, of which `chunk` is one part. INVALID_ARGUMENT too for a chunk
// and something else.
absl::StatusOr<SplitMessage> SplitPart(grpc::ByteBuffer* buffer,
                                       const google::protobuf::Message& type,
                                       const LiftedBytes& chunk, int64_t max_rest,
                                       const std::atomic<bool>* stop = nullptr);

// Adds to `known` what the `type` knows of a message: not more than its bytes. False if this is no
// message, or once `stop` is set.
bool CopyKnown(const grpc::ByteBuffer& buffer, const google::protobuf::Message& type,
               std::string* known, const std::atomic<bool>* stop = nullptr);

}  // namespace blockd::server

#endif  // BLOCKD_SERVER_TRANSPORT_WIRE_SPLIT_MESSAGE_H_
