#include "client/shm/shm_request.h"

#include <cstring>
#include <utility>

#include "blockd/client/errors.h"
#include "client/wire/requests.h"

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

constexpr uint64_t kErrorBytes = v1::kShmReplyBytes;  // for the status of a Solve

uint64_t Aligned(uint64_t bytes) {
  return (bytes + v1::kShmAlignment - 1) / v1::kShmAlignment * v1::kShmAlignment;
}

uint64_t RoomFor(size_t items) { return v1::kShmReplyBytes + items * v1::kShmReplyBytesEach; }

void SetHandle(const std::string& handle, uint8_t (&bytes)[24]) {
  if (handle.size() == sizeof(bytes)) std::memcpy(bytes, handle.data(), sizeof(bytes));
}

void SetOptions(const v1::SolveOptions& options, v1::ShmRequest& request) {
  request.flags = (options.residual() ? v1::kShmResidual : 0) |
                  (options.check_finite() ? v1::kShmCheckFinite : 0);
  request.priority = options.priority();
  request.max_refinements = options.max_refinements();
}

v1::Cost CostOf(const v1::ShmReply& reply) {
  v1::Cost cost;
  cost.set_queue_seconds(reply.queue_seconds);
  cost.set_upload_seconds(reply.upload_seconds);
  cost.set_compute_seconds(reply.compute_seconds);
  cost.set_download_seconds(reply.download_seconds);
  cost.set_batch_requests(reply.batch_requests);
  cost.set_batch_items(reply.batch_items);
  return cost;
}

}  // namespace

absl::Status StatusOf(const v1::ShmReply& reply, Bytes room) {
  if (reply.message_bytes > room.size()) {
    return absl::InternalError("the server's reply has no end");
  }
  if (reply.code == 0) return absl::OkStatus();
  v1::RpcStatus status;
  if (reply.message_bytes > 0 &&
      status.ParseFromArray(room.data(), static_cast<int>(reply.message_bytes))) {
    return ToStatus(status);
  }
  return {static_cast<absl::StatusCode>(reply.code), "the server gave no words"};
}

// -----------------------------------------------------------------------------------------------------
// Parts

SharedColumns::SharedColumns(const ShmMemory& memory, Bytes rhs, std::span<std::byte> solution,
                             bool in_place)
    : rhs_(rhs), solution_(solution) {
  if (!in_place) return;
  there_ = memory.OffsetOf(solution.data(), solution.size());
  const bool overlap =
      rhs.data() < solution.data() + solution.size() && solution.data() < rhs.data() + rhs.size();
  if (!overlap) here_ = memory.OffsetOf(rhs.data(), rhs.size());
}

uint64_t SharedColumns::bytes_to_place() const {
  return here_ && there_ ? 0 : Aligned(rhs_.size());
}

void SharedColumns::Place(const ShmMemory& memory, uint64_t offset) {
  if (!here_) std::memcpy(memory.at(offset), rhs_.data(), rhs_.size());
  if (!there_) copy_from_ = memory.at(offset);
  if (!here_) here_ = offset;
  if (!there_) there_ = offset;
}

void SharedColumns::TakeSolution() const {
  if (copy_from_ != nullptr) std::memcpy(solution_.data(), copy_from_, solution_.size());
}

SharedPart::SharedPart(const ShmMemory& memory, const Parts& parts) : parts_(parts) {
  for (const Bytes part : parts) bytes_ += part.size();
  if (FollowOneAnother(parts)) here_ = memory.OffsetOf(parts[0].data(), bytes_);
}

uint64_t SharedPart::bytes_to_place() const { return here_ ? 0 : Aligned(bytes_); }

void SharedPart::Place(const ShmMemory& memory, uint64_t offset) {
  if (here_) return;
  here_ = offset;
  for (const Bytes part : parts_) {
    if (!part.empty()) std::memcpy(memory.at(offset), part.data(), part.size());
    offset += part.size();
  }
}

SharedRequest::SharedRequest(ShmPiece piece, v1::ShmOperation operation, uint64_t reply_bytes)
    : piece_(std::move(piece)) {
  request_.operation = operation;
  request_.reply_offset = piece_.offset();
  request_.reply_bytes = reply_bytes;
}

template <typename Message>
absl::Status SharedRequest::TakeMessage(const v1::ShmReply& reply, Message* message) const {
  const Bytes room(piece_.data(), request_.reply_bytes);
  if (absl::Status status = StatusOf(reply, room); !status.ok()) return status;
  if (!message->ParseFromArray(room.data(), static_cast<int>(reply.message_bytes))) {
    return absl::InternalError("the server's reply is no message");
  }
  for (const SharedColumns& one : columns_) one.TakeSolution();
  return absl::OkStatus();
}

// -----------------------------------------------------------------------------------------------------
// Solves

std::optional<SharedSolveRequest> SharedSolveRequest::Make(ShmMemory& memory,
                                                           const std::string& handle,
                                                           const v1::SolveRequest& request,
                                                           Bytes rhs, std::span<std::byte> solution,
                                                           bool in_place) {
  SharedColumns columns(memory, rhs, solution, in_place);
  std::optional<ShmPiece> piece = memory.Allocate(kErrorBytes + columns.bytes_to_place());
  if (!piece) return std::nullopt;
  columns.Place(memory, piece->offset() + kErrorBytes);
  SharedSolveRequest made(*std::move(piece), v1::ShmOperation::kSolve, kErrorBytes);
  v1::ShmRequest& asked = made.request_;
  SetOptions(request.options(), asked);
  SetHandle(handle, asked.handle);
  asked.num_rhs = request.num_rhs();
  asked.rhs_offset = columns.rhs();
  asked.solution_offset = columns.solution();
  asked.bytes = columns.bytes();
  made.columns_.push_back(columns);
  return made;
}

absl::StatusOr<SolveResult> SharedSolveRequest::Take(const v1::ShmReply& reply) const {
  const absl::Status status = StatusOf(reply, {piece_.data(), kErrorBytes});
  if (!status.ok()) return status;
  columns_[0].TakeSolution();
  SolveResult solved;
  if (reply.backward_error >= 0) solved.backward_error = reply.backward_error;
  solved.backward_error_bound = reply.backward_error_bound;
  solved.refinements = static_cast<int>(reply.refinements);
  solved.cost = CostOf(reply);
  return solved;
}

std::optional<SharedManyRequest> SharedManyRequest::Make(ShmMemory& memory,
                                                         std::span<const SharedSolve> solves,
                                                         const v1::SolveOptions& options,
                                                         bool in_place) {
  const uint64_t room = RoomFor(solves.size()), described = solves.size() * sizeof(v1::ShmSolve);
  uint64_t bytes = room + described;
  std::vector<SharedColumns> columns;
  columns.reserve(solves.size());
  for (const SharedSolve& solve : solves) {
    bytes += columns.emplace_back(memory, solve.rhs, solve.solution, in_place).bytes_to_place();
  }
  std::optional<ShmPiece> piece = memory.Allocate(bytes);
  if (!piece) return std::nullopt;
  auto* describe = reinterpret_cast<v1::ShmSolve*>(piece->data() + room);
  uint64_t at = piece->offset() + room + described;
  for (size_t i = 0; i < solves.size(); ++i) {
    const uint64_t placed = columns[i].bytes_to_place();
    columns[i].Place(memory, at);
    at += placed;
    v1::ShmSolve one{};
    SetHandle(*solves[i].handle, one.handle);
    one.num_rhs = solves[i].num_rhs;
    one.rhs_offset = columns[i].rhs();
    one.solution_offset = columns[i].solution();
    one.bytes = columns[i].bytes();
    *describe++ = one;
  }
  SharedManyRequest made(*std::move(piece), v1::ShmOperation::kSolveMany, room);
  SetOptions(options, made.request_);
  made.request_.num_rhs = static_cast<int64_t>(solves.size());
  made.request_.rhs_offset = made.piece_.offset() + room;
  made.columns_ = std::move(columns);
  return made;
}

absl::Status SharedManyRequest::Take(const v1::ShmReply& answer, v1::SolveManyReply* reply) const {
  return TakeMessage(answer, reply);
}

// -----------------------------------------------------------------------------------------------------
// Matrices

std::optional<SharedFactorRequest> SharedFactorRequest::Make(ShmMemory& memory,
                                                             const v1::FactorStreamHeader& header,
                                                             std::span<const SystemView> systems) {
  const auto matrices = static_cast<uint64_t>(TotalBytes(systems));
  const std::string message = header.SerializeAsString();
  const uint64_t room = RoomFor(systems.size()), head = room + Aligned(message.size());
  // One matrix whose parts follow one another can be read where it lies.
  std::optional<uint64_t> in_place;
  if (systems.size() == 1 && FollowOneAnother(systems[0].parts())) {
    in_place = memory.OffsetOf(systems[0].diagonal, matrices);
  }
  std::optional<ShmPiece> piece = memory.Allocate(head + (in_place ? 0 : matrices));
  if (!piece) return std::nullopt;
  std::memcpy(piece->data() + room, message.data(), message.size());
  std::byte* to = piece->data() + head;
  for (const SystemView& system : systems) {
    if (in_place) break;
    for (const Bytes part : system.parts()) {
      if (!part.empty()) std::memcpy(to, part.data(), part.size());
      to += part.size();
    }
  }
  SharedFactorRequest made(*std::move(piece), v1::ShmOperation::kFactor, room);
  v1::ShmRequest& asked = made.request_;
  asked.rhs_offset = in_place.value_or(made.piece_.offset() + head);
  asked.bytes = matrices;
  asked.message_offset = made.piece_.offset() + room;
  asked.message_bytes = message.size();
  return made;
}

absl::Status SharedFactorRequest::Take(const v1::ShmReply& answer, v1::FactorReply* reply) const {
  return TakeMessage(answer, reply);
}

std::optional<SharedFactorSolveRequest> SharedFactorSolveRequest::MakeWith(
    ShmMemory& memory, v1::ShmOperation operation, const std::string& message,
    std::span<const SystemView> systems, std::span<const SharedSolve> solves) {
  const uint64_t room = RoomFor(solves.size());
  const uint64_t described = solves.size() * sizeof(v1::ShmFactorSolve);
  const uint64_t head = room + described + Aligned(message.size());
  uint64_t bytes = head;
  std::vector<SharedPart> parts;
  std::vector<SharedColumns> columns;
  for (size_t i = 0; i < solves.size(); ++i) {
    const auto [diagonal, coupling, border, corner] = systems[i].parts();
    bytes += parts.emplace_back(memory, SharedPart::Parts{diagonal}).bytes_to_place();
    bytes +=
        parts.emplace_back(memory, SharedPart::Parts{coupling, border, corner}).bytes_to_place();
    bytes += columns.emplace_back(memory, solves[i].rhs, solves[i].solution, /*in_place=*/true)
                 .bytes_to_place();
  }
  std::optional<ShmPiece> piece = memory.Allocate(bytes);
  if (!piece) return std::nullopt;
  std::memcpy(piece->data() + room + described, message.data(), message.size());
  auto* describe = reinterpret_cast<v1::ShmFactorSolve*>(piece->data() + room);
  uint64_t at = piece->offset() + head;
  const auto place = [&](auto& what) {
    const uint64_t placed = what.bytes_to_place();
    what.Place(memory, at);
    at += placed;
  };
  for (size_t i = 0; i < solves.size(); ++i) {
    SharedPart &diagonal = parts[2 * i], &coupling = parts[2 * i + 1];
    place(diagonal);
    place(coupling);
    place(columns[i]);
    *describe++ = {.diagonal_offset = diagonal.offset(),
                   .diagonal_bytes = diagonal.bytes(),
                   .coupling_offset = coupling.offset(),
                   .coupling_bytes = coupling.bytes(),
                   .rhs_offset = columns[i].rhs(),
                   .solution_offset = columns[i].solution(),
                   .bytes = columns[i].bytes()};
  }
  SharedFactorSolveRequest made(*std::move(piece), operation, room);
  v1::ShmRequest& asked = made.request_;
  asked.num_rhs = static_cast<int64_t>(solves.size());
  asked.rhs_offset = made.piece_.offset() + room;
  asked.message_offset = asked.rhs_offset + described;
  asked.message_bytes = message.size();
  made.columns_ = std::move(columns);
  return made;
}

std::optional<SharedFactorSolveRequest> SharedFactorSolveRequest::Make(
    ShmMemory& memory, const v1::FactorSolveRequest& message, std::span<const SystemView> systems,
    std::span<const SharedSolve> solves) {
  return MakeWith(memory, v1::ShmOperation::kFactorSolve, message.SerializeAsString(), systems,
                  solves);
}

std::optional<SharedFactorSolveRequest> SharedFactorSolveRequest::Make(
    ShmMemory& memory, const v1::FactorSolveManyRequest& message,
    std::span<const SystemView> systems, std::span<const SharedSolve> solves) {
  return MakeWith(memory, v1::ShmOperation::kFactorSolveMany, message.SerializeAsString(), systems,
                  solves);
}

absl::Status SharedFactorSolveRequest::Take(const v1::ShmReply& answer,
                                            v1::FactorSolveReply* reply) const {
  return TakeMessage(answer, reply);
}

absl::Status SharedFactorSolveRequest::Take(const v1::ShmReply& answer,
                                            v1::SolveManyReply* reply) const {
  return TakeMessage(answer, reply);
}

v1::ShmRequest MakeRelease(const std::string& handle) {
  v1::ShmRequest request{};
  request.operation = v1::ShmOperation::kRelease;
  if (handle.size() == sizeof(request.handle)) {
    std::memcpy(request.handle, handle.data(), sizeof(request.handle));
  }
  return request;
}

}  // namespace blockd::client
