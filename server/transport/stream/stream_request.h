// The messages that the client of a SolveStream sends, read one by one.
//
// Plain values; one thread at a time.
#ifndef BLOCKD_SERVER_TRANSPORT_STREAM_STREAM_REQUEST_H_
#define BLOCKD_SERVER_TRANSPORT_STREAM_STREAM_REQUEST_H_

#include <grpcpp/support/byte_buffer.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "blockd/v1/blockd.pb.h"
#include "server/core/tenants/budget.h"
#include "server/transport/calls/core_call.h"
#include "server/transport/wire/raw_message.h"

namespace blockd::server {

struct StreamMessage {
  int part = 0;              // the field of SolveStreamRequest that it has
  uint64_t id = 0;           // not of what is `unparsed`
  Reservation parsed_bytes;  // what `unparsed` has taken once it is parsed, or a refactor
  // Without the right-hand sides. Of a frame of refactors, which its reader does not parse: nothing
  // yet.
  v1::SolveStreamRequest request;
  // The head of a long frame, not parsed yet, since parsing takes memory that is to be counted.
  std::string unparsed;
  // For a frame of refactors, once it is parsed: what it asks, and the error in that, if any.
  std::unique_ptr<CoreCall> call;
  absl::Status refusal;
  std::vector<std::span<const std::byte>> pieces;  // right-hand sides; they lie in the buffer
  int64_t bytes = 0;                               // of them
};

// INVALID_ARGUMENT, which ends the stream, if it is not one message with one part; CANCELLED once
// `stop` is set.
absl::StatusOr<StreamMessage> ReadStreamMessage(grpc::ByteBuffer* buffer,
                                                const std::atomic<bool>* stop = nullptr);

// The time that a request or a frame may take; infinite where it does not say. INVALID_ARGUMENT
// unless > 0.
absl::StatusOr<absl::Duration> TimeoutOf(const StreamMessage& message);

// The last so many ids of requests that were cancelled before they were complete: chunks of them
// may be on their way.
class RecentIds {
 public:
  explicit RecentIds(size_t most) : most_(most) {}
  void Add(uint64_t id);
  void Remove(uint64_t id) {
    if (ids_.erase(id) > 0) std::erase(order_, id);
  }
  bool Contains(uint64_t id) const { return ids_.contains(id); }

 private:
  const size_t most_;
  std::deque<uint64_t> order_;
  absl::flat_hash_set<uint64_t> ids_;
};

}  // namespace blockd::server

#endif  // BLOCKD_SERVER_TRANSPORT_STREAM_STREAM_REQUEST_H_
