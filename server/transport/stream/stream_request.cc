#include "server/transport/stream/stream_request.h"

#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/core/common/errors.h"
#include "server/transport/wire/solve_many.h"
#include "server/transport/wire/split_message.h"
#include "server/transport/wire/wire.h"
#include "server/transport/wire/wire_scan.h"

namespace blockd::server {
namespace {

// The most bytes of a request beside its right-hand sides: a handle and some numbers. Only a frame
// may have more, and its head is counted.
constexpr int64_t kMaxHeadBytes = 64 << 10;

// A request and a frame have their right-hand sides at the same place.
constexpr int kPartsWithRhs[] = {v1::SolveStreamRequest::kRequestFieldNumber,
                                 v1::SolveStreamRequest::kManyFieldNumber};
constexpr int kRhs = v1::SolveRequest::kRhsFieldNumber;
static_assert(kRhs == int{v1::SolveManyRequest::kRhsFieldNumber});

absl::Status NoMessage(std::string_view came) {
  return InvalidFieldError("", came, "a blockd.v1.SolveStreamRequest");
}

bool ParseHead(const std::string& head, v1::SolveStreamRequest* request) {
  if (head.size() <= kTinyMessageBytes) return request->ParseFromString(head);
  const grpc::ByteBuffer bytes = AsBuffer(head);
  int64_t unknown = 0;
  return ParsedBytes(bytes, *request, {}, std::numeric_limits<int64_t>::max(), &unknown).ok() &&
         ParseScanned(bytes, unknown, request);
}

}  // namespace

absl::StatusOr<StreamMessage> ReadStreamMessage(grpc::ByteBuffer* buffer,
                                                const std::atomic<bool>* stop) {
  using Wire = v1::SolveStreamRequest;
  StreamMessage message;
  absl::StatusOr<SplitMessage> split = SplitPart(buffer, message.request,
                                                 {.field = Wire::kChunkFieldNumber,
                                                  .outers = kPartsWithRhs,
                                                  .inner = kRhs,
                                                  .other = Wire::kCancelFieldNumber,
                                                  .whole = Wire::kRefactorFieldNumber},
                                                 kMaxSolveManyHeadBytes, stop);
  if (!split.ok()) return split.status();
  if (split->left_whole && split->part != Wire::kRefactorFieldNumber) {
    return InvalidFieldError("part", "a refactor and something else", "one part in a message");
  }
  message.pieces = std::move(split->pieces);
  message.bytes = split->bytes;
  if (static_cast<int64_t>(split->rest.size()) > kMaxHeadBytes) {
    if (split->part != Wire::kManyFieldNumber) {
      return NoMessage(absl::StrCat("more than ", kMaxHeadBytes, " bytes beside the content"));
    }
    message.part = StreamMessage::Part::kMany;
    message.unparsed = std::move(split->rest);
    return message;
  }
  if (!ParseHead(split->rest, &message.request)) {
    return NoMessage("bytes that are not the request's message");
  }
  message.id = message.request.id();
  switch (split->part) {
    case Wire::kRequestFieldNumber:
      message.part = StreamMessage::Part::kRequest;
      return message;
    case Wire::kManyFieldNumber:
      message.part = StreamMessage::Part::kMany;
      return message;
    case Wire::kRefactorFieldNumber:
      message.part = StreamMessage::Part::kRefactor;
      return message;
    case Wire::kChunkFieldNumber:
      message.part = StreamMessage::Part::kChunk;
      if (message.request.has_timeout() || message.request.replace_last()) return ChunkNotAlone();
      return message;
    case Wire::kCancelFieldNumber:
      message.part = StreamMessage::Part::kCancel;
      return message;
    default:
      return InvalidFieldError("part", "nothing", "request, many, refactor, chunk or cancel");
  }
}

absl::StatusOr<absl::Duration> TimeoutOf(const StreamMessage& message) {
  if (!message.request.has_timeout()) return absl::InfiniteDuration();
  absl::StatusOr<absl::Duration> timeout = ToDuration("timeout", message.request.timeout());
  if (timeout.ok() && *timeout == absl::ZeroDuration()) {
    return InvalidFieldError("timeout", "0 s", "more than 0 s");
  }
  return timeout;
}

void RecentIds::Add(uint64_t id) {
  if (!ids_.insert(id).second) return;
  order_.push_back(id);
  if (order_.size() <= most_) return;
  ids_.erase(order_.front());
  order_.pop_front();
}

}  // namespace blockd::server
