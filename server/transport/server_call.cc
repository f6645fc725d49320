#include "server/transport/server_call.h"

#include <new>
#include <utility>

#include "server/core/steady_time.h"
#include "server/transport/call_queue.h"

namespace blockd::server {

void IncomingCall::OverTag::Complete(bool /*ok*/) noexcept {
  if (state_.exchange(State::kOver) == State::kNew) return;  // Tell does it
  const std::shared_ptr<ServerCall> held = std::move(call_);
  held->OnOver();
}

void IncomingCall::OverTag::Tell(std::shared_ptr<ServerCall> call) {
  call_ = std::move(call);
  State expected = State::kNew;
  if (state_.compare_exchange_strong(expected, State::kHasCall)) return;
  const std::shared_ptr<ServerCall> held = std::move(call_);
  held->OnOver();
}

Tag* ServerCall::Operation::Start() {
  held_ = call_->shared_from_this();
  ++call_->left_;
  return this;
}

void ServerCall::Operation::Complete(bool ok) noexcept {
  const std::shared_ptr<ServerCall> held = std::move(held_);
  held->Guard([&] { (*held.*ended_)(ok); });
  held->Leave();
}

ServerCall::ServerCall(CallTracker* tracker, std::unique_ptr<IncomingCall> incoming)
    : active_(tracker), incoming_(std::move(incoming)), peer_(rpc()->peer()) {}

void ServerCall::Accept(CallQueue* queue) {
  queue_ = queue;
  queue_->Add(this);
  Guard([this] { OnBegin(); });
  incoming_->over.Tell(shared_from_this());
}

void ServerCall::Look(absl::Time now, absl::Duration reply_timeout) {
  const int64_t since = writing_since_;
  if (since != 0 && now - absl::FromUnixNanos(since) >= reply_timeout) rpc()->TryCancel();
  if (watched_) Guard([&] { OnLook(now); });
}

void ServerCall::Read() { incoming_->stream.Read(&message_, read_.Start()); }

void ServerCall::Greet() { incoming_->stream.SendInitialMetadata(greet_.Start()); }

void ServerCall::StartClock() { writing_since_ = absl::ToUnixNanos(SteadyNow()); }

void ServerCall::Write(const grpc::ByteBuffer& message) {
  reply_ = message;
  writing_ = Writing::kYes;
  StartClock();
  incoming_->stream.Write(reply_, write_.Start());
}

void ServerCall::OnWriteEnded(bool ok) {
  writing_since_ = 0;
  reply_.Clear();
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
  writing_since_ = 0;
  reply_.Clear();
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
