#include "server/transport/factor_stream.h"

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "blockd/v1/blockd.pb.h"
#include "server/transport/raw_message.h"
#include "server/transport/upload_pace.h"
#include "server/transport/wire.h"

namespace blockd::server {
namespace {

// Reading (header, then chunks) -> in the core -> finished. Each message is handled by a task, one
// after another, and the next is read after it. A cancellation, or the look at the pace, may come
// meanwhile: each holds the mutex and looks whether the call is finished. A task works on the
// message without the mutex, with the upload in its own hands, and looks again afterwards.
class FactorStreamCall final : public ServerCall {
 public:
  FactorStreamCall(ServiceState* state, std::unique_ptr<IncomingCall> incoming)
      : ServerCall(&state->tracker, std::move(incoming)),
        state_(state),
        record_(state, Method::kFactorStream, rpc()),
        pace_(Limits(0), absl::Now()) {}

 private:
  // What a message has changed; the task's own while it works.
  struct Taken {
    std::unique_ptr<FactorUpload> upload;
    std::optional<FactorReply> found;
    int64_t bytes = 0;
    std::optional<Shape> shape;
    int64_t systems = 0;
  };

  UploadLimits Limits(int64_t bytes_per_second) const {
    return {.idle_timeout = state_->options.stream_idle_timeout,
            .bytes_per_second = bytes_per_second,
            .max_duration = state_->options.max_upload_duration};
  }

  void OnBegin() override {
    absl::MutexLock lock(&mutex_);
    absl::Status status = record_.allowed();
    status.Update(state_->CheckAcceptsWork());
    if (!status.ok()) return End(status);
    WatchMe();
    ReadNext();
  }

  void OnRead(bool ok) override {
    came_ = ok;
    {
      absl::MutexLock lock(&mutex_);
      pace_.Came(absl::Now());
    }
    state_->work.Post(Shared(shared_from_this(), &handle_task_));
  }

  void OnCancel() override {
    state_->core->Cancel(*record_.context());  // which may answer at once, from within the call
    absl::MutexLock lock(&mutex_);
    if (!in_core_ && !finished_) End(CancellationOf(*record_.context()));
  }

  void OnLook(absl::Time now) override {
    absl::MutexLock lock(&mutex_);
    if (in_core_ || finished_) return;
    if (absl::Status status = pace_.Check(now); !status.ok()) End(status);
  }

  void OnDone() override {
    {
      // A cancellation looks like the end of the stream until gRPC has said which it was. And what
      // the caller saw counts: an answer that never went out is none.
      absl::MutexLock lock(&mutex_);
      if (rpc()->IsCancelled() && (cut_short_ || record_.status().ok())) {
        record_.SetOutcome(CancellationOf(*record_.context()));
      }
    }
    record_.Publish();
  }

  void OnFailure(const absl::Status& status) override {
    absl::MutexLock lock(&mutex_);
    if (!finished_) End(status);
  }

  void ReadNext() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    message().Clear();
    pace_.Wait(absl::Now());
    Read();
  }

  // ------------------------------------------------------------------------------ what has come in

  void HandleMessage() noexcept {
    Guard([this] { came_ ? OnMessage() : OnEndOfStream(); });
  }

  void OnMessage() {
    Taken taken;
    {
      absl::MutexLock lock(&mutex_);
      if (finished_) return;
      taken.upload = std::move(upload_);
    }
    absl::Status status = TakeMessage(&taken);
    absl::MutexLock lock(&mutex_);
    if (finished_) return;  // which drops the upload
    if (taken.shape.has_value()) record_.SetShape(*taken.shape, taken.systems);
    if (!status.ok()) {
      taken.upload.reset();  // who is told finds everything back
      return End(status);
    }
    if (taken.found.has_value()) return Answer(*taken.found);
    if (!has_header_) {
      has_header_ = true;
      pace_ = UploadPace(Limits(state_->options.min_upload_bytes_per_second), absl::Now());
    }
    pace_.Count(taken.bytes);
    upload_ = std::move(taken.upload);
    ReadNext();
  }

  // A header that begins an upload, or finds what is held; or a chunk of so many bytes.
  absl::Status TakeMessage(Taken* taken) {
    if (absl::Status status = state_->CheckMessageSize(message()); !status.ok()) return status;
    std::optional<StreamPart> part =
        ScanStreamPart(&message(), 0, v1::FactorStreamRequest::kChunkFieldNumber);
    if (!part.has_value()) {
      return InvalidFieldError("", "bytes that are not the request's message",
                               "a blockd.v1.FactorStreamRequest");
    }
    if (part->beside_chunk) {
      return InvalidFieldError("part", "a chunk and something else", "one part in a message");
    }
    if (part->is_chunk) {
      taken->bytes = part->chunk_bytes;
      return TakeChunk(*part, taken->upload.get());
    }
    Reservation host_bytes;
    v1::FactorStreamRequest request;
    if (absl::Status status =
            state_->Parse(message(), record_.context()->tenant, &request, &host_bytes);
        !status.ok()) {
      return status;
    }
    if (!request.has_header()) {
      return InvalidFieldError("part", "nothing", taken->upload == nullptr ? "header" : "chunk");
    }
    if (taken->upload != nullptr) return InvalidFieldError("header", "a second header", "chunk");
    return TakeHeader(request.header(), taken);
  }

  absl::Status TakeHeader(const v1::FactorStreamHeader& header, Taken* taken) {
    absl::StatusOr<MatrixForm> form = ToForm(header.spec());
    if (!form.ok()) return form.status();
    taken->shape = form->shape;
    taken->systems = header.num_systems();
    if (header.num_systems() < 1) {
      return InvalidFieldError("num_systems", absl::StrCat(header.num_systems()), "at least 1");
    }
    absl::StatusOr<FactorParams> params =
        ToFactorParams(*form, header.num_systems(), header.options());
    if (!params.ok()) return params.status();
    absl::Status status =
        ReadPriority("options.priority", header.options().priority(), record_.context().get());
    if (!status.ok()) return status;
    auto begun = state_->core->BeginUpload(record_.context(), *params, DiagonalIndex(header.spec()),
                                           CouplingIndex(header.spec()));
    if (!begun.ok()) return begun.status();
    if (auto* held = std::get_if<FactorReply>(&*begun)) {
      taken->found = std::move(*held);
    } else {
      taken->upload = std::get<std::unique_ptr<FactorUpload>>(std::move(*begun));
    }
    return absl::OkStatus();
  }

  static absl::Status TakeChunk(const StreamPart& part, FactorUpload* upload) {
    if (upload == nullptr) return InvalidFieldError("chunk", "a chunk", "a header first");
    for (std::span<const std::byte> piece : part.pieces) {
      if (absl::Status status = upload->Write(piece); !status.ok()) return status;
    }
    return absl::OkStatus();
  }

  void OnEndOfStream() {
    std::unique_ptr<FactorUpload> complete;
    {
      absl::MutexLock lock(&mutex_);
      if (finished_) return;
      cut_short_ = upload_ == nullptr || upload_->received_bytes() < upload_->expected_bytes();
      if (upload_ == nullptr) {
        return End(InvalidFieldError("header", "the end of the stream", "a header first"));
      }
      in_core_ = true;
      complete = std::move(upload_);
    }
    // Without the mutex, since the core may answer at once, from within the call.
    state_->core->FinishUpload(std::move(complete),
                               [self = std::static_pointer_cast<FactorStreamCall>(
                                    shared_from_this())](absl::StatusOr<FactorReply> reply) {
                                 self->reply_ = std::move(reply);
                                 if (IsTransportThread()) return self->AnswerNow();
                                 self->state_->replies.Post(Shared(self, &self->answer_task_));
                               });
  }

  // -------------------------------------------------------------------------------- what goes out

  void AnswerNow() noexcept {
    Guard([this] {
      absl::MutexLock lock(&mutex_);
      if (finished_) return;
      if (!reply_.ok()) return End(reply_.status());
      Answer(*reply_);
    });
  }

  void Answer(const FactorReply& reply) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    record_.SetCost(reply.cost);
    v1::FactorReply wire;
    ToWire(reply, &wire);
    const grpc::ByteBuffer bytes = SerializeMessage(wire);
    EchoIds(*record_.context(), rpc());
    record_.SetOutcome(absl::OkStatus());
    finished_ = true;
    WriteAndFinish(bytes);
  }

  void End(const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    finished_ = true;
    upload_.reset();  // gives the reservation back now, not when the transport is done
    record_.SetOutcome(status);
    Finish(FailBeforeAnswer(status, *record_.context(), rpc()));
  }

  ServiceState* const state_;
  bool came_ = false;  // the message; else the end of the stream
  absl::StatusOr<FactorReply> reply_ = absl::UnknownError("");
  MemberTask<FactorStreamCall, &FactorStreamCall::HandleMessage> handle_task_{this};
  MemberTask<FactorStreamCall, &FactorStreamCall::AnswerNow> answer_task_{this};

  absl::Mutex mutex_;
  CallRecord record_;
  UploadPace pace_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<FactorUpload> upload_ ABSL_GUARDED_BY(mutex_);
  bool has_header_ ABSL_GUARDED_BY(mutex_) = false;
  bool cut_short_ ABSL_GUARDED_BY(mutex_) = false;  // the stream ended before the matrix was whole
  bool in_core_ ABSL_GUARDED_BY(mutex_) = false;
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace

std::shared_ptr<ServerCall> MakeFactorStream(ServiceState* state,
                                             std::unique_ptr<IncomingCall> incoming) {
  return std::make_shared<FactorStreamCall>(state, std::move(incoming));
}

}  // namespace blockd::server
