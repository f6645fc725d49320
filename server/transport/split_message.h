// Takes the bytes of one field out of a message, so that they need not be copied to parse the rest.
#ifndef BLOCKD_SERVER_TRANSPORT_SPLIT_MESSAGE_H_
#define BLOCKD_SERVER_TRANSPORT_SPLIT_MESSAGE_H_

#include <grpcpp/support/byte_buffer.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace blockd::server {

struct SplitMessage {
  std::string rest;                                // the message without the bytes
  std::vector<std::span<const std::byte>> pieces;  // they; they lie in the buffer
  int64_t bytes = 0;
  int part = 0;  // of SplitNestedBytes: the oneof's field that is set; 0: none
};

// The bytes are field `field`. INVALID_ARGUMENT, as a plain status, if this is no message or its
// rest has more than `max_rest` bytes.
absl::StatusOr<SplitMessage> SplitBytes(grpc::ByteBuffer* buffer, int field, int64_t max_rest);
// The same where they are field `field` of a message that is one of the fields `outers` of this
// one. These are in a oneof together with the field `other`: each takes back what came before it.
absl::StatusOr<SplitMessage> SplitNestedBytes(grpc::ByteBuffer* buffer, std::span<const int> outers,
                                              int field, int other, int64_t max_rest);

}  // namespace blockd::server

#endif  // BLOCKD_SERVER_TRANSPORT_SPLIT_MESSAGE_H_
