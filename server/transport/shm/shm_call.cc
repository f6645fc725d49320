#include "server/transport/shm/shm_call.h"

#include <cstring>
#include <new>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/transport/wire/solve_many.h"
#include "server/transport/wire/wire.h"

namespace blockd::server {
namespace {

using v1::ShmOperation;

// More solves, and more bytes to look at, keep other sessions waiting.
constexpr int64_t kFewSolves = 256;

Method MethodOf(ShmOperation operation) {
  switch (operation) {
    case ShmOperation::kSolveMany:
      return Method::kSolveMany;
    case ShmOperation::kFactor:
      return Method::kFactor;
    case ShmOperation::kRelease:
      return Method::kRelease;
    case ShmOperation::kFactorSolve:
      return Method::kFactorSolve;
    case ShmOperation::kFactorSolveMany:
      return Method::kFactorSolveMany;
    default:
      return Method::kSolve;
  }
}

template <size_t kBytes>
Handle HandleOf(const uint8_t (&bytes)[kBytes]) {
  static_assert(kBytes == Handle::kBytes);
  Handle handle;
  std::memcpy(handle.bytes.data(), bytes, kBytes);
  return handle;
}

void SetCost(const Cost& cost, v1::ShmReply* reply) {
  reply->queue_seconds = absl::ToDoubleSeconds(cost.queue);
  reply->upload_seconds = absl::ToDoubleSeconds(cost.upload);
  reply->compute_seconds = absl::ToDoubleSeconds(cost.compute);
  reply->download_seconds = absl::ToDoubleSeconds(cost.download);
  reply->batch_requests = cost.batch_requests;
  reply->batch_items = cost.batch_items;
}

}  // namespace

ShmCall::ShmCall(std::shared_ptr<ShmSession> session, const v1::ShmRequest& request,
                 ContextPtr context)
    : active_(&session->state()->tracker),
      session_(std::move(session)),
      request_(request),
      record_(session_->state(), MethodOf(request.operation), std::move(context)) {}

bool ShmCall::IsLong() const {
  const bool checks = (request_.flags & v1::kShmCheckFinite) != 0;
  switch (request_.operation) {
    case ShmOperation::kFactor:
    case ShmOperation::kFactorSolve:
    case ShmOperation::kFactorSolveMany:
      return true;
    case ShmOperation::kSolve:
      return checks && request_.bytes > kShortMessageBytes;
    case ShmOperation::kSolveMany:
      return checks || request_.num_rhs > kFewSolves;
    default:
      return false;
  }
}

void ShmCall::Start() {
  if (request_.operation == ShmOperation::kCancel) {
    session_->Cancel(request_.other_id);
    v1::ShmReply reply{};
    reply.id = request_.id;
    return session_->Answer(reply);
  }
  if (IsLong()) return session_->state()->work.Post(shared_from_this());
  Run();
}

void ShmCall::Run() noexcept {
  bool has_turn = false;
  try {
    if (answering_) {
      return request_.operation == ShmOperation::kSolveMany ? AnswerSolveMany()
                                                            : AnswerFactorSolveMany();
    }
    absl::Status status;
    if (!std::exchange(prepared_, true)) {
      status = Prepare();
      // Another thread may have it from here on.
      if (scans_ && !session_->AwaitScan(shared_from_this())) return;
    }
    has_turn = scans_;
    if (status.ok()) status = Begin();
    if (!status.ok()) Fail(status);
  } catch (const std::bad_alloc&) {
    Fail(absl::ResourceExhaustedError("the server's host has no memory for the request"));
  }
  if (has_turn) session_->EndScan();
}

absl::Status ShmCall::Prepare() {
  if (request_.reply_bytes > 0) {
    const auto room = Data("reply_offset", request_.reply_offset, request_.reply_bytes);
    if (!room.ok()) return room.status();
    room_ = *room;
  }
  if (request_.operation != ShmOperation::kRelease) {
    const absl::Status accepts = session_->state()->CheckAcceptsWork();
    if (!accepts.ok()) return accepts;
  }
  switch (request_.operation) {
    case ShmOperation::kFactor:
    case ShmOperation::kFactorSolve:
    case ShmOperation::kFactorSolveMany:
      return ReadMessage();
    default:
      scans_ = (request_.flags & v1::kShmCheckFinite) != 0 && IsLong();
      return absl::OkStatus();
  }
}

absl::Status ShmCall::Begin() {
  switch (request_.operation) {
    case ShmOperation::kSolve:
      return Solve();
    case ShmOperation::kSolveMany:
      return SolveMany();
    case ShmOperation::kFactor:
      return Factor();
    case ShmOperation::kFactorSolve:
      return FactorSolve();
    case ShmOperation::kFactorSolveMany:
      return FactorSolveMany();
    case ShmOperation::kRelease:
      return Release();
    default:
      return InvalidFieldError("operation", absl::StrCat(static_cast<uint32_t>(request_.operation)),
                               "an operation of shared memory");
  }
}

// In place, or from one place to another: a copy between two that overlap is undefined.
absl::StatusOr<SolveManyParams::Columns> ShmCall::ColumnsOf(int64_t num_rhs, uint64_t rhs_offset,
                                                            uint64_t solution_offset,
                                                            uint64_t bytes) const {
  const auto rhs = Data("rhs_offset", rhs_offset, bytes);
  if (!rhs.ok()) return rhs.status();
  const auto solution = Data("solution_offset", solution_offset, bytes);
  if (!solution.ok()) return solution.status();
  const uint64_t apart =
      rhs_offset > solution_offset ? rhs_offset - solution_offset : solution_offset - rhs_offset;
  if (apart != 0 && apart < bytes) {
    return InvalidFieldError("solution_offset", "a part of the right-hand sides",
                             "their place, or another");
  }
  return SolveManyParams::Columns{num_rhs, *rhs, *solution};
}

absl::Status ShmCall::CheckTogether(std::span<const SolveManyParams::Columns> solves) const {
  const uint64_t most = session_->mapping().bytes();
  uint64_t bytes = 0;  // never more than twice the memory
  for (const SolveManyParams::Columns& columns : solves) {
    bytes += columns.solution.size();
    if (bytes > most) {
      return InvalidFieldError("bytes", "solutions that overlap",
                               "solutions in places of their own");
    }
  }
  return absl::OkStatus();
}

absl::Status ShmCall::CheckReplyRoom(uint64_t items) const {
  const uint64_t least = v1::kShmReplyBytes + items * v1::kShmReplyBytesEach;
  if (room_.size() >= least) return absl::OkStatus();
  return InvalidFieldError("reply_bytes", absl::StrCat(room_.size()), absl::StrCat(">= ", least));
}

// -----------------------------------------------------------------------------------------------------
// The operations

absl::Status ShmCall::Solve() {
  const Handle handle = HandleOf(request_.handle);
  record_.SetSolve(handle, request_.num_rhs);
  const ContextPtr& context = record_.context();
  const absl::Status read =
      ReadPriority("priority", static_cast<v1::PriorityClass>(request_.priority), context.get());
  if (!read.ok()) return read;
  const auto columns =
      ColumnsOf(request_.num_rhs, request_.rhs_offset, request_.solution_offset, request_.bytes);
  if (!columns.ok()) return columns.status();
  SolveParams params;
  params.handle = handle;
  params.num_rhs = columns->num_rhs;
  params.rhs = columns->rhs;
  params.solution = columns->solution;
  params.residual = (request_.flags & v1::kShmResidual) != 0;
  params.max_refinements = request_.max_refinements;
  params.check_finite = (request_.flags & v1::kShmCheckFinite) != 0;
  session_->state()->core->Solve(
      context, params, [self = shared_from_this()](absl::StatusOr<SolveReply> answer) mutable {
        const std::shared_ptr<ShmCall> call = std::move(self);
        if (!answer.ok()) return call->Fail(answer.status());
        call->record_.SetCost(answer->cost);
        v1::ShmReply reply{};
        reply.backward_error = answer->backward_error.value_or(-1);
        reply.backward_error_bound = answer->backward_error_bound;
        reply.refinements = answer->refinements;
        SetCost(answer->cost, &reply);
        call->Succeed(reply);
      });
  return absl::OkStatus();
}

absl::Status ShmCall::SolveMany() {
  ServiceState* const state = session_->state();
  const ContextPtr& context = record_.context();
  const int64_t count = request_.num_rhs;
  if (count < 1 || count > kMaxSolves) {
    return InvalidFieldError("num_rhs", absl::StrCat(count, " solves"),
                             absl::StrCat("1 to ", kMaxSolves));
  }
  const auto size = static_cast<size_t>(count);
  absl::Status status = CheckReplyRoom(size);
  if (status.ok()) {
    status =
        ReadPriority("priority", static_cast<v1::PriorityClass>(request_.priority), context.get());
  }
  if (!status.ok()) return status;
  const auto described = Data("rhs_offset", request_.rhs_offset, size * sizeof(v1::ShmSolve));
  if (!described.ok()) return described.status();
  status = state->core->host().Extend(context->tenant, count * kHostBytesPerSolve, &host_bytes_);
  if (!status.ok()) return status;
  const auto* const solves = reinterpret_cast<const v1::ShmSolve*>(described->data());
  SolveManyParams params;
  params.handles.reserve(size);
  params.solves.reserve(size);
  for (size_t i = 0; i < size; ++i) {
    const v1::ShmSolve solve = CopyOnce(solves[i]);
    const auto columns =
        ColumnsOf(solve.num_rhs, solve.rhs_offset, solve.solution_offset, solve.bytes);
    if (!columns.ok()) return columns.status();
    params.handles.push_back(HandleOf(solve.handle));
    params.solves.push_back(*columns);
  }
  status = CheckTogether(params.solves);
  if (!status.ok()) return status;
  params.residual = (request_.flags & v1::kShmResidual) != 0;
  params.max_refinements = request_.max_refinements;
  params.check_finite = (request_.flags & v1::kShmCheckFinite) != 0;
  record_.SetSolves(params);
  solves_ = params.solves;
  state->core->SolveMany(
      context, std::move(params),
      [self = shared_from_this()](absl::StatusOr<SolveManyReply> answer) mutable {
        self->solved_ = std::move(answer);
        AnswerSoon(std::move(self));
      });
  return absl::OkStatus();
}

// On a thread of the core, or on the poller's.
void ShmCall::AnswerSoon(std::shared_ptr<ShmCall> call) {
  call->answering_ = true;
  ServiceState* const state = call->session_->state();
  if (call->BytesToClear() > kShortMessageBytes) return state->work.Post(std::move(call));
  if (call->IsLong()) return state->replies.Post(std::move(call));
  call->Run();
}

size_t ShmCall::BytesToClear() const {
  size_t bytes = 0;
  for (size_t i = 0; i < solves_.size(); ++i) {
    const bool failed = (solved_.ok() && !solved_->outcomes[i].status.ok()) ||
                        (refactored_.ok() && !refactored_->systems[i].solve.status.ok());
    if (failed) bytes += solves_[i].solution.size();
  }
  return bytes;
}

void ShmCall::AnswerSolveMany() {
  if (!solved_.ok()) return Fail(solved_.status());
  record_.SetCost(solved_->cost);
  ClearFailed(*solved_, solves_);
  v1::SolveManyReply wire;
  ToWire(*solved_, &wire);
  SucceedMany(&wire);
}

// Without the words and the details of failures it fits in the room that was checked.
void ShmCall::SucceedMany(v1::SolveManyReply* reply) {
  if (reply->ByteSizeLong() > room_.size()) {
    for (v1::SolveFailure& failure : *reply->mutable_failure()) {
      failure.mutable_status()->clear_details();
      failure.mutable_status()->clear_message();
    }
  }
  Succeed({}, reply);
}

absl::Status ShmCall::Release() {
  const Handle handle = HandleOf(request_.handle);
  const absl::StatusOr<int64_t> bytes =
      session_->state()->core->Release(record_.context()->caller, {&handle, 1});
  if (!bytes.ok()) return bytes.status();
  v1::ShmReply reply{};
  reply.released_bytes = *bytes;
  Succeed(reply);
  return absl::OkStatus();
}

// -----------------------------------------------------------------------------------------------------
// The answer

void ShmCall::Fail(const absl::Status& status) {
  const v1::RpcStatus wire = ToRpcStatus(status);
  v1::ShmReply reply{};
  Answer(status, reply, &wire);
}

void ShmCall::Succeed(v1::ShmReply reply, const google::protobuf::Message* message) {
  Answer(absl::OkStatus(), reply, message);
}

void ShmCall::Answer(const absl::Status& status, v1::ShmReply& reply,
                     const google::protobuf::Message* message) {
  reply.id = request_.id;
  reply.code = static_cast<int32_t>(status.code());
  if (message != nullptr && message->ByteSizeLong() <= room_.size()) {
    reply.message_bytes = static_cast<uint32_t>(message->ByteSizeLong());
    message->SerializeToArray(room_.data(), static_cast<int>(reply.message_bytes));
  }
  record_.SetOutcome(status);
  host_bytes_.Reset();  // whoever is told of the answer finds everything back
  session_->Answer(reply);
  record_.Publish();
}

}  // namespace blockd::server
