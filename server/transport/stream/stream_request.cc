#include "server/transport/stream/stream_request.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <span>
#include <utility>
#include <vector>

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

using Wire = v1::SolveStreamRequest;

// A request and a frame have their right-hand sides at the same place.
constexpr int kPartsWithRhs[] = {Wire::kRequestFieldNumber, Wire::kManyFieldNumber};
constexpr int kRhs = v1::SolveRequest::kRhsFieldNumber;
static_assert(kRhs == int{v1::SolveManyRequest::kRhsFieldNumber});

// The others, but for chunks.
std::span<const int> PartsWithoutData() {
  static const std::vector<int>* const parts = [] {
    const auto& oneof = *Wire::descriptor()->FindOneofByName("part");
    auto* const all = new std::vector<int>;
    for (int i = 0; i < oneof.field_count(); ++i) {
      const int part = oneof.field(i)->number();
      const bool has_data = part == Wire::kRefactorFieldNumber || part == Wire::kChunkFieldNumber ||
                            std::ranges::find(kPartsWithRhs, part) != std::end(kPartsWithRhs);
      if (!has_data) all->push_back(part);
    }
    return all;
  }();
  return *parts;
}

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
  StreamMessage message;
  absl::StatusOr<SplitMessage> split = SplitPart(buffer, message.request,
                                                 {.field = Wire::kChunkFieldNumber,
                                                  .outers = kPartsWithRhs,
                                                  .inner = kRhs,
                                                  .others = PartsWithoutData(),
                                                  .whole = Wire::kRefactorFieldNumber},
                                                 kMaxSolveManyHeadBytes, stop);
  if (!split.ok()) return split.status();
  if (split->left_whole && split->part != Wire::kRefactorFieldNumber) {
    return InvalidFieldError("part", "a refactor and something else", "one part in a message");
  }
  message.pieces = std::move(split->pieces);
  message.bytes = split->bytes;
  message.part = split->part;
  if (static_cast<int64_t>(split->rest.size()) > kMaxHeadBytes) {
    if (split->part != Wire::kManyFieldNumber) {
      return NoMessage(absl::StrCat("more than ", kMaxHeadBytes, " bytes beside the content"));
    }
    message.unparsed = std::move(split->rest);
    return message;
  }
  if (!ParseHead(split->rest, &message.request)) {
    return NoMessage("bytes that are not the request's message");
  }
  message.id = message.request.id();
  if (message.part == 0) {
    return InvalidFieldError("part", "nothing", "request, many, refactor, chunk or cancel");
  }
  const bool is_chunk = message.part == Wire::kChunkFieldNumber;
  if (is_chunk && (message.request.has_timeout() || message.request.replace_last())) {
    return ChunkNotAlone();
  }
  return message;
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
