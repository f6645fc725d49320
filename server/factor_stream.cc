#include "server/factor_stream.h"

#include <memory>
#include <string>
#include <utility>
#include <variant>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "blockd/v1/blockd.pb.h"
#include "server/idle_timer.h"
#include "server/raw_message.h"
#include "server/wire.h"

namespace blockd::server {
namespace {

// Reading (header, then chunks) -> in the core -> finished. A message, the timer and a cancellation
// may come at once, from three threads: each holds the mutex and looks whether the call is
// finished.
class FactorStreamCall final : public grpc::ServerReadReactor<grpc::ByteBuffer>,
                               public std::enable_shared_from_this<FactorStreamCall> {
 public:
  FactorStreamCall(ServiceState* state, grpc::CallbackServerContext* rpc, grpc::ByteBuffer* reply)
      : state_(state),
        active_(&state->tracker),
        rpc_(rpc),
        reply_bytes_(reply),
        record_(state, Method::kFactorStream, rpc) {}

  void Begin() {
    self_ = shared_from_this();
    timer_ =
        std::make_shared<IdleTimer>(state_->options.stream_idle_timeout, [weak = weak_from_this()] {
          if (auto call = weak.lock()) call->OnIdle();
        });
    absl::Status status = record_.allowed();
    status.Update(state_->CheckAcceptsWork());
    if (!status.ok()) {
      absl::MutexLock lock(&mutex_);
      return End(status);
    }
    timer_->Start();
    StartRead(&message_);
  }

  void OnReadDone(bool ok) override {
    std::unique_ptr<FactorUpload> complete;
    {
      absl::MutexLock lock(&mutex_);
      if (finished_) return;
      timer_->Touch();
      if (absl::Status status = ok ? OnMessage() : OnEndOfStream(&complete); !status.ok()) {
        return End(status);
      }
      if (ok && !finished_) {
        message_.Clear();
        StartRead(&message_);
      }
    }
    // Without the mutex, since the core may answer at once, from within the call.
    if (complete == nullptr) return;
    state_->core->FinishUpload(std::move(complete),
                               [self = shared_from_this()](absl::StatusOr<FactorReply> reply) {
                                 self->OnFactored(std::move(reply));
                               });
  }

  void OnCancel() override {
    record_.context()->cancelled = true;
    absl::MutexLock lock(&mutex_);
    if (!in_core_ && !finished_) End(CancellationOf(*record_.context()));
  }

  void OnDone() override {
    timer_->Stop();
    {
      // A cancellation looks like the end of the stream until gRPC has said which it was.
      absl::MutexLock lock(&mutex_);
      if (cut_short_ && rpc_->IsCancelled()) {
        record_.SetOutcome(CancellationOf(*record_.context()));
      }
    }
    record_.Publish();
    self_.reset();
  }

 private:
  void OnIdle() {
    absl::MutexLock lock(&mutex_);
    if (in_core_ || finished_) return;
    End(absl::DeadlineExceededError(
        absl::StrCat("no message for ", absl::FormatDuration(state_->options.stream_idle_timeout),
                     " (--stream_idle_timeout)")));
  }

  absl::Status OnMessage() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (absl::Status status = state_->CheckMessageSize(message_); !status.ok()) return status;
    std::optional<StreamPart> part =
        ScanStreamPart(&message_, 0, v1::FactorStreamRequest::kChunkFieldNumber);
    v1::FactorStreamRequest request;
    if (!part.has_value() || (!part->is_chunk && !ParseMessage(message_, &request))) {
      return InvalidFieldError("", "bytes that are not the request's message",
                               "a blockd.v1.FactorStreamRequest");
    }
    if (part->beside_chunk) {
      return InvalidFieldError("part", "a chunk and something else", "one part in a message");
    }
    if (part->is_chunk) return OnChunk(*part);
    if (!request.has_header()) {
      return InvalidFieldError("part", "nothing", upload_ == nullptr ? "header" : "chunk");
    }
    if (upload_ != nullptr) return InvalidFieldError("header", "a second header", "chunk");
    return OnHeader(request.header());
  }

  absl::Status OnHeader(const v1::FactorStreamHeader& header)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    absl::StatusOr<MatrixForm> form = ToForm(header.spec());
    if (!form.ok()) return form.status();
    record_.SetShape(form->shape, header.num_systems());
    if (header.num_systems() < 1) {
      return InvalidFieldError("num_systems", absl::StrCat(header.num_systems()), "at least 1");
    }
    absl::StatusOr<FactorParams> params =
        ToFactorParams(*form, header.num_systems(), header.options());
    if (!params.ok()) return params.status();
    auto begun = state_->core->BeginUpload(record_.context(), *params, DiagonalIndex(header.spec()),
                                           CouplingIndex(header.spec()));
    if (!begun.ok()) return begun.status();
    if (auto* found = std::get_if<FactorReply>(&*begun)) {
      Answer(*found);
      return absl::OkStatus();
    }
    upload_ = std::get<std::unique_ptr<FactorUpload>>(std::move(*begun));
    return absl::OkStatus();
  }

  absl::Status OnChunk(const StreamPart& part) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (upload_ == nullptr) return InvalidFieldError("chunk", "a chunk", "a header first");
    for (std::span<const std::byte> piece : part.pieces) {
      if (absl::Status status = upload_->Write(piece); !status.ok()) return status;
    }
    return absl::OkStatus();
  }

  absl::Status OnEndOfStream(std::unique_ptr<FactorUpload>* complete)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    cut_short_ = upload_ == nullptr || upload_->received_bytes() < upload_->expected_bytes();
    if (upload_ == nullptr) {
      return InvalidFieldError("header", "the end of the stream", "a header first");
    }
    in_core_ = true;
    *complete = std::move(upload_);
    return absl::OkStatus();
  }

  void OnFactored(absl::StatusOr<FactorReply> reply) {
    absl::MutexLock lock(&mutex_);
    if (!reply.ok()) return End(reply.status());
    Answer(*reply);
  }

  void Answer(const FactorReply& reply) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    record_.SetCost(reply.cost);
    v1::FactorReply wire;
    ToWire(reply, &wire);
    *reply_bytes_ = SerializeMessage(wire);
    EchoRequestId(*record_.context(), rpc_);
    End(absl::OkStatus());
  }

  void End(const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    finished_ = true;
    upload_.reset();  // gives the reservation back now, not when the transport is done
    record_.SetOutcome(status);
    Finish(status.ok() ? grpc::Status::OK : FailBeforeAnswer(status, *record_.context(), rpc_));
  }

  ServiceState* const state_;
  const ActiveCall active_;
  grpc::CallbackServerContext* const rpc_;
  grpc::ByteBuffer* const reply_bytes_;
  std::shared_ptr<FactorStreamCall> self_;  // until the call is done
  std::shared_ptr<IdleTimer> timer_;
  grpc::ByteBuffer message_;  // being read, or being handled

  absl::Mutex mutex_;
  CallRecord record_;
  std::unique_ptr<FactorUpload> upload_ ABSL_GUARDED_BY(mutex_);
  bool cut_short_ ABSL_GUARDED_BY(mutex_) = false;  // the stream ended before the matrix was whole
  bool in_core_ ABSL_GUARDED_BY(mutex_) = false;
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace

grpc::ServerReadReactor<grpc::ByteBuffer>* StartFactorStream(ServiceState* state,
                                                             grpc::CallbackServerContext* rpc,
                                                             grpc::ByteBuffer* reply) {
  auto call = std::make_shared<FactorStreamCall>(state, rpc, reply);
  call->Begin();
  return call.get();
}

}  // namespace blockd::server
