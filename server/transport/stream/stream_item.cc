#include "server/transport/stream/stream_item.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/base/steady_time.h"
#include "server/core/common/errors.h"
#include "server/transport/calls/core_calls.h"
#include "server/transport/stream/stream_reply.h"
#include "server/transport/wire/wire.h"

namespace blockd::server {

std::unique_ptr<CoreCall> TakeCall(StreamMessage* message) {
  std::unique_ptr<CoreCall> call = FindStreamPart(message->part)->make();
  v1::SolveStreamRequest& request = message->request;
  google::protobuf::Message& part = *request.GetReflection()->MutableMessage(
      &request, request.GetDescriptor()->FindFieldByNumber(message->part));
  part.GetReflection()->Swap(&part, &call->message());
  return call;
}

StreamItem::StreamItem(ServiceState* state, ContextPtr context, StreamMessage& first)
    : state(state),
      id(first.id),
      part(first.part),
      start(SteadyNow()),
      record(state, Method::kSolveStream, std::move(context)),
      // The message of a refactor stays, with the matrices.
      host_bytes(part == v1::SolveStreamRequest::kRefactorFieldNumber
                     ? std::move(first.parsed_bytes)
                     : Reservation()),
      call(first.call != nullptr ? std::move(first.call) : TakeCall(&first)) {}

absl::Status WithinPart(int part, const absl::Status& error) {
  const auto* const field = v1::SolveStreamRequest::descriptor()->FindFieldByNumber(part);
  return WithinField(absl::StrCat(field->name(), "."), error);
}

absl::Status StreamItem::Read(StreamMessage& message) {
  if (is_frame() && message.request.replace_last()) {
    return InvalidFieldError("replace_last", "true with a frame", "false");
  }
  absl::Status error;
  // A refactor was read once it was parsed, which takes long.
  if (part != v1::SolveStreamRequest::kRefactorFieldNumber) {
    error = call->Read({.lifted = message.bytes});
  }
  call->Describe(&record);
  if (error.ok()) error = ReadPriority("options.priority", call->priority(), &context());
  if (!error.ok()) return WithinPart(part, error);
  const absl::StatusOr<int64_t> in_all = call->BytesToCome(*state->core, context().caller);
  if (!in_all.ok()) return WithinPart(part, in_all.status());
  bytes = *in_all;
  return absl::OkStatus();
}

absl::Status StreamItem::TakeMemory(const StreamMessage& message) {
  const bool chunks_follow = message.bytes < bytes;
  return chunks_follow ? state->core->host().CheckEverFits(bytes) : TakeRoom(bytes);
}

absl::Status StreamItem::TakeRoom(int64_t first_bytes) {
  if (0 < first_bytes && first_bytes <= room_) return absl::OkStatus();
  Budget& host = state->core->host();
  const int64_t room = std::min(bytes, std::max(first_bytes, 2 * room_));
  const int64_t more = room - room_ + (room_ == 0 ? call->more_bytes() : 0);
  absl::Status taken = host.CheckEverFits(bytes + call->more_bytes());
  if (taken.ok()) taken = host.Extend(context().tenant, more, &host_bytes);
  if (!taken.ok()) return taken;
  if (std::exchange(room_, room) > 0) return absl::OkStatus();
  absl::StatusOr<Payload> memory = Payload::Allocate(bytes, state->core->host_memory());
  if (!memory.ok()) return memory.status();
  values = *std::move(memory);
  call->Place(values.span());
  return absl::OkStatus();
}

void StreamItem::Solve(Answered answered) {
  on_answered_ = std::move(answered);
  call->Ask(*state->core, record.context(),
            [self = shared_from_this()](const absl::Status& answer) {
              self->status = answer.ok() ? answer : WithinPart(self->part, answer);
              if (answer.ok()) self->record.SetCost(self->call->cost());
              // The stream's mutex may be held, by this thread or for long by another.
              self->state->replies.Post(self);
            });
}

void StreamItem::Run() noexcept { std::exchange(on_answered_, nullptr)(shared_from_this()); }

grpc::ByteBuffer StreamItem::AnswerMessage(bool in_chunks) {
  if (!status.ok()) return FailureMessage(id, status);
  return SolutionMessage(id, FindStreamPart(part)->stream_reply_field,
                         *call->Reply(CoreCall::kAnyRoom), call->solution_field(), values,
                         in_chunks);
}

}  // namespace blockd::server
