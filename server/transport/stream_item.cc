#include "server/transport/stream_item.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "server/transport/solve_many.h"
#include "server/transport/stream_reply.h"
#include "server/transport/wire.h"

namespace blockd::server {

StreamItem::StreamItem(ServiceState* state, ContextPtr context, uint64_t id)
    : state(state),
      id(id),
      start(absl::Now()),
      record(state, Method::kSolveStream, std::move(context)) {}

absl::Status StreamItem::Read(const StreamMessage& message, std::span<const Handle> handles) {
  return message.part == StreamMessage::Part::kMany ? ReadFrame(message, handles.size())
                                                    : ReadRequest(message);
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
  absl::StatusOr<Shape> shape = state->core->ShapeOf(context().caller, params.handle);
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
  if (message.request.replace_last()) {
    return InvalidFieldError("replace_last", "true with a frame", "false");
  }
  const v1::SolveManyRequest& many = message.request.many();
  absl::Status read = ReadPriority("many.options.priority", many.options().priority(), &context());
  if (!read.ok()) return read;
  absl::StatusOr<int64_t> count = CountSolves(many, handles, message.bytes, "many.");
  if (!count.ok()) return count.status();
  bytes = message.bytes;
  frame_bytes_ = *count * kHostBytesPerSolve;
  return absl::OkStatus();
}

absl::Status StreamItem::TakeMemory(const StreamMessage& message, std::span<const Handle> handles) {
  Budget& host = state->core->host();
  absl::Status taken = host.CheckEverFits(bytes + frame_bytes_);
  if (taken.ok()) taken = host.Extend(context().tenant, message.bytes + frame_bytes_, &host_bytes);
  if (!taken.ok()) return taken;
  absl::StatusOr<Payload> room = Payload::Allocate(bytes);
  if (!room.ok()) return room.status();
  values = *std::move(room);
  params.rhs = params.solution = values.span();
  if (message.part != StreamMessage::Part::kMany) return absl::OkStatus();
  frame_ = ToSolveManyParams(message.request.many(), handles, values.span());
  solves = frame_.solves;
  record.SetSolves(frame_);
  return absl::OkStatus();
}

void StreamItem::Solve(Answered answered) {
  on_answered_ = std::move(answered);
  // It may come from within a call that holds the stream's mutex.
  const auto done = [self = shared_from_this()](auto answer, auto& reply) {
    self->status = answer.status();
    if (answer.ok()) {
      reply = *std::move(answer);
      self->record.SetCost(reply.cost);
    }
    self->state->replies.Post(self);
  };
  if (is_frame()) {
    state->core->SolveMany(
        record.context(), std::move(frame_),
        [this, done](absl::StatusOr<SolveManyReply> answer) { done(std::move(answer), replies); });
  } else {
    state->core->Solve(record.context(), params, [this, done](absl::StatusOr<SolveReply> answer) {
      done(std::move(answer), reply);
    });
  }
}

void StreamItem::Run() noexcept { std::exchange(on_answered_, nullptr)(shared_from_this()); }

grpc::ByteBuffer StreamItem::AnswerMessage(bool in_chunks) {
  if (!status.ok()) return FailureMessage(id, status);
  if (!is_frame()) return SolutionMessage(id, reply, values, in_chunks);
  ClearFailed(replies, solves);
  return SolutionMessage(id, replies, values, in_chunks);
}

}  // namespace blockd::server
