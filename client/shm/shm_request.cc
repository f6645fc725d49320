#include "client/shm/shm_request.h"

#include <cstring>
#include <utility>

#include "blockd/client/errors.h"
#include "blockd/v1/blockd.pb.h"

namespace blockd::client {
namespace {

// True if each part but the empty ones begins where the one before it ends.
bool FollowOneAnother(std::span<const Bytes> parts) {
  const std::byte* end = parts[0].data() + parts[0].size();
  for (const Bytes part : parts.subspan(1)) {
    if (!part.empty() && part.data() != end) return false;
    end += part.size();
  }
  return true;
}

constexpr uint64_t kCacheLine = 64;

uint64_t Aligned(uint64_t bytes, uint64_t alignment = v1::kShmAlignment) {
  return (bytes + alignment - 1) / alignment * alignment;
}

absl::Status StatusOf(const v1::ShmReply& answer, Bytes message) {
  if (answer.code == 0) return absl::OkStatus();
  v1::RpcStatus status;
  if (!message.empty() && status.ParseFromArray(message.data(), static_cast<int>(message.size()))) {
    return ToStatus(status);
  }
  return {static_cast<absl::StatusCode>(answer.code), "the server gave no words"};
}

}  // namespace

// -----------------------------------------------------------------------------------------------------
// Data

SharedData::SharedData(const Parts& parts) : parts_(parts) {
  for (const Bytes part : parts) bytes_ += part.size();
}

SharedData SharedData::Columns(Bytes rhs, std::span<std::byte> solution) {
  SharedData data(Parts{rhs});
  data.has_solution_ = true;
  data.solution_ = solution;
  return data;
}

void SharedData::AddMatrix(const SystemView& system, std::vector<SharedData>* data) {
  const auto [diagonal, coupling, border, corner] = system.parts();
  data->push_back(SharedData(Parts{diagonal}));
  data->push_back(SharedData(Parts{coupling, border, corner}));
}

void SharedData::Find(const ShmMemory& memory) {
  const std::byte* const begin = parts_[0].data();
  if (has_solution_) there_ = memory.OffsetOf(solution_.data(), solution_.size());
  if (FollowOneAnother(parts_)) here_ = memory.OffsetOf(begin, bytes_);
}

uint64_t SharedData::bytes_to_copy() const {
  return here_ && (there_ || !has_solution_) ? 0 : Aligned(bytes_);
}

v1::ShmPlace* SharedData::Put(const ShmMemory& memory, uint64_t offset, v1::ShmPlace* places) {
  if (!here_) {
    std::byte* to = memory.at(offset);
    for (const Bytes part : parts_) {
      if (!part.empty()) std::memcpy(to, part.data(), part.size());
      to += part.size();
    }
  }
  *places++ = {.offset = here_.value_or(offset), .bytes = bytes_};
  if (!has_solution_) return places;
  if (!there_) copy_from_ = memory.at(offset);
  *places++ = {.offset = there_.value_or(offset), .bytes = bytes_};
  return places;
}

void SharedData::TakeSolution() const {
  if (copy_from_ != nullptr) std::memcpy(solution_.data(), copy_from_, solution_.size());
}

// -----------------------------------------------------------------------------------------------------
// Requests

std::optional<SharedRequest> SharedRequest::Make(ShmMemory& memory, v1::ShmOperation operation,
                                                 const google::protobuf::MessageLite& message,
                                                 std::vector<SharedData> data, bool in_place) {
  uint64_t num_places = 0, copies = 0;
  for (SharedData& one : data) {
    if (in_place) one.Find(memory);
    num_places += one.num_places();
    copies += one.bytes_to_copy();
  }
  const uint64_t places_bytes = num_places * sizeof(v1::ShmPlace);
  const uint64_t message_bytes = message.ByteSizeLong();
  // Columns that begin at a cache line are solved up to a tenth faster.
  const uint64_t head = Aligned(places_bytes + message_bytes, kCacheLine);
  const uint64_t room = v1::ShmReplyRoom(num_places);
  std::optional<ShmPiece> piece = memory.Allocate(head + room + copies);
  if (!piece) return std::nullopt;
  auto* place = reinterpret_cast<v1::ShmPlace*>(piece->data());
  uint64_t at = piece->offset() + head + room;
  for (SharedData& one : data) {
    place = one.Put(memory, at, place);
    at += one.bytes_to_copy();
  }
  message.SerializeWithCachedSizesToArray(reinterpret_cast<uint8_t*>(piece->data() + places_bytes));
  SharedRequest made(*std::move(piece), std::move(data));
  const uint64_t offset = made.piece_.offset();
  v1::ShmRequest& request = made.request_;
  request.operation = operation;
  request.places_offset = offset;
  request.num_places = static_cast<uint32_t>(num_places);
  request.message_offset = offset + places_bytes;
  request.message_bytes = static_cast<uint32_t>(message_bytes);
  request.reply_offset = offset + head;
  request.reply_bytes = static_cast<uint32_t>(room);
  return made;
}

absl::Status SharedRequest::Take(const v1::ShmReply& answer,
                                 google::protobuf::MessageLite* reply) const {
  if (answer.message_bytes > request_.reply_bytes) {
    return absl::InternalError("the server's reply has no end");
  }
  const Bytes message(piece_.data() + (request_.reply_offset - piece_.offset()),
                      answer.message_bytes);
  if (absl::Status status = StatusOf(answer, message); !status.ok()) return status;
  if (!reply->ParseFromArray(message.data(), static_cast<int>(message.size()))) {
    return absl::InternalError("the server's reply is no message");
  }
  for (const SharedData& one : data_) one.TakeSolution();
  return absl::OkStatus();
}

}  // namespace blockd::client
