#include "server/transport/rpc/unary_call.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "server/base/steady_time.h"

namespace blockd::server {
namespace {

// A caller over its rate hears of it after this long. If it heard at once and asked again at once,
// it would take the serving threads from all others.
constexpr absl::Duration kTooFast = absl::Milliseconds(5);

}  // namespace

UnaryCall::UnaryCall(ServiceState* state, Method method, std::unique_ptr<IncomingCall> incoming,
                     RoleSet roles)
    : ServerCall(&state->tracker, std::move(incoming)),
      state_(state),
      record_(state, method, rpc(), roles) {}

void UnaryCall::OnBegin() { Read(); }

void UnaryCall::OnRead(bool ok) {
  if (!ok) {
    return Fail(InvalidFieldError("", "no message",
                                  absl::StrCat("a ", std::string(request()->GetTypeName()))));
  }
  came_ = true;
  if (message().Length() <= ShortBytes() && !IsLong()) return HandleMessage();
  state_->work.Post(Shared(shared_from_this(), &handle_task_));
}

absl::Status UnaryCall::CheckWork() const {
  if (record_.context()->cancelled) return CancellationOf(*record_.context());
  return state_->CheckAcceptsWork();
}

void UnaryCall::HandleMessage() noexcept {
  Guard([this] {
    absl::Status status = record_.allowed();
    if (status.ok()) status = state_->CheckMessage(message());
    if (status.ok() && IsWork()) status = CheckWork();
    if (status.ok()) status = ReadRequest();
    if (!status.ok()) return Fail(status);
    message().Clear();  // the request holds copies: give the transport's memory back now
    record_.context()->may_run_here = ServesAlone();
    Start();
  });
}

absl::StatusOr<Payload> UnaryCall::Allocate(int64_t bytes, int64_t more_bytes) {
  absl::Status status =
      state_->core->host().Extend(record_.context()->tenant, bytes + more_bytes, &host_bytes_);
  if (!status.ok()) return status;
  return Payload::Allocate(bytes, state_->core->host_memory());
}

void UnaryCall::OnDone() {
  if (!came_ && rpc()->IsCancelled()) return;  // it has asked for nothing
  // The outcome is the one that the caller saw: an answer that never went out is none.
  if (rpc()->IsCancelled() && record_.status().ok()) {
    record_.SetOutcome(CancellationOf(*record_.context()));
  }
  Publish();
}

void UnaryCall::AnswerSoon(bool here) noexcept {
  state_->replies.RunOrPost(here, Shared(shared_from_this(), &answer_task_));
}

void UnaryCall::AnswerNow() noexcept {
  Guard([this] { Answer(); });
}

void UnaryCall::Succeed(const grpc::ByteBuffer& reply) {
  EchoIds(*record_.context(), rpc());
  record_.SetOutcome(absl::OkStatus());
  WriteAndFinish(reply);
}

void UnaryCall::Fail(const absl::Status& status) {
  if (finish_called()) return;
  record_.SetOutcome(status);
  const RequestContext& context = *record_.context();
  const grpc::Status answer = FailBeforeAnswer(status, context, rpc());
  if (!context.is_over_rate) return Finish(answer);
  FinishAfter(std::min(kTooFast, (context.deadline - SteadyNow()) / 2), answer);
}

}  // namespace blockd::server
