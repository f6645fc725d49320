// How much memory a message will take once it is parsed, found from its bytes before it is.
//
// A parsed message may be 30 times its bytes on the wire: each empty element of a repeated field
// has two bytes there and an object here. So the scan walks the bytes by the message's descriptor,
// counts what the parser would allocate, and refuses what has too many elements. It allocates next
// to nothing itself. Thread-safe.
#ifndef BLOCKD_SERVER_TRANSPORT_WIRE_WIRE_SCAN_H_
#define BLOCKD_SERVER_TRANSPORT_WIRE_WIRE_SCAN_H_

#include <grpcpp/support/byte_buffer.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "absl/status/statusor.h"
#include "google/protobuf/message.h"

namespace blockd::server {

// Elements that a repeated field may have in one request, wherever they are in it.
struct ElementLimit {
  std::string_view field;  // "blockd.v1.ReleaseRequest.handle"
  int64_t most = 0;
};

// A message that is not longer takes next to no time and memory, whatever is in it: it is parsed
// without a scan.
inline constexpr size_t kTinyMessageBytes = 256;

// At most so many bytes of the heap are in use while `message`, which is empty, is parsed from
// these bytes, and after that; `unknown`, if it is not null, is set to those of them that are for
// fields that the message does not know. INVALID_ARGUMENT with InvalidField for bytes that are no
// such message, and for too many elements; CANCELLED once `stop` is set. Stops with a number above
// `enough` once it is reached.
absl::StatusOr<int64_t> ParsedBytes(const grpc::ByteBuffer& bytes,
                                    const google::protobuf::Message& message,
                                    std::span<const ElementLimit> limits, int64_t enough,
                                    int64_t* unknown = nullptr,
                                    const std::atomic<bool>* stop = nullptr);

// Parses what ParsedBytes has taken, in the memory that it has said, `unknown` included. Fields
// that the message does not know are left out where they would take more memory than the message
// has bytes: a megabyte of them, each an object, would take twice the time of any that is known.
// False where ParsedBytes would have refused the bytes, or `stop` was set.
bool ParseScanned(const grpc::ByteBuffer& bytes, int64_t unknown,
                  google::protobuf::Message* message, const std::atomic<bool>* stop = nullptr);

}  // namespace blockd::server

#endif  // BLOCKD_SERVER_TRANSPORT_WIRE_WIRE_SCAN_H_
