// Takes the bytes of one field out of a message, so that they need not be copied to parse the rest.
// Fields that the message does not know are left out of the rest.
#ifndef BLOCKD_SERVER_TRANSPORT_SPLIT_MESSAGE_H_
#define BLOCKD_SERVER_TRANSPORT_SPLIT_MESSAGE_H_

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

struct SplitMessage {
  std::string rest;                                // the message without the bytes
  std::vector<std::span<const std::byte>> pieces;  // they; they lie in the buffer
  int64_t bytes = 0;
  // These two of SplitNestedBytes.
  int part = 0;             // the oneof's field that is set; 0: none
  bool left_whole = false;  // a field was left out of the rest
};

// The message is a `type`, the bytes are its field `field`. INVALID_ARGUMENT, as a plain status, if
// this is no message or its rest has more than `max_rest` bytes; CANCELLED once `stop` is set.
absl::StatusOr<SplitMessage> SplitBytes(grpc::ByteBuffer* buffer,
                                        const google::protobuf::Message& type, int field,
                                        int64_t max_rest, const std::atomic<bool>* stop = nullptr);
// Where a message has such bytes within one field of a oneof, of which each takes back what came
// before it.
struct NestedBytes {
  static constexpr int kNone = -1;
  std::span<const int> outers;  // the fields with such bytes
  int field = kNone;            // these, in each of them
  int other = kNone;            // one without
  int whole = kNone;            // one whose message is to be parsed as it is: left out of the rest
};
absl::StatusOr<SplitMessage> SplitNestedBytes(grpc::ByteBuffer* buffer,
                                              const google::protobuf::Message& type,
                                              const NestedBytes& nested, int64_t max_rest,
                                              const std::atomic<bool>* stop = nullptr);

// Adds to `known` what the `type` knows of a message: not more than its bytes. False if this is no
// message, or once `stop` is set.
bool CopyKnown(const grpc::ByteBuffer& buffer, const google::protobuf::Message& type,
               std::string* known, const std::atomic<bool>* stop = nullptr);

}  // namespace blockd::server

#endif  // BLOCKD_SERVER_TRANSPORT_SPLIT_MESSAGE_H_
