#include "server/solve_stream.h"

#include <algorithm>
#include <cstring>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "blockd/v1/blockd.pb.h"
#include "server/idle_timer.h"
#include "server/raw_message.h"
#include "server/wire.h"

namespace blockd::server {
namespace {

// One unanswered request. The solution overwrites the right-hand sides where they lie.
struct Item {
  Item(ServiceState* state, ContextPtr context, uint64_t id)
      : id(id), record(state, Method::kSolveStream, std::move(context)) {}
  const uint64_t id;
  CallRecord record;
  SolveParams params;
  Reservation host_bytes;  // destroyed after the memory that it stands for
  Payload values;
  int64_t received = 0;  // bytes of the right-hand sides
};
using ItemPtr = std::shared_ptr<Item>;

// A message on its way out, or a solution of which the first `sent` bytes are.
struct Outgoing {
  ItemPtr item;                          // null: nothing is held for it any more
  std::optional<grpc::ByteBuffer> head;  // goes first
  int64_t sent = 0;
  int64_t left = 0;  // of the solution, in chunks
};

class SolveStreamCall final : public grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>,
                              public DrainableStream,
                              public std::enable_shared_from_this<SolveStreamCall> {
 public:
  SolveStreamCall(ServiceState* state, grpc::CallbackServerContext* rpc)
      : state_(state),
        active_(&state->tracker),
        rpc_(rpc),
        record_(state, Method::kSolveStream, rpc) {}

  void Begin() {
    self_ = shared_from_this();
    timer_ =
        std::make_shared<IdleTimer>(state_->options.stream_idle_timeout, [weak = weak_from_this()] {
          if (auto call = weak.lock()) call->OnIdle();
        });
    timer_->Start();
    state_->tracker.Add(this, weak_from_this());
    absl::MutexLock lock(&mutex_);
    if (!record_.allowed().ok()) return End(record_.allowed());
    draining_ = state_->tracker.draining();
    EchoRequestId(*record_.context(), rpc_);
    StartSendInitialMetadata();  // a client that waits to be greeted learns that the stream stands
    Advance();
  }

  void OnReadDone(bool ok) override {
    ItemPtr ready;
    {
      absl::MutexLock lock(&mutex_);
      reading_ = false;
      if (finished_) return;
      timer_->Touch();
      if (!ok) {
        OnEndOfRequests();
      } else if (absl::StatusOr<ItemPtr> item = OnMessage(); item.ok()) {
        ready = *std::move(item);
      } else {
        return End(item.status());
      }
      message_.Clear();
      if (ready != nullptr) ++running_;
      Advance();
    }
    // Without the mutex, since the core may answer at once, from within the call.
    if (ready != nullptr) Run(std::move(ready));
  }

  void OnWriteDone(bool ok) override {
    absl::MutexLock lock(&mutex_);
    writing_ = false;
    if (finished_) return;
    if (!ok) return End(CancellationOf(*record_.context()));
    const Outgoing& out = outgoing_.front();
    if (out.left == 0) {
      if (out.item != nullptr) held_bytes_ -= out.item->values.bytes();
      outgoing_.pop_front();
    }
    Advance();
  }

  void OnCancel() override {
    record_.context()->cancelled = true;
    absl::MutexLock lock(&mutex_);
    if (!finished_) End(CancellationOf(*record_.context()));
  }

  void OnDrain() override {
    absl::MutexLock lock(&mutex_);
    draining_ = true;
    if (!finished_) Advance();
  }

  void OnDone() override {
    timer_->Stop();
    state_->tracker.Remove(this);
    {
      // A cancellation looks like the end of the requests until gRPC has said which it was.
      absl::MutexLock lock(&mutex_);
      if (end_.ok() && rpc_->IsCancelled()) end_ = CancellationOf(*record_.context());
      record_.SetOutcome(end_);
      if (!end_.ok()) record_.Publish();
    }
    self_.reset();
  }

 private:
  static constexpr size_t kMaxRefused = 1024;

  // -------------------------------------------------------------------------------- what comes in

  // The item that is complete with this message, if one is; an error ends the stream.
  absl::StatusOr<ItemPtr> OnMessage() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (absl::Status status = state_->CheckMessageSize(message_); !status.ok()) return status;
    std::optional<StreamPart> part =
        ScanStreamPart(&message_, v1::SolveStreamRequest::kIdFieldNumber,
                       v1::SolveStreamRequest::kChunkFieldNumber);
    v1::SolveStreamRequest request;
    if (!part.has_value() || (!part->is_chunk && !ParseMessage(message_, &request))) {
      return InvalidFieldError("", "bytes that are not the request's message",
                               "a blockd.v1.SolveStreamRequest");
    }
    if (part->beside_chunk) {
      return InvalidFieldError("part", "a chunk and something else", "one part in a message");
    }
    if (part->is_chunk) return OnChunk(*part);
    if (!request.has_request()) return InvalidFieldError("part", "nothing", "request or chunk");
    if (items_.contains(request.id())) {
      return InvalidFieldError("id", absl::StrCat(request.id()),
                               "an id that no unanswered request of this stream has");
    }
    return OnRequest(request.id(), request.request());
  }

  absl::StatusOr<ItemPtr> OnRequest(uint64_t id, const v1::SolveRequest& request)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    auto item = std::make_shared<Item>(state_, record_.context(), id);
    refused_.erase(id);
    absl::Status status = Accept(request, item.get());
    if (!status.ok()) {
      // Chunks of it may be on their way already.
      if (request.rhs().empty()) refused_.insert(id);
      if (refused_.size() > kMaxRefused) return status;
      Refuse(std::move(item), status);
      return ItemPtr();
    }
    items_.emplace(id, item);
    held_bytes_ += item->values.bytes();
    if (request.rhs().empty()) return ItemPtr();
    std::memcpy(item->values.span().data(), request.rhs().data(), request.rhs().size());
    item->received = item->values.bytes();
    return item;
  }

  // Checks all that can be checked before the right-hand sides are here, and takes their memory.
  absl::Status Accept(const v1::SolveRequest& request, Item* item)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    // The stream itself may not have been told yet.
    if (absl::Status status = state_->CheckAcceptsWork(); !status.ok()) return status;
    absl::StatusOr<SolveParams> params = ToSolveParams(request, "request.");
    if (!params.ok()) return params.status();
    item->params = *params;
    item->record.SetSolve(params->handle, params->num_rhs);
    absl::StatusOr<Shape> shape = state_->core->ShapeOf(record_.context()->caller, params->handle);
    if (!shape.ok()) return shape.status();
    absl::StatusOr<int64_t> bytes = RhsBytes(*shape, params->num_rhs, "request.num_rhs");
    if (!bytes.ok()) return bytes.status();
    const auto came = static_cast<int64_t>(request.rhs().size());
    if (came != 0 && came != *bytes) {
      return InvalidFieldError("request.rhs", absl::StrCat(came, " bytes"),
                               absl::StrCat(*bytes, " bytes, or none where chunks follow"));
    }
    if (absl::Status status = CheckRoom(*bytes); !status.ok()) return status;
    if (absl::Status status = state_->host_budget.Take(*bytes, &item->host_bytes); !status.ok()) {
      return status;
    }
    item->values = Payload(*bytes);
    item->params.rhs = item->values.span();
    item->params.solution = item->values.span();
    return absl::OkStatus();
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

  absl::StatusOr<ItemPtr> OnChunk(const StreamPart& part) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (part.chunk_bytes == 0 || refused_.contains(part.id)) return ItemPtr();
    const auto found = items_.find(part.id);
    // The same for a request that is whole as for one that is answered, which it may be by now.
    if (found == items_.end() || found->second->received == found->second->values.bytes()) {
      return InvalidFieldError("id", absl::StrCat(part.id),
                               "the id of a request whose right-hand sides are not complete");
    }
    Item& item = *found->second;
    const int64_t missing = item.values.bytes() - item.received;
    if (part.chunk_bytes > missing) {
      return InvalidFieldError(
          "chunk", absl::StrCat(part.chunk_bytes, " bytes for id ", part.id),
          absl::StrCat("at most the ", missing, " that it still lacks of ", item.values.bytes()));
    }
    for (std::span<const std::byte> piece : part.pieces) {
      std::memcpy(item.values.span().data() + item.received, piece.data(), piece.size());
      item.received += static_cast<int64_t>(piece.size());
    }
    return item.received == item.values.bytes() ? found->second : ItemPtr();
  }

  void OnEndOfRequests() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    no_more_requests_ = true;
    RefuseArriving([](const Item& item) {
      return InvalidFieldError("chunk", absl::StrCat(item.received, " bytes before the end"),
                               absl::StrCat(item.values.bytes(), " bytes"));
    });
  }

  // Only requests that are still arriving can be late; the stream itself may be silent.
  void OnIdle() {
    absl::MutexLock lock(&mutex_);
    if (finished_ || !reading_) return;
    RefuseArriving([this](const Item&) {
      return absl::DeadlineExceededError(
          absl::StrCat("no message for ", absl::FormatDuration(state_->options.stream_idle_timeout),
                       " (--stream_idle_timeout)"));
    });
    Advance();
  }

  template <typename MakeStatus>
  void RefuseArriving(MakeStatus make_status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    std::vector<ItemPtr> arriving;
    for (const auto& [id, item] : items_) {
      if (item->received < item->values.bytes()) arriving.push_back(item);
    }
    for (ItemPtr& item : arriving) {
      refused_.insert(item->id);
      const absl::Status status = make_status(*item);
      items_.erase(item->id);
      held_bytes_ -= item->values.bytes();
      Refuse(std::move(item), status);
    }
  }

  // ------------------------------------------------------------------------------- what goes out

  void Run(ItemPtr item) {
    Item& running = *item;
    state_->core->Solve(
        record_.context(), running.params,
        [self = shared_from_this(), item = std::move(item)](absl::StatusOr<SolveReply> reply) {
          self->OnSolved(item, std::move(reply));
        });
  }

  void OnSolved(const ItemPtr& item, absl::StatusOr<SolveReply> reply) {
    absl::MutexLock lock(&mutex_);
    --running_;
    if (reply.ok()) {
      item->record.SetCost(reply->cost);
      item->record.SetOutcome(absl::OkStatus());
    } else {
      item->record.SetOutcome(reply.status());
    }
    item->record.Publish();
    if (finished_) return;
    outgoing_.push_back(reply.ok() ? Solution(item, *reply) : Failure(item, reply.status()));
    Advance();
  }

  Outgoing Solution(const ItemPtr& item, const SolveReply& reply) {
    v1::SolveReply wire;
    ToWire(reply, &wire);
    v1::SolveStreamReply outer;
    outer.set_id(item->id);
    Outgoing out{item, std::nullopt};
    if (item->values.bytes() <= state_->options.stream_chunk_bytes) {
      out.head = SerializeNestedWithBytes(outer, v1::SolveStreamReply::kReplyFieldNumber, wire,
                                          v1::SolveReply::kSolutionFieldNumber, item->values);
      return out;
    }
    *outer.mutable_reply() = std::move(wire);
    outer.set_solution_bytes(item->values.bytes());
    out.head = SerializeMessage(outer);
    out.left = item->values.bytes();
    return out;
  }

  static Outgoing Failure(ItemPtr item, const absl::Status& status) {
    v1::SolveStreamReply wire;
    wire.set_id(item->id);
    *wire.mutable_status() = ToRpcStatus(status);
    return Outgoing{.item = std::move(item), .head = SerializeMessage(wire)};
  }

  // Answers a request that never ran.
  void Refuse(ItemPtr item, const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    item->record.SetOutcome(status);
    item->record.Publish();
    Outgoing out = Failure(item, status);
    out.item = nullptr;
    outgoing_.push_back(std::move(out));
  }

  // Starts whatever may be started: a write, a read, the end.
  void Advance() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (!writing_ && !outgoing_.empty()) WriteNext();
    const bool over = no_more_requests_ || draining_;
    if (over && items_.empty() && outgoing_.empty() && !writing_) {
      return End(draining_ && !no_more_requests_ ? state_->CheckAcceptsWork() : absl::OkStatus());
    }
    const bool full = static_cast<int64_t>(items_.size()) >= state_->options.max_stream_requests ||
                      held_bytes_ >= state_->options.max_stream_bytes ||
                      outgoing_.size() >= kMaxRefused;
    const bool will_release = running_ > 0 || !outgoing_.empty();
    if (!reading_ && !no_more_requests_ && !(full && will_release)) {
      reading_ = true;
      timer_->Touch();
      StartRead(&message_);
    }
  }

  void WriteNext() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    Outgoing& out = outgoing_.front();
    if (out.head.has_value()) {
      reply_ = *std::move(out.head);
      out.head.reset();
    } else {
      const int64_t length = std::min(out.left, state_->options.stream_chunk_bytes);
      v1::SolveStreamReply wire;
      wire.set_id(out.item->id);
      reply_ = SerializeChunk(wire, v1::SolveStreamReply::kChunkFieldNumber, out.item->values,
                              out.sent, length);
      out.sent += length;
      out.left -= length;
    }
    // The client may use the id again as soon as it has this.
    if (out.left == 0 && out.item != nullptr) items_.erase(out.item->id);
    writing_ = true;
    StartWrite(&reply_);
  }

  void End(const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    finished_ = true;
    end_ = status;
    if (!status.ok()) record_.context()->cancelled = true;  // work under way has nobody to go to
    items_.clear();
    Finish(FinalStatus(status, rpc_));
  }

  ServiceState* const state_;
  const ActiveCall active_;
  grpc::CallbackServerContext* const rpc_;
  std::shared_ptr<SolveStreamCall> self_;  // until the call is done
  std::shared_ptr<IdleTimer> timer_;
  grpc::ByteBuffer message_;  // being read, or being handled
  grpc::ByteBuffer reply_;    // being written

  absl::Mutex mutex_;
  CallRecord record_;  // of the stream itself, published where it fails
  absl::flat_hash_map<uint64_t, ItemPtr> items_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_set<uint64_t> refused_ ABSL_GUARDED_BY(mutex_);  // while chunks may still come
  std::deque<Outgoing> outgoing_ ABSL_GUARDED_BY(mutex_);
  int64_t held_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t running_ ABSL_GUARDED_BY(mutex_) = 0;
  bool reading_ ABSL_GUARDED_BY(mutex_) = false;
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool no_more_requests_ ABSL_GUARDED_BY(mutex_) = false;
  bool draining_ ABSL_GUARDED_BY(mutex_) = false;
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status end_ ABSL_GUARDED_BY(mutex_);  // once finished
};

}  // namespace

grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* StartSolveStream(
    ServiceState* state, grpc::CallbackServerContext* rpc) {
  auto call = std::make_shared<SolveStreamCall>(state, rpc);
  call->Begin();
  return call.get();
}

}  // namespace blockd::server
