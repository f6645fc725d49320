#include "server/transport/rpc/server_call.h"

#include <new>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/base/steady_time.h"
#include "server/transport/rpc/call_queue.h"

namespace blockd::server {

void IncomingCall::OverTag::Complete(bool /*ok*/) noexcept {
  if (state_.exchange(State::kOver) == State::kNew) return;  // Tell does it
  call_->OnOver();
}

void IncomingCall::OverTag::Tell(ServerCall* call) {
  call_ = call;
  State expected = State::kNew;
  if (!state_.compare_exchange_strong(expected, State::kHasCall)) call->OnOver();
}

Tag* ServerCall::Operation::Start() {
  ++call_->left_;
  return this;
}

void ServerCall::Operation::Complete(bool ok) noexcept {
  ServerCall& call = *call_;
  call.Guard([&call, ended = ended_, ok] { (call.*ended)(ok); });
  call.Leave();
}

ServerCall::ServerCall(CallTracker* tracker, std::unique_ptr<IncomingCall> incoming)
    : active_(tracker),
      incoming_(std::move(incoming)),
      peer_(rpc()->peer()),
      host_(peer_.substr(0, peer_.rfind(':'))) {}

void ServerCall::Accept(CallQueue* queue) {
  queue_ = queue;
  self_ = shared_from_this();
  queue_->Add(this);
  Guard([this] { OnBegin(); });
  incoming_->over.Tell(this);
  queue_->EndOneTooMany(*this);
}

void ServerCall::Look(absl::Time now, const CallLimits& limits) {
  const int64_t reading = reading_since_, writing = writing_since_;
  if (writing != 0 && now - absl::FromUnixNanos(writing) >= limits.reply_timeout) {
    rpc()->TryCancel();
  }
  if (watched_) return Guard([&] { OnLook(now); });
  if (reading == 0 || now - absl::FromUnixNanos(reading) < limits.request_timeout) return;
  if (!queue_->waiting().Take(this)) return;
  EndWaiting(/*reads=*/true,
             absl::DeadlineExceededError(absl::StrCat(
                 "no whole request came for ", absl::FormatDuration(limits.request_timeout),
                 " (--stream_idle_timeout, and --max_message_bytes at "
                 "--min_upload_bytes_per_second; at most "
                 "--max_upload_duration)")));
}

void ServerCall::EndWaiting(bool reads, const absl::Status& status) {
  // A status would wait for the reply before it.
  const bool cancels = !reads || writing_since_ != 0;
  if (reads) Guard([&] { OnFailure(status); });
  if (cancels) rpc()->TryCancel();
}

void ServerCall::Read() {
  queue_->waiting().StartReading(this);
  reading_since_ = absl::ToUnixNanos(SteadyNow());
  incoming_->stream.Read(&message_, read_.Start());
}

void ServerCall::OnReadEnded(bool ok) {
  reading_since_ = 0;
  if (ok) message_came_ = true;
  if (queue_->waiting().StopReading(this)) OnRead(ok);
}

void ServerCall::StayWaiting() {
  queue_->waiting().StartReading(this);
  queue_->EndOneTooMany(*this);
}

void ServerCall::SetAsks(bool asks) { queue_->waiting().SetAsks(this, asks); }

void ServerCall::Greet() { incoming_->stream.SendInitialMetadata(greet_.Start()); }

void ServerCall::StartClock() {
  if (static_cast<int64_t>(reply_.Length()) < kAskingBytes) queue_->waiting().StartWriting(this);
  writing_since_ = absl::ToUnixNanos(SteadyNow());
}

void ServerCall::StopClock() {
  writing_since_ = 0;
  reply_.Clear();
  queue_->waiting().StopWriting(this);
}

void ServerCall::Write(const grpc::ByteBuffer& message) {
  reply_ = message;
  writing_ = Writing::kYes;
  StartClock();
  incoming_->stream.Write(reply_, write_.Start());
}

void ServerCall::OnWriteEnded(bool ok) {
  StopClock();
  const Writing was = writing_.exchange(Writing::kNo);
  Guard([&] { OnWritten(ok); });
  if (was == Writing::kThenFinish) StartFinish();
}

void ServerCall::Finish(const grpc::Status& status) {
  if (finish_called_.exchange(true)) return;
  status_ = status;
  Writing expected = Writing::kYes;
  if (!writing_.compare_exchange_strong(expected, Writing::kThenFinish)) StartFinish();
}

void ServerCall::FinishAfter(absl::Duration wait, const grpc::Status& status) {
  if (finish_called_.exchange(true)) return;
  status_ = status;
  alarm_ = std::make_unique<grpc::Alarm>();
  alarm_->Set(incoming_->queue,
              gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC),
                           gpr_time_from_micros(absl::ToInt64Microseconds(wait), GPR_TIMESPAN)),
              wait_.Start());
}

void ServerCall::StartFinish() {
  StartClock();
  incoming_->stream.Finish(status_, finish_.Start());
}

void ServerCall::WriteAndFinish(const grpc::ByteBuffer& message) {
  if (finish_called_.exchange(true)) return;
  reply_ = message;
  StartClock();
  incoming_->stream.WriteAndFinish(reply_, grpc::WriteOptions(), grpc::Status::OK, finish_.Start());
}

void ServerCall::OnFinished(bool /*ok*/) {
  StopClock();
  Leave();
}

void ServerCall::OnOver() {
  if (rpc()->IsCancelled()) {
    Guard([this] {
      if (!message_came_) queue_->NoteReset(peer_);
    });
    Guard([this] { OnCancel(); });
  }
  Leave();
}

void ServerCall::Leave() {
  if (--left_ > 0) return;
  const std::shared_ptr<ServerCall> self = std::move(self_);
  queue_->Remove(this);
  // Not by Guard: nothing can be said any more.
  try {
    OnDone();
  } catch (const std::bad_alloc&) {
  }
}

void ServerCall::RunOutOfMemory() noexcept {
  try {
    OnFailure(absl::ResourceExhaustedError("no memory on the host for this call"));
  } catch (const std::bad_alloc&) {
    // Not even for a status. The client hears that the call was cancelled.
    rpc()->TryCancel();
    Finish(grpc::Status::CANCELLED);
  }
}

}  // namespace blockd::server
