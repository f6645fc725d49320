// Takes the bytes of one nested field out of a message, so that they need not be copied to parse
// the rest.
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
};

// The bytes are field `field` of the message that is field `outer` of this one; field `other` is in
// the same oneof as `outer`, and takes it back where it comes later. INVALID_ARGUMENT, as a plain
// status, if this is no message or its rest has more than `max_rest` bytes.
absl::StatusOr<SplitMessage> SplitNestedBytes(grpc::ByteBuffer* buffer, int outer, int field,
                                              int other, int64_t max_rest);

}  // namespace blockd::server

#endif  // BLOCKD_SERVER_TRANSPORT_SPLIT_MESSAGE_H_
