#include "server/transport/calls/factor_stream.h"

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "blockd/v1/blockd.pb.h"
#include "server/base/steady_time.h"
#include "server/transport/upload/open_upload.h"
#include "server/transport/upload/upload_pace.h"
#include "server/transport/wire/raw_message.h"
#include "server/transport/wire/split_message.h"
#include "server/transport/wire/wire.h"

namespace blockd::server {
namespace {

// In the initial metadata of a stream that others may join now.
constexpr char kUploadKey[] = "blockd-upload";
constexpr char kOpen[] = "open";
constexpr size_t kUploadIdBytes = 16;
constexpr int kJoin[] = {v1::FactorStreamRequest::kJoinFieldNumber};
// The most bytes of a message that is neither a header nor a chunk.
constexpr int64_t kMaxJoinBytes = 64 << 10;
// While so much of a stream is being copied, no more is read from it.
constexpr int64_t kMostCopyingBytes = int64_t{8} << 20;

// The stream that begins an upload: reading (header, then chunks) -> in the core -> finished. Or
// one that joined: reading (join, then chunks, as often as it likes) -> finished.
//
// Each message is handled by a task. It takes the message and finds its place, then lets the next
// be read, and then copies: so several chunks are copied at once, by as many threads. Until the
// upload is staged the next is read after the copy. What becomes of the upload is said by
// OpenUpload, without the mutex: a cancellation, the look at the pace, or another stream may end it
// at any time, and whoever comes later looks whether the call is finished.
class FactorStreamCall final : public ServerCall, public OpenUpload::Stream {
 public:
  FactorStreamCall(ServiceState* state, std::unique_ptr<IncomingCall> incoming)
      : ServerCall(&state->tracker, std::move(incoming)),
        state_(state),
        record_(state, Method::kFactorStream, rpc()) {}

 private:
  UploadLimits Limits(int64_t bytes_per_second) const {
    return {.idle_timeout = state_->options.stream_idle_timeout,
            .bytes_per_second = bytes_per_second,
            .max_duration = state_->options.max_upload_duration};
  }
  std::shared_ptr<FactorStreamCall> Self() {
    return std::static_pointer_cast<FactorStreamCall>(shared_from_this());
  }

  void OnBegin() override {
    absl::MutexLock lock(&mutex_);
    accepts_work_ = state_->CheckAcceptsWork();
    absl::Status status = record_.allowed();
    // An upload that has begun may still be joined.
    if (state_->uploads.empty()) status.Update(accepts_work_);
    if (!status.ok()) return End(status);
    upload_ = std::make_shared<OpenUpload>(Limits(0), SteadyNow(), Self());
    WatchMe();
    ReadNext();
  }

  void OnRead(bool ok) override {
    came_ = ok;
    {
      absl::MutexLock lock(&mutex_);
      if (upload_ != nullptr && !joined_) upload_->Came(SteadyNow());
    }
    state_->copies.Post(Shared(shared_from_this(), &handle_task_));
  }

  void OnCancel() override {
    state_->core->Cancel(*record_.context());  // which may answer at once, from within the call
    const absl::Status status = CancellationOf(*record_.context());
    Fail(status, status);
  }

  void OnLook(absl::Time now) override {
    std::shared_ptr<OpenUpload> upload;
    {
      absl::MutexLock lock(&mutex_);
      // The bytes of a stream that joined count for the one that began the upload.
      if (finished_ || upload_ == nullptr || joined_) return;
      upload = upload_;
    }
    if (absl::Status status = upload->CheckPace(now); !status.ok()) upload->End(status);
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
    {
      absl::MutexLock lock(&mutex_);
      if (finished_) return;
      if (upload_ == nullptr) return End(status);
    }
    Fail(status, status);
  }

  // Ends the upload, and so this call, with `status`; `others` is what its other streams are told.
  void Fail(const absl::Status& status, const absl::Status& others) {
    std::shared_ptr<OpenUpload> upload;
    {
      absl::MutexLock lock(&mutex_);
      if (finished_ || upload_ == nullptr) return;
      own_status_.Update(status);
      upload = upload_;
    }
    upload->End(others);
  }

  void ReadNext() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    message().Clear();
    if (!joined_) upload_->Wait(SteadyNow());
    Read();
  }

  // ------------------------------------------------------------------------------ what has come in

  void HandleMessage() noexcept {
    Guard([this] { came_ ? OnMessage() : OnEndOfStream(); });
  }

  void OnMessage() {
    grpc::ByteBuffer bytes;  // the next is read while this one is copied
    std::shared_ptr<OpenUpload> upload;
    {
      absl::MutexLock lock(&mutex_);
      if (finished_) return;
      bytes.Swap(&message());
      upload = upload_;
    }
    const absl::Status status = TakeMessage(&bytes, upload.get());
    if (!status.ok()) Fail(status, status);
  }

  // A header that begins an upload, or finds what is held; a join; or a chunk.
  absl::Status TakeMessage(grpc::ByteBuffer* bytes, OpenUpload* upload) {
    if (absl::Status status = state_->CheckMessage(*bytes); !status.ok()) return status;
    v1::FactorStreamRequest request;
    const absl::StatusOr<SplitMessage> split =
        SplitPart(bytes, request,
                  {.field = v1::FactorStreamRequest::kChunkFieldNumber,
                   .others = kJoin,
                   .whole = v1::FactorStreamRequest::kHeaderFieldNumber},
                  kMaxJoinBytes);
    if (!split.ok()) return split.status();
    if (split->part == v1::FactorStreamRequest::kChunkFieldNumber) {
      if (!begun_) return InvalidFieldError("chunk", "a chunk", "a header first");
      return TakeChunk(*split, upload);
    }
    Reservation host_bytes;
    if (absl::Status status = state_->Parse(*bytes, *record_.context(), &request, &host_bytes);
        !status.ok()) {
      return status;
    }
    switch (request.part_case()) {
      case v1::FactorStreamRequest::kHeader:
        return begun_ ? InvalidFieldError("header", "a second header", "chunk")
                      : TakeHeader(request.header(), upload);
      case v1::FactorStreamRequest::kJoin:
        return begun_ ? TakeFurtherRange(request.join(), upload) : TakeJoin(request.join());
      default:
        return InvalidFieldError("part", "nothing", begun_ ? "chunk" : "header");
    }
  }

  absl::Status TakeHeader(const v1::FactorStreamHeader& header, OpenUpload* upload) {
    if (!accepts_work_.ok()) return accepts_work_;
    absl::StatusOr<MatrixForm> form = ToForm(header.spec());
    if (!form.ok()) return form.status();
    {
      absl::MutexLock lock(&mutex_);
      if (!finished_) record_.SetShape(form->shape, header.num_systems());
    }
    if (header.num_systems() < 1) {
      return InvalidFieldError("num_systems", absl::StrCat(header.num_systems()), "at least 1");
    }
    const size_t id_bytes = header.upload_id().size();
    if (id_bytes != 0 && id_bytes != kUploadIdBytes) {
      return InvalidFieldError("upload_id", absl::StrCat(id_bytes, " bytes"),
                               absl::StrCat(kUploadIdBytes, " bytes, or none"));
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
      absl::MutexLock lock(&mutex_);
      if (!finished_) Answer(*held);
      return absl::OkStatus();
    }
    begun_ = true;
    if (!upload->Start(std::get<std::unique_ptr<FactorUpload>>(std::move(*begun)),
                       Limits(state_->options.min_upload_bytes_per_second), SteadyNow())) {
      return absl::OkStatus();  // it is told
    }
    const std::string& id = header.upload_id();
    absl::MutexLock lock(&mutex_);
    if (finished_) return absl::OkStatus();
    if (!id.empty() && !state_->uploads.Add(record_.context()->caller, id, upload_)) {
      return InvalidFieldError("upload_id", "that of an upload under way", "16 random bytes");
    }
    id_ = id;
    ReadNext();
    return absl::OkStatus();
  }

  absl::Status TakeJoin(const v1::UploadJoin& join) {
    const auto upload = state_->uploads.Find(record_.context()->caller, join.upload_id());
    if (upload == nullptr) return NoSuchUpload();
    const absl::StatusOr<int> range = upload->Join(join.first_byte(), join.num_bytes(), Self());
    if (!range.ok()) return range.status();
    begun_ = joined_ = true;
    range_bytes_ = join.num_bytes();
    range_ = *range;
    {
      absl::MutexLock lock(&mutex_);
      if (!finished_ && upload_->Leave()) {
        upload_ = upload;
        ReadNext();
        return absl::OkStatus();
      }
    }
    upload->End(EndedEarly());  // nobody brings that range
    return absl::OkStatus();
  }

  // Joins a further range of the same upload. INVALID_ARGUMENT before all bytes of the previous
  // range are here.
  absl::Status TakeFurtherRange(const v1::UploadJoin& join, OpenUpload* upload) {
    if (!joined_) return InvalidFieldError("join", "a join after the first message", "chunk");
    {
      absl::MutexLock lock(&mutex_);
      const int64_t came = copied_bytes_ + copying_bytes_;
      if (came != range_bytes_) {
        return InvalidFieldError("join", absl::StrCat("a join after ", came, " bytes"),
                                 absl::StrCat(range_bytes_, " bytes on this stream before it"));
      }
    }
    if (state_->uploads.Find(record_.context()->caller, join.upload_id()).get() != upload) {
      return NoSuchUpload();
    }
    OpenUpload::Use use(upload);
    if (!use) return absl::OkStatus();  // it is told
    const absl::StatusOr<int> range = use->Join(join.first_byte(), join.num_bytes());
    if (!range.ok()) return range.status();
    range_ = *range;
    absl::MutexLock lock(&mutex_);
    range_bytes_ += join.num_bytes();
    if (!finished_) ReadNext();
    return absl::OkStatus();
  }

  static absl::Status EndedEarly() {
    return absl::CancelledError("a stream of the upload ended before its bytes had come");
  }

  absl::Status TakeChunk(const SplitMessage& part, OpenUpload* upload) {
    OpenUpload::Use use(upload);
    if (!use) return absl::OkStatus();  // it is told
    const absl::StatusOr<int64_t> place = use->Place(range_, part.pieces);
    if (!place.ok()) return place.status();
    upload->Count(part.bytes, SteadyNow());
    const bool staged = use->staged();
    if (staged) on_device_ = true;
    BeginCopy(part.bytes, /*read_on=*/staged);
    if (absl::Status status = use->WriteAt(*place, part.pieces); !status.ok()) {
      upload->End(status);  // while it is in use: its streams may have ended well meanwhile
      return status;
    }
    if (use->staged()) {
      if (!asks_.exchange(true)) SetAsks(true);
      if (!staged) SayOpen();
    }
    EndCopy(part.bytes);
    return absl::OkStatus();
  }

  void BeginCopy(int64_t bytes, bool read_on) {
    absl::MutexLock lock(&mutex_);
    ++copies_;
    copying_bytes_ += bytes;
    paused_ = !read_on || copying_bytes_ > kMostCopyingBytes;
    if (!paused_ && !finished_) ReadNext();
  }

  void EndCopy(int64_t bytes) {
    {
      absl::MutexLock lock(&mutex_);
      --copies_;
      copying_bytes_ -= bytes;
      copied_bytes_ += bytes;
      if (finished_) return;
      if (paused_ && copying_bytes_ <= kMostCopyingBytes) {
        paused_ = false;
        return ReadNext();
      }
      if (!at_end_ || copies_ > 0) return;
    }
    if (joined_) EndJoined();
  }

  void SayOpen() {
    absl::MutexLock lock(&mutex_);
    if (id_.empty() || finished_) return;
    EchoIds(*record_.context(), rpc());
    rpc()->AddInitialMetadata(kUploadKey, kOpen);
    greeted_ = true;
    Greet();
  }

  void OnEndOfStream() {
    std::shared_ptr<OpenUpload> upload;
    {
      absl::MutexLock lock(&mutex_);
      if (finished_) return;
      if (!begun_) {
        cut_short_ = true;
        return End(InvalidFieldError("header", "the end of the stream", "a header first"));
      }
      at_end_ = true;
      if (joined_ && copies_ > 0) return;  // the last one goes on
      upload = upload_;
    }
    joined_ ? EndJoined() : upload->Finish();
  }

  void EndJoined() {
    int64_t copied;
    {
      absl::MutexLock lock(&mutex_);
      if (finished_) return;
      copied = copied_bytes_;
      if (copied == range_bytes_) return Answer(FactorReply());
      cut_short_ = true;
    }
    Fail(InvalidFieldError("chunk", absl::StrCat(copied, " bytes"),
                           absl::StrCat(range_bytes_, " bytes on this stream")),
         EndedEarly());
  }

  // -------------------------------------------------------------------- what becomes of the upload

  void OnUploadWhole(std::unique_ptr<FactorUpload> upload) noexcept override {
    Guard([&] {
      {
        absl::MutexLock lock(&mutex_);
        Forget();
        if (finished_) return;
        cut_short_ = upload->received_bytes() < upload->expected_bytes();
      }
      // Without the mutex, since the core may answer at once, from within the call.
      state_->core->FinishUpload(std::move(upload),
                                 [self = Self()](absl::StatusOr<FactorReply> reply) {
                                   self->reply_ = std::move(reply);
                                   self->state_->replies.RunOrPost(
                                       /*here=*/false, Shared(self, &self->answer_task_));
                                 });
    });
  }

  void OnUploadEnded(const absl::Status& status) noexcept override {
    Guard([&] {
      absl::MutexLock lock(&mutex_);
      Forget();
      if (!finished_) End(own_status_.ok() ? status : own_status_);
    });
  }

  void Forget() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (!id_.empty()) state_->uploads.Remove(record_.context()->caller, id_);
    upload_.reset();
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
    if (!greeted_) EchoIds(*record_.context(), rpc());
    record_.SetOutcome(absl::OkStatus());
    finished_ = true;
    WriteAndFinish(bytes);
  }

  void End(const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    finished_ = true;
    record_.SetOutcome(status);
    Finish(greeted_ ? FinalStatus(status, rpc())
                    : FailBeforeAnswer(status, *record_.context(), rpc()));
  }

  ServiceState* const state_;
  bool came_ = false;  // the message; else the end of the stream
  absl::StatusOr<FactorReply> reply_ = absl::UnknownError("");
  MemberTask<FactorStreamCall, &FactorStreamCall::HandleMessage> handle_task_{this};
  MemberTask<FactorStreamCall, &FactorStreamCall::AnswerNow> answer_task_{this};
  // As they are once the first message was taken.
  absl::Status accepts_work_;
  bool begun_ = false;  // by a header or a join
  std::atomic<bool> joined_ = false;
  std::atomic<bool> on_device_ = false;  // a chunk of it: others go there too, and that is all
  std::atomic<bool> asks_ = false;
  int range_ = FactorUpload::kFirstRange;
  int64_t range_bytes_ = 0;  // of all its ranges, if it joined

  absl::Mutex mutex_;
  CallRecord record_;
  std::shared_ptr<OpenUpload> upload_ ABSL_GUARDED_BY(mutex_);  // null: no more
  std::string id_ ABSL_GUARDED_BY(mutex_);                      // by which others find it, if set
  absl::Status own_status_ ABSL_GUARDED_BY(mutex_);             // if it ended the upload itself
  int copies_ ABSL_GUARDED_BY(mutex_) = 0;                      // of chunks, under way
  int64_t copying_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t copied_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  bool paused_ ABSL_GUARDED_BY(mutex_) = false;  // a copy reads on at its end
  bool at_end_ ABSL_GUARDED_BY(mutex_) = false;
  bool greeted_ ABSL_GUARDED_BY(mutex_) = false;
  bool cut_short_ ABSL_GUARDED_BY(mutex_) = false;  // the stream ended before its bytes had come
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace

std::shared_ptr<ServerCall> MakeFactorStream(ServiceState* state,
                                             std::unique_ptr<IncomingCall> incoming) {
  return std::make_shared<FactorStreamCall>(state, std::move(incoming));
}

}  // namespace blockd::server
