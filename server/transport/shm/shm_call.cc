#include "server/transport/shm/shm_call.h"

#include <new>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/core/common/errors.h"
#include "server/transport/wire/raw_message.h"
#include "server/transport/wire/wire.h"

namespace blockd::server {

ShmCall::ShmCall(std::shared_ptr<ShmSession> session, const v1::ShmRequest& request,
                 ContextPtr context)
    : active_(&session->state()->tracker),
      session_(std::move(session)),
      request_(request),
      kind_(FindOperation(request.operation)),
      record_(session_->state(), kind_ == nullptr ? Method::kSolve : kind_->method,
              std::move(context)),
      call_(kind_ == nullptr ? nullptr : kind_->make()) {}

void ShmCall::Start() {
  if (request_.operation == v1::ShmOperation::kCancel) {
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
    if (answered_) return Reply();
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
    if (!replied_) {
      Fail(absl::ResourceExhaustedError("the server's host has no memory for the request"));
    }
  }
  if (has_turn) session_->EndScan();
}

absl::Status ShmCall::Prepare() {
  if (request_.reply_bytes > 0) {
    const auto room = session_->mapping().memory().Data("reply_offset", request_.reply_offset,
                                                        request_.reply_bytes);
    if (!room.ok()) return room.status();
    room_ = *room;
  }
  if (call_ == nullptr) {
    return InvalidFieldError("operation", absl::StrCat(static_cast<uint32_t>(request_.operation)),
                             "an operation of shared memory");
  }
  absl::Status status;
  if (call_->is_work()) status = session_->state()->CheckAcceptsWork();
  if (status.ok() && call_->has_shared_message()) status = ReadMessage();
  if (status.ok()) scans_ = call_->ChecksFinite(request_);
  return status;
}

absl::Status ShmCall::ReadMessage() {
  ServiceState* const state = session_->state();
  const auto bytes = session_->mapping().memory().Data("message_offset", request_.message_offset,
                                                       request_.message_bytes);
  if (!bytes.ok()) return bytes.status();
  absl::Status status = state->CheckMessageSize(bytes->size());
  if (!status.ok()) return status;
  // The copy, while it is parsed.
  const absl::StatusOr<Reservation> copied =
      state->core->host().Reserve(record_.context()->tenant, static_cast<int64_t>(bytes->size()));
  if (!copied.ok()) return copied.status();
  // Not in memory of gRPC's, which ends the process where there is none.
  const std::vector<std::byte> own(bytes->begin(), bytes->end());
  const std::string_view text(reinterpret_cast<const char*>(own.data()), own.size());
  return state->Parse(AsBuffer(text), *record_.context(), &call_->message(), &host_bytes_);
}

absl::Status ShmCall::Begin() {
  const ContextPtr& context = record_.context();
  SolverCore& core = *session_->state()->core;
  const SharedRequest shared(request_, session_->mapping().memory(), &core, context->tenant,
                             &host_bytes_);
  absl::Status status = call_->ReadShared(shared);
  call_->Describe(&record_);
  if (status.ok()) {
    status = ReadPriority(call_->has_shared_message() ? "options.priority" : "priority",
                          call_->priority(), context.get());
  }
  if (!status.ok()) return status;
  call_->Ask(core, context, [self = shared_from_this()](const absl::Status& answer) mutable {
    std::exchange(self, nullptr)->OnAnswered(answer);
  });
  return absl::OkStatus();
}

// On a thread of the core, or on the poller's.
void ShmCall::OnAnswered(const absl::Status& status) {
  if (!status.ok()) return Fail(status);
  answered_ = true;
  ServiceState* const state = session_->state();
  if (call_->BytesToClear() > kShortMessageBytes) return state->work.Post(shared_from_this());
  if (call_->has_long_reply()) return state->replies.Post(shared_from_this());
  Run();
}

void ShmCall::Reply() {
  record_.SetCost(call_->cost());
  v1::ShmReply slot{};
  if (call_->ReplyInSlot(&slot)) return Answer(absl::OkStatus(), slot, nullptr);
  Answer(absl::OkStatus(), slot, call_->Reply(room_.size()).get());
}

void ShmCall::Fail(const absl::Status& status) {
  const v1::RpcStatus wire = ToRpcStatus(status);
  v1::ShmReply reply{};
  Answer(status, reply, &wire);
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
  replied_ = true;
  session_->Answer(reply);
  record_.Publish();
}

}  // namespace blockd::server
