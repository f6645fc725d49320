#include "server/transport/stream/stream_item.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/base/steady_time.h"
#include "server/core/common/errors.h"
#include "server/transport/stream/stream_reply.h"
#include "server/transport/wire/factor_solve_many.h"
#include "server/transport/wire/solve_many.h"
#include "server/transport/wire/wire.h"

namespace blockd::server {
StreamItem::StreamItem(ServiceState* state, ContextPtr context, const StreamMessage& first)
    : state(state),
      id(first.id),
      part(first.part),
      start(SteadyNow()),
      record(state, Method::kSolveStream, std::move(context)) {}

absl::Status StreamItem::Read(StreamMessage& message, std::span<const Handle> handles) {
  if (!is_frame()) return ReadRequest(message);
  if (message.request.replace_last()) {
    return InvalidFieldError("replace_last", "true with a frame", "false");
  }
  return part == StreamMessage::Part::kMany ? ReadFrame(message, handles.size())
                                            : TakeRefactor(message);
}

absl::Status StreamItem::ReadRequest(const StreamMessage& message) {
  const v1::SolveRequest& request = message.request.request();
  absl::StatusOr<SolveParams> asked = ToSolveParams(request, "request.");
  if (!asked.ok()) return asked.status();
  absl::Status read =
      ReadPriority("request.options.priority", request.options().priority(), &context());
  if (!read.ok()) return read;
  params = *asked;
  record.SetSolve(params.handle, params.num_rhs);
  absl::StatusOr<BorderedShape> shape = state->core->ShapeOf(context().caller, params.handle);
  if (!shape.ok()) return shape.status();
  absl::StatusOr<int64_t> expected = RhsBytes(*shape, params.num_rhs, "request.num_rhs");
  if (!expected.ok()) return expected.status();
  if (message.bytes != 0 && message.bytes != *expected) {
    return InvalidFieldError("request.rhs", absl::StrCat(message.bytes, " bytes"),
                             absl::StrCat(*expected, " bytes, or none where chunks follow"));
  }
  bytes = *expected;
  return absl::OkStatus();
}

absl::Status StreamItem::ReadFrame(const StreamMessage& message, size_t handles) {
  const v1::SolveManyRequest& many = message.request.many();
  absl::Status read = ReadPriority("many.options.priority", many.options().priority(), &context());
  if (!read.ok()) return read;
  absl::StatusOr<int64_t> count = CountSolves(many, handles, message.bytes, "many.");
  if (!count.ok()) return count.status();
  bytes = message.bytes;
  frame_bytes_ = *count * kHostBytesPerSolve;
  return absl::OkStatus();
}

absl::Status StreamItem::TakeRefactor(StreamMessage& message) {
  host_bytes = std::move(message.parsed_bytes);
  message_ = std::move(message.refactor);
  refactor_ = std::move(message.refactor_params);
  record.SetShape(refactor_.form.shape, message_->handle_size());
  bytes = message.bytes;
  message_bytes_ = static_cast<int64_t>(message_->matrix().size() + message_->rhs().size());
  frame_bytes_ = message_->handle_size() * kHostBytesPerSolve;
  return ReadPriority("refactor.options.priority", message_->options().priority(), &context());
}

absl::Status StreamItem::TakeMemory(const StreamMessage& message, std::span<const Handle> handles) {
  const bool chunks_follow = message.bytes < bytes;
  absl::Status taken = chunks_follow ? state->core->host().CheckEverFits(bytes) : TakeRoom(bytes);
  if (!taken.ok()) return taken;
  if (part == StreamMessage::Part::kMany) {
    frame_ = ToSolveManyParams(message.request.many(), handles, values.span());
    solves = frame_.solves;
    record.SetSolves(frame_);
  } else if (part == StreamMessage::Part::kRefactor) {
    AddSolves(*message_, values.span(), &refactor_);
    solves = refactor_.solves;
  }
  return absl::OkStatus();
}

absl::Status StreamItem::TakeRoom(int64_t first_bytes) {
  if (0 < first_bytes && first_bytes <= room_) return absl::OkStatus();
  Budget& host = state->core->host();
  const int64_t room = std::min(bytes, std::max(first_bytes, 2 * room_));
  const int64_t more = room - room_ + (room_ == 0 ? frame_bytes_ : 0);
  absl::Status taken = host.CheckEverFits(bytes + frame_bytes_);
  if (taken.ok()) taken = host.Extend(context().tenant, more, &host_bytes);
  if (!taken.ok()) return taken;
  if (std::exchange(room_, room) > 0) return absl::OkStatus();
  absl::StatusOr<Payload> memory = Payload::Allocate(bytes, state->core->host_memory());
  if (!memory.ok()) return memory.status();
  values = *std::move(memory);
  if (!is_frame()) params.rhs = params.solution = values.span();
  return absl::OkStatus();
}

template <typename Reply>
void StreamItem::Take(absl::StatusOr<Reply> answer, Reply& into) {
  status = answer.status();
  if (answer.ok()) {
    into = *std::move(answer);
    record.SetCost(into.cost);
  }
  // The stream's mutex may be held, by this thread or for long by another.
  state->replies.Post(shared_from_this());
}

void StreamItem::Solve(Answered answered) {
  on_answered_ = std::move(answered);
  const std::shared_ptr<StreamItem> self = shared_from_this();
  if (part == StreamMessage::Part::kRequest) {
    state->core->Solve(record.context(), params, [self](absl::StatusOr<SolveReply> answer) {
      self->Take(std::move(answer), self->reply);
    });
  } else if (part == StreamMessage::Part::kMany) {
    state->core->SolveMany(record.context(), std::move(frame_),
                           [self](absl::StatusOr<SolveManyReply> answer) {
                             self->Take(std::move(answer), self->replies);
                           });
  } else {
    state->core->FactorSolveMany(record.context(), std::move(refactor_),
                                 [self](absl::StatusOr<FactorSolveManyReply> answer) {
                                   if (!answer.ok())
                                     answer = WithinField("refactor.", answer.status());
                                   self->Take(std::move(answer), self->refactored);
                                 });
  }
}

void StreamItem::Run() noexcept { std::exchange(on_answered_, nullptr)(shared_from_this()); }

grpc::ByteBuffer StreamItem::AnswerMessage(bool in_chunks) {
  if (!status.ok()) return FailureMessage(id, status);
  if (!is_frame()) return SolutionMessage(id, reply, values, in_chunks);
  v1::SolveManyReply wire;
  if (part == StreamMessage::Part::kMany) {
    ClearFailed(replies, solves);
    ToWire(replies, &wire);
  } else {
    ClearFailed(refactored, solves);
    ToWire(refactored, &wire);
  }
  return SolutionMessage(id, wire, values, in_chunks);
}

}  // namespace blockd::server
