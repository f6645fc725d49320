#include "server/transport/calls/smooth.h"

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <optional>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "blockd/v1/blockd.pb.h"
#include "server/base/steady_time.h"
#include "server/core/common/smooth_request.h"
#include "server/transport/rpc/chunked_reply.h"
#include "server/transport/upload/upload_pace.h"
#include "server/transport/wire/raw_message.h"
#include "server/transport/wire/smooth_wire.h"
#include "server/transport/wire/split_message.h"
#include "server/transport/wire/wire.h"

namespace blockd::server {
namespace {

// The memory of what comes begins with so much, and doubles: who sends nothing takes no more.
constexpr int64_t kFirstBytes = int64_t{1} << 20;

std::span<double> AsDoubles(std::span<std::byte> bytes) {
  return {reinterpret_cast<double*>(bytes.data()), bytes.size() / sizeof(double)};
}

// Bytes that grow. Large ones are not copied: the system moves their pages.
class Arrived {
 public:
  int64_t bytes() const { return bytes_; }
  std::span<std::byte> span() const { return {data_.get(), static_cast<size_t>(bytes_)}; }
  absl::Status Grow(int64_t bytes) {
    void* const grown = std::realloc(data_.get(), static_cast<size_t>(bytes));
    if (grown == nullptr) {
      return absl::ResourceExhaustedError(absl::StrCat("no ", bytes, " bytes of host memory"));
    }
    static_cast<void>(data_.release());
    data_.reset(static_cast<std::byte*>(grown));
    bytes_ = bytes;
    return absl::OkStatus();
  }

 private:
  struct Free {
    void operator()(std::byte* data) const { std::free(data); }
  };
  std::unique_ptr<std::byte, Free> data_;
  int64_t bytes_ = 0;
};

// Work that the core has done here.
class Posted final : public Executor::Task {
 public:
  explicit Posted(absl::AnyInvocable<void()> work) : work_(std::move(work)) {}
  void Run() noexcept override { work_(); }

 private:
  absl::AnyInvocable<void()> work_;
};

// Reading (header, then chunks) -> in the core -> answering, or failed. Each message is handled by
// a task, which then lets the next be read.
class SmoothCall final : public ServerCall {
 public:
  SmoothCall(ServiceState* state, std::unique_ptr<IncomingCall> incoming)
      : ServerCall(&state->tracker, std::move(incoming)),
        state_(state),
        record_(state, Method::kSmooth, rpc()),
        pace_(Limits(0), SteadyNow()) {}

 private:
  std::shared_ptr<SmoothCall> Self() {
    return std::static_pointer_cast<SmoothCall>(shared_from_this());
  }
  SolverCore& core() { return *state_->core; }
  UploadLimits Limits(int64_t bytes_per_second) const {
    return {.idle_timeout = state_->options.stream_idle_timeout,
            .bytes_per_second = bytes_per_second,
            .max_duration = state_->options.max_upload_duration};
  }

  void OnBegin() override {
    absl::Status status = record_.allowed();
    status.Update(state_->CheckAcceptsWork());
    absl::MutexLock lock(&mutex_);
    if (!status.ok()) return End(status);
    WatchMe();
    ReadNext();
  }

  void OnRead(bool ok) override {
    came_ = ok;
    {
      absl::MutexLock lock(&mutex_);
      pace_.Came(SteadyNow());
      is_whole_ = !ok;
    }
    state_->copies.Post(Shared(shared_from_this(), &handle_task_));
  }

  void OnLook(absl::Time now) override {
    absl::MutexLock lock(&mutex_);
    if (ended_ || is_whole_) return;
    if (absl::Status status = pace_.Check(now); !status.ok()) End(status);
  }

  void OnCancel() override {
    core().Cancel(*record_.context());  // which may answer at once, from within the call
    absl::MutexLock lock(&mutex_);
    if (!in_core_) End(CancellationOf(*record_.context()));
  }

  void OnFailure(const absl::Status& status) override {
    absl::MutexLock lock(&mutex_);
    End(status);
  }

  void OnDone() override {
    {
      absl::MutexLock lock(&mutex_);
      // The outcome is the one that the caller saw: an answer that never went out is none.
      if (rpc()->IsCancelled()) record_.SetOutcome(CancellationOf(*record_.context()));
    }
    record_.Publish();
  }

  void ReadNext() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (ended_) return;
    message().Clear();
    pace_.Wait(SteadyNow());
    Read();
  }

  // ------------------------------------------------------------------------------ what has come in

  void HandleMessage() noexcept {
    Guard([this] {
      const absl::Status status = came_ ? TakeMessage() : Start();
      absl::MutexLock lock(&mutex_);
      if (!status.ok()) return End(status);
      if (came_) ReadNext();
    });
  }

  absl::Status TakeMessage() {
    if (absl::Status status = state_->CheckMessage(message()); !status.ok()) {
      return status;
    }
    v1::SmoothRequest request;
    const absl::StatusOr<SplitMessage> split =
        SplitPart(&message(), request,
                  {.field = v1::SmoothRequest::kChunkFieldNumber,
                   .whole = v1::SmoothRequest::kHeaderFieldNumber},
                  /*max_rest=*/0);
    if (!split.ok()) return split.status();
    if (split->part == v1::SmoothRequest::kChunkFieldNumber) return TakeChunk(*split);
    Reservation host_bytes;
    absl::Status status = state_->Parse(message(), *record_.context(), &request, &host_bytes);
    if (!status.ok()) return status;
    if (!request.has_header()) {
      return InvalidFieldError("part", "nothing", layout_ ? "chunk" : "header");
    }
    if (layout_) return InvalidFieldError("header", "a second header", "chunk");
    return TakeHeader(request.header());
  }

  absl::Status TakeHeader(const v1::SmoothHeader& header) {
    absl::StatusOr<SmoothLayout> layout = SmoothLayout::Of(header);
    if (!layout.ok()) return layout.status();
    absl::Status status = ReadPriority("header.options.priority", header.options().priority(),
                                       record_.context().get());
    status.Update(
        CheckSmoothHeader(layout->params(), layout->kept(), *record_.context(), core().limits()));
    if (!status.ok()) return status;
    // Said before the bytes come, if there is no room for them, or never any for the answer beside
    // them. Nothing is reserved, not even for a moment: others may ask meanwhile.
    const int64_t least_results =
        SmoothSizesOf(layout->params(), 1).total() * static_cast<int64_t>(sizeof(double));
    status.Update(core().host().CheckEverFits(least_results, layout->bytes()));
    status.Update(core().host().Check(record_.context()->tenant, layout->bytes()));
    if (!status.ok()) return status;
    layout_ = *std::move(layout);
    absl::MutexLock lock(&mutex_);
    if (ended_) return absl::OkStatus();  // the record is published, or soon will be
    record_.SetShape({layout_->num_steps(), layout_->state_size(), Scalar::kFloat64},
                     layout_->num_series());
    pace_ = UploadPace(Limits(state_->options.min_upload_bytes_per_second), SteadyNow());
    return absl::OkStatus();
  }

  absl::Status TakeChunk(const SplitMessage& part) {
    if (!layout_) return InvalidFieldError("chunk", "a chunk", "a header first");
    const int64_t end = came_bytes_ + part.bytes;
    if (end > layout_->bytes()) {
      return InvalidFieldError("chunk", absl::StrCat("at least ", end, " bytes"),
                               absl::StrCat(layout_->bytes(), " bytes in all"));
    }
    if (absl::Status status = MakeRoom(end); !status.ok()) return status;
    CopyPieces(part.pieces, values_.span().data() + came_bytes_);
    came_bytes_ = end;
    if (came_bytes_ >= kAskingBytes) SetAsks(true);
    absl::MutexLock lock(&mutex_);
    pace_.Count(part.bytes);
    return absl::OkStatus();
  }

  absl::Status MakeRoom(int64_t bytes) {
    if (bytes <= values_.bytes()) return absl::OkStatus();
    const int64_t more =
        std::min(std::max({bytes, 2 * values_.bytes(), kFirstBytes}), layout_->bytes());
    Reservation taken;
    absl::Status status =
        core().host().Extend(record_.context()->tenant, more - values_.bytes(), &taken);
    if (status.ok()) status = values_.Grow(more);
    if (status.ok()) values_bytes_.Merge(std::move(taken));
    return status;
  }

  absl::StatusOr<MeasuredSmooth> Measure() {
    return MeasureSmooth(layout_->Bind(AsDoubles(values_.span())), core().limits());
  }

  absl::Status Start() {
    if (!layout_) return InvalidFieldError("header", "the end of the stream", "a header first");
    if (came_bytes_ < layout_->bytes()) {
      return InvalidFieldError("chunk", absl::StrCat(came_bytes_, " bytes"),
                               absl::StrCat(layout_->bytes(), " bytes in all"));
    }
    const absl::StatusOr<MeasuredSmooth> measured = Measure();
    if (!measured.ok()) return measured.status();
    sizes_ = measured->sizes;
    const int64_t bytes = sizes_.total() * static_cast<int64_t>(sizeof(double));
    const TenantPtr& tenant = record_.context()->tenant;
    absl::Status status = core().host().Extend(tenant, bytes, &results_bytes_);
    status.Update(core().host().Extend(tenant, sizes_.work_bytes, &work_bytes_));
    if (!status.ok()) return status;
    absl::StatusOr<Payload> results = Payload::Allocate(bytes, core().host_memory());
    if (!results.ok()) return results.status();
    results_ = *std::move(results);
    {
      absl::MutexLock lock(&mutex_);
      if (ended_) return absl::OkStatus();
      in_core_ = true;
    }
    // Without the mutex, since the core may answer at once, from within the call.
    core().Smooth(
        record_.context(), *measured, layout_->kept(),
        CutResults(sizes_, AsDoubles(results_.span())),
        [state = state_](absl::AnyInvocable<void()> work) {
          state->work.Post(std::make_shared<Posted>(std::move(work)));
        },
        [self = Self()](absl::StatusOr<std::shared_ptr<PendingSmooth>> smoothed) {
          self->smoothed_ = std::move(smoothed);
          self->state_->work.Post(Shared(self, &self->answer_task_));
        });
    return absl::OkStatus();
  }

  // -------------------------------------------------------------------------------- what goes out

  void AnswerNow() noexcept {
    Guard([this] {
      v1::SmoothReply head;
      Cost cost;
      absl::Status status = smoothed_.status();
      if (status.ok()) {
        const absl::StatusOr<SmoothReply> reply = (*smoothed_)->Finish();
        status = reply.status();
        if (reply.ok()) {
          cost = reply->cost;
          ToWire(*reply, sizes_, head.mutable_head());
        }
      }
      smoothed_ = absl::UnknownError("");
      values_ = {};
      work_bytes_.Reset();
      values_bytes_.Reset();
      absl::MutexLock lock(&mutex_);
      in_core_ = false;
      if (ended_) return;
      if (!status.ok()) return End(status);
      record_.SetCost(cost);
      EchoIds(*record_.context(), rpc());
      writer_.emplace(SerializeMessage(head), v1::SmoothReply::kChunkFieldNumber, results_);
      WriteNext();
    });
  }

  void OnWritten(bool ok) override {
    absl::MutexLock lock(&mutex_);
    if (ended_) return;
    ok ? WriteNext() : End(CancellationOf(*record_.context()));
  }

  void WriteNext() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const bool last = writer_->is_last();
    const grpc::ByteBuffer bytes = writer_->Next();
    if (!last) return Write(bytes);
    ended_ = true;
    record_.SetOutcome(absl::OkStatus());
    WriteAndFinish(bytes);
  }

  void End(const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (std::exchange(ended_, true)) return;
    record_.SetOutcome(status);
    Finish(FailBeforeAnswer(status, *record_.context(), rpc()));
  }

  ServiceState* const state_;
  bool came_ = false;                                      // a message; else the end of the stream
  Reservation values_bytes_, results_bytes_, work_bytes_;  // go after what they are for
  absl::StatusOr<std::shared_ptr<PendingSmooth>> smoothed_ = absl::UnknownError("");
  MemberTask<SmoothCall, &SmoothCall::HandleMessage> handle_task_{this};
  MemberTask<SmoothCall, &SmoothCall::AnswerNow> answer_task_{this};
  // Used by one task at a time.
  std::optional<SmoothLayout> layout_;
  Arrived values_;
  Payload results_;
  int64_t came_bytes_ = 0;
  SmoothSizes sizes_;
  std::optional<ChunkedReply> writer_;

  absl::Mutex mutex_;
  CallRecord record_;
  UploadPace pace_ ABSL_GUARDED_BY(mutex_);
  bool is_whole_ ABSL_GUARDED_BY(mutex_) = false;  // all messages have come
  bool in_core_ ABSL_GUARDED_BY(mutex_) = false;
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace

std::shared_ptr<ServerCall> MakeSmooth(ServiceState* state,
                                       std::unique_ptr<IncomingCall> incoming) {
  return std::make_shared<SmoothCall>(state, std::move(incoming));
}

}  // namespace blockd::server
