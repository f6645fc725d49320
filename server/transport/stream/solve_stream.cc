#include "server/transport/stream/solve_stream.h"

#include <algorithm>
#include <deque>
#include <new>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "blockd/v1/blockd.pb.h"
#include "server/base/steady_time.h"
#include "server/core/common/errors.h"
#include "server/transport/stream/stream_item.h"
#include "server/transport/stream/stream_reply.h"
#include "server/transport/stream/stream_request.h"
#include "server/transport/upload/upload_pace.h"
#include "server/transport/wire/raw_message.h"
#include "server/transport/wire/wire.h"

namespace blockd::server {
namespace {

constexpr size_t kMaxRefused = 1024;

using Item = StreamItem;
using ItemPtr = StreamItemPtr;

// A message on its way out, or a solution of which the first `sent` bytes are.
struct Outgoing {
  ItemPtr item;                          // null: nothing is held for it any more
  std::optional<grpc::ByteBuffer> head;  // goes first
  int64_t sent = 0;
  int64_t left = 0;  // of the solution, in chunks
};

class SolveStreamCall final : public ServerCall, public DrainableStream {
 public:
  SolveStreamCall(ServiceState* state, std::unique_ptr<IncomingCall> incoming)
      : ServerCall(&state->tracker, std::move(incoming)),
        state_(state),
        record_(state, Method::kSolveStream, rpc()),
        pace_(Limits(), SteadyNow()) {}

  void OnDrain() override {
    Guard([this] {
      absl::MutexLock lock(&mutex_);
      draining_ = true;
      if (!finished_) Advance();
    });
  }

  void OnAnswered(const ItemPtr& item) noexcept {
    Guard([&] {
      const bool in_chunks = item->status.ok() && item->bytes > state_->options.stream_chunk_bytes;
      Outgoing answer{item, item->AnswerMessage(in_chunks), 0, in_chunks ? item->bytes : 0};
      absl::MutexLock lock(&mutex_);
      if (--running_ == 0) SetAsks(false);
      item->record.SetOutcome(item->status);
      item->record.Publish();
      item->answered = true;
      if (finished_) return;
      outgoing_.push_back(std::move(answer));
      Advance();
    });
  }

 private:
  UploadLimits Limits() const {
    return {.idle_timeout = state_->options.stream_idle_timeout,
            .bytes_per_second = state_->options.min_upload_bytes_per_second};
  }

  void OnBegin() override {
    auto self = std::static_pointer_cast<SolveStreamCall>(shared_from_this());
    // A drain that begins meanwhile ends the stream, and must find it greeted.
    absl::MutexLock lock(&mutex_);
    tracker()->Add(this, std::weak_ptr<DrainableStream>(self));
    WatchMe();
    if (!record_.allowed().ok()) return End(record_.allowed());
    draining_ = tracker()->draining();
    EchoIds(*record_.context(), rpc());
    Greet();  // a client that waits to be greeted learns that the stream stands
    Advance();
  }

  void OnRead(bool ok) override {
    {
      absl::MutexLock lock(&mutex_);
      pace_.Came(SteadyNow());
      handling_ = ok;
      if (!ok) {
        reading_ = false;
        if (finished_) return;
        OnEndOfRequests();
        return Advance();
      }
    }
    if (message().Length() <= kShortMessageBytes) return HandleMessage(/*may_take_long=*/false);
    state_->work.Post(Shared(shared_from_this(), &handle_task_));
  }

  void OnWritten(bool ok) override {
    absl::MutexLock lock(&mutex_);
    writing_ = false;
    if (finished_) return;
    if (!ok) return End(CancellationOf(*record_.context()));
    const Outgoing& out = outgoing_.front();
    if (out.left == 0) {
      if (out.item != nullptr) held_bytes_ -= out.item->held_bytes();
      outgoing_.pop_front();
    }
    Advance();
  }

  void OnCancel() override { OnFailure(CancellationOf(*record_.context())); }

  void OnDone() override {
    tracker()->Remove(this);
    // A cancellation looks like the end of the requests until gRPC has said which it was.
    absl::MutexLock lock(&mutex_);
    if (end_.ok() && rpc()->IsCancelled()) end_ = CancellationOf(*record_.context());
    record_.SetOutcome(end_);
    if (!end_.ok()) record_.Publish();
  }

  void OnFailure(const absl::Status& status) override {
    absl::MutexLock lock(&mutex_);
    if (!finished_) End(status);
  }

  // Only requests that are still arriving can be late; the stream itself may be silent.
  void OnLook(absl::Time now) override {
    absl::MutexLock lock(&mutex_);
    if (finished_ || !reading_) return;
    const absl::Status pace = pace_.Check(now);
    for (const ItemPtr& item : Arriving()) {
      absl::Status status = pace;
      if (now - item->start >= state_->options.max_upload_duration) {
        status = absl::DeadlineExceededError(absl::StrCat(
            "not complete after ", absl::FormatDuration(state_->options.max_upload_duration),
            " (--max_upload_duration)"));
      }
      if (SteadyNow() >= item->context().deadline) status = CancellationOf(item->context());
      if (!status.ok()) Drop(item, status);
      if (refused_.size() > kMaxRefused) return End(status);
    }
    Advance();
  }

  // -------------------------------------------------------------------------------- what comes in

  void HandleLongMessage() noexcept { HandleMessage(/*may_take_long=*/true); }

  void HandleMessage(bool may_take_long) noexcept {
    Guard([&] {
      absl::StatusOr<StreamMessage> read = Receive();
      if (read.ok() && read->part == v1::SolveStreamRequest::kRefactorFieldNumber) {
        if (!may_take_long) return state_->work.Post(Shared(shared_from_this(), &handle_task_));
        TakeRefactor(*read);
      }
      ItemPtr ready;
      {
        absl::MutexLock lock(&mutex_);
        if (finished_) return;
        if (!read.ok()) return End(read.status());
        absl::StatusOr<ItemPtr> item = Take(*read);
        if (!item.ok()) return End(item.status());
        ready = copying_ = *std::move(item);
      }
      // Without the mutex: the bytes of a request that is arriving are this task's alone.
      if (ready != nullptr) ready->Copy(*read);
      {
        absl::MutexLock lock(&mutex_);
        copying_.reset();
        reading_ = handling_ = false;
        if (finished_) return;
        message().Clear();
        if (ready != nullptr && !Arrived(*ready, *read)) ready.reset();
        Advance();
      }
      // Without the mutex, since the core may answer at once, from within the call.
      if (ready != nullptr) Run(ready);
    });
  }

  absl::StatusOr<StreamMessage> Receive() {
    if (absl::Status status = state_->CheckMessage(message()); !status.ok()) {
      return status;
    }
    const RequestContext& context = *record_.context();
    absl::StatusOr<StreamMessage> read =
        ReadStreamMessage(&message(), StopsReading(message(), context));
    if (!read.ok() || read->unparsed.empty()) return read;
    // Without its id nobody can be told that it is refused: the stream ends.
    absl::Status status =
        state_->Parse(AsBuffer(read->unparsed), context, &read->request, &read->parsed_bytes);
    if (!status.ok()) return status;
    read->id = read->request.id();
    return read;
  }

  // A fault of the frame is the frame's own, and so is a lack of memory for it.
  void TakeRefactor(StreamMessage& read) {
    try {
      read.refusal = ReadRefactor(read);
    } catch (const std::bad_alloc&) {
      read.refusal = absl::ResourceExhaustedError("no memory on the host for this request");
    }
  }
  absl::Status ReadRefactor(StreamMessage& read) {
    if (absl::Status status = state_->CheckAcceptsWork(); !status.ok()) return status;
    absl::Status status =
        state_->Parse(message(), *record_.context(), &read.request, &read.parsed_bytes);
    if (!status.ok()) return status;
    read.call = TakeCall(&read);
    status = read.call->Read({});
    read.bytes = read.call->bytes();
    return WithinPart(read.part, status);
  }

  // The item that the message has bytes for, if it is not refused; an error ends the stream.
  absl::StatusOr<ItemPtr> Take(StreamMessage& message) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    switch (message.part) {
      case v1::SolveStreamRequest::kChunkFieldNumber:
        return TakeChunk(message);
      case v1::SolveStreamRequest::kCancelFieldNumber:
        if (const auto found = items_.find(message.id); found != items_.end()) {
          Cancel(found->second, "the request was cancelled");
        }
        return ItemPtr();
      default:
        return TakeRequest(message);
    }
  }

  absl::StatusOr<ItemPtr> TakeRequest(StreamMessage& message)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (items_.contains(message.id)) {
      return InvalidFieldError("id", absl::StrCat(message.id),
                               "an id that no unanswered request of this stream has");
    }
    const absl::StatusOr<absl::Duration> timeout = TimeoutOf(message);
    const absl::Time deadline = SteadyNow() + timeout.value_or(absl::InfiniteDuration());
    auto item =
        std::make_shared<Item>(state_, ContextOfRequest(*record_.context(), deadline), message);
    item->context().may_run_here = ServesAlone();
    item->order = ++last_order_;
    refused_.erase(message.id);
    cancelled_.Remove(message.id);
    absl::Status status = timeout.ok() ? Accept(message, item.get()) : timeout.status();
    if (!status.ok()) {
      // Chunks of it may be on their way already.
      if (message.bytes == 0 && !item->is_frame()) refused_.insert(message.id);
      if (refused_.size() > kMaxRefused) return status;
      Refuse(*item, status);
      return ItemPtr();
    }
    if (message.request.replace_last()) ReplaceLast(*item->call->replaceable());
    if (arriving_++ == 0) pace_ = UploadPace(Limits(), item->start);
    items_.emplace(message.id, item);
    held_bytes_ += item->held_bytes();
    return message.bytes > 0 || !item->arriving() ? item : ItemPtr();
  }

  // Checks all that can be checked before the right-hand sides are here, and takes memory for them.
  absl::Status Accept(StreamMessage& message, Item* item) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    absl::Status status = state_->CheckAcceptsWork();  // the stream may not have been told yet
    status.Update(message.refusal);
    if (status.ok()) status = item->Read(message);
    if (status.ok()) status = CheckRoom(item->held_bytes());
    return status.ok() ? item->TakeMemory(message) : status;
  }

  absl::Status CheckRoom(int64_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const ServerOptions& options = state_->options;
    if (bytes > options.max_stream_bytes) {
      return LimitExceededError("a request of a stream", {.limit = "max_stream_bytes",
                                                          .asked_bytes = bytes,
                                                          .limit_bytes = options.max_stream_bytes});
    }
    if (static_cast<int64_t>(items_.size()) >= options.max_stream_requests ||
        held_bytes_ > options.max_stream_bytes - bytes) {
      return RetryAfterError("the stream holds as many requests or bytes as it may",
                             options.core.retry_delay);
    }
    return absl::OkStatus();
  }

  absl::StatusOr<ItemPtr> TakeChunk(const StreamMessage& message)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (message.bytes == 0 || refused_.contains(message.id) || cancelled_.Contains(message.id)) {
      return ItemPtr();
    }
    const auto found = items_.find(message.id);
    // The same for a request that is whole as for one that is answered, which it may be by now.
    if (found == items_.end() || !found->second->arriving()) {
      return InvalidFieldError("id", absl::StrCat(message.id),
                               "the id of a request whose right-hand sides are not complete");
    }
    const ItemPtr item = found->second;
    const int64_t missing = item->bytes - item->received;
    if (message.bytes > missing) {
      return InvalidFieldError(
          "chunk", absl::StrCat(message.bytes, " bytes for id ", message.id),
          absl::StrCat("at most the ", missing, " that it still lacks of ", item->bytes));
    }
    absl::Status status = item->TakeRoom(item->received + message.bytes);
    if (status.ok()) return item;
    Drop(item, status);
    if (refused_.size() > kMaxRefused) return status;
    return ItemPtr();
  }

  // True if all of it is here now, and nobody has refused it meanwhile.
  bool Arrived(Item& item, const StreamMessage& message) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (message.part == v1::SolveStreamRequest::kChunkFieldNumber) pace_.Count(message.bytes);
    const auto found = items_.find(item.id);
    if (found == items_.end() || found->second.get() != &item) return false;
    item.received += message.bytes;
    if (item.arriving()) return false;
    --arriving_;
    if (running_++ == 0) SetAsks(true);
    return true;
  }

  // The items that wait for their client. An item whose bytes are here, on their way to their
  // place, does not.
  std::vector<ItemPtr> Arriving() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    std::vector<ItemPtr> arriving;
    for (const auto& [id, item] : items_) {
      if (item->arriving() && item != copying_) arriving.push_back(item);
    }
    return arriving;
  }

  void OnEndOfRequests() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    no_more_requests_ = true;
    for (const ItemPtr& item : Arriving()) {
      Drop(item, InvalidFieldError("chunk", absl::StrCat(item->received, " bytes before the end"),
                                   absl::StrCat(item->bytes, " bytes")));
    }
  }

  // As if the last unanswered request with this handle were cancelled now.
  void ReplaceLast(const Handle& handle) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    ItemPtr last;
    for (const auto& [id, item] : items_) {
      const Handle* const own = item->call->replaceable();
      if (item->answered || own == nullptr || *own != handle) continue;
      if (last == nullptr || item->order > last->order) last = item;
    }
    if (last != nullptr) Cancel(last, "a later request has replaced this one");
  }

  void Cancel(ItemPtr item, std::string_view why) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (!item->arriving()) return state_->core->Cancel(item->context());  // which answers
    Drop(item, absl::CancelledError(absl::string_view(why.data(), why.size())));
    refused_.erase(item->id);
    cancelled_.Add(item->id);
  }

  // Answers one that is still arriving; its chunks are passed over. By value: its place is erased.
  void Drop(ItemPtr item, const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    refused_.insert(item->id);
    items_.erase(item->id);
    held_bytes_ -= item->held_bytes();
    --arriving_;
    Refuse(*item, status);
  }

  // ------------------------------------------------------------------------------- what goes out

  void Run(const ItemPtr& item) {
    item->Solve([stream = std::static_pointer_cast<SolveStreamCall>(shared_from_this())](
                    const ItemPtr& answered) { stream->OnAnswered(answered); });
  }

  // Answers a request that never ran.
  void Refuse(Item& item, const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    item.record.SetOutcome(status);
    item.record.Publish();
    outgoing_.push_back(Outgoing{nullptr, FailureMessage(item.id, status)});
  }

  // Starts whatever may be started: a write, a read, the end.
  void Advance() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (!writing_ && !outgoing_.empty()) WriteNext();
    const bool over = no_more_requests_ || (draining_ && !handling_);
    if (over && items_.empty() && outgoing_.empty() && !writing_) {
      return End(draining_ && !no_more_requests_ ? state_->CheckAcceptsWork() : absl::OkStatus());
    }
    const bool full = static_cast<int64_t>(items_.size()) >= state_->options.max_stream_requests ||
                      held_bytes_ >= state_->options.max_stream_bytes ||
                      outgoing_.size() >= kMaxRefused;
    const bool will_release = running_ > 0 || !outgoing_.empty();
    if (!reading_ && !no_more_requests_ && !(full && will_release)) {
      reading_ = true;
      pace_.Wait(SteadyNow());
      Read();
    }
  }

  void WriteNext() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    Outgoing& out = outgoing_.front();
    grpc::ByteBuffer message;
    if (out.head.has_value()) {
      message = *out.head;
      out.head.reset();
    } else {
      const int64_t length = std::min(out.left, state_->options.stream_chunk_bytes);
      message = ChunkMessage(out.item->id, out.item->values, out.sent, length);
      out.sent += length;
      out.left -= length;
    }
    // The client may use the id again as soon as it has this.
    if (out.left == 0 && out.item != nullptr) items_.erase(out.item->id);
    writing_ = true;
    Write(message);
  }

  void End(const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    finished_ = true;
    record_.context()->cancelled = true;  // the message at hand is not read on
    end_ = status;
    for (const auto& [id, item] : items_) state_->core->Cancel(item->context());
    items_.clear();
    Finish(FinalStatus(status, rpc()));
  }

  ServiceState* const state_;
  MemberTask<SolveStreamCall, &SolveStreamCall::HandleLongMessage> handle_task_{this};

  absl::Mutex mutex_;
  CallRecord record_;  // of the stream itself, published where it fails
  absl::flat_hash_map<uint64_t, ItemPtr> items_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_set<uint64_t> refused_ ABSL_GUARDED_BY(mutex_);  // while chunks may still come
  RecentIds cancelled_ ABSL_GUARDED_BY(mutex_){kMaxRefused};
  std::deque<Outgoing> outgoing_ ABSL_GUARDED_BY(mutex_);
  ItemPtr copying_ ABSL_GUARDED_BY(mutex_);  // that the bytes of the message at hand are of
  UploadPace pace_ ABSL_GUARDED_BY(mutex_);  // of all that are arriving, together
  int64_t arriving_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t running_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t held_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t last_order_ ABSL_GUARDED_BY(mutex_) = 0;
  bool reading_ ABSL_GUARDED_BY(mutex_) = false;  // or handling what was read
  bool handling_ ABSL_GUARDED_BY(mutex_) = false;
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool no_more_requests_ ABSL_GUARDED_BY(mutex_) = false;
  bool draining_ ABSL_GUARDED_BY(mutex_) = false;
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status end_ ABSL_GUARDED_BY(mutex_);  // once finished
};

}  // namespace

std::shared_ptr<ServerCall> MakeSolveStream(ServiceState* state,
                                            std::unique_ptr<IncomingCall> incoming) {
  return std::make_shared<SolveStreamCall>(state, std::move(incoming));
}

}  // namespace blockd::server
