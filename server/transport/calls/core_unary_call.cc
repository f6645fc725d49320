#include "server/transport/calls/core_unary_call.h"

#include <utility>

#include "server/transport/rpc/unary_call.h"
#include "server/transport/wire/raw_message.h"
#include "server/transport/wire/solve_many.h"
#include "server/transport/wire/split_message.h"
#include "server/transport/wire/wire.h"

namespace blockd::server {
namespace {

class CoreUnaryCall final : public UnaryCall {
 public:
  CoreUnaryCall(ServiceState* state, Method method, std::unique_ptr<IncomingCall> incoming,
                std::unique_ptr<CoreCall> call)
      : UnaryCall(state, method, std::move(incoming)), call_(std::move(call)) {}

 private:
  google::protobuf::Message* request() override { return &call_->message(); }
  bool IsWork() const override { return call_->is_work(); }
  bool IsLong() const override { return call_->IsLong(&message()); }
  size_t ShortBytes() const override { return call_->ShortBytes(); }

  absl::Status ReadRequest() override {
    if (call_->lifted_field() == CoreCall::kNoField) {
      const absl::Status status = Parse(message());
      return status.ok() ? Check(0) : status;
    }
    const RequestContext& context = *record().context();
    const absl::StatusOr<SplitMessage> split =
        SplitBytes(&message(), *request(), {.field = call_->lifted_field()}, kMaxSolveManyHeadBytes,
                   StopsReading(message(), context));
    if (absl::IsCancelled(split.status())) return CancellationOf(context);
    if (!split.ok()) return split.status();
    absl::Status status = Parse(AsBuffer(split->rest));
    if (status.ok()) status = Check(split->bytes);
    if (status.ok()) CopyPieces(split->pieces, values_.span().data());
    return status;
  }

  // Checks the parsed message, of which `lifted` bytes lie elsewhere, and takes memory for the
  // solution.
  absl::Status Check(int64_t lifted) {
    absl::Status status = call_->Read({.lifted = lifted});
    call_->Describe(&record());
    if (status.ok()) {
      status = ReadPriority("options.priority", call_->priority(), record().context().get());
    }
    if (!status.ok() || call_->bytes() + call_->more_bytes() == 0) return status;
    absl::StatusOr<Payload> values = Allocate(call_->bytes(), call_->more_bytes());
    if (!values.ok()) return values.status();
    values_ = *std::move(values);
    return status;
  }

  // The core calls back once. That holds the call.
  void Start() override {
    call_->Place(values_.span());
    call_->Ask(core(), record().context(),
               [self = std::static_pointer_cast<CoreUnaryCall>(shared_from_this())](
                   const absl::Status& status) {
                 self->status_ = status;
                 self->AnswerSoon(status.ok() && self->call_->replies_here());
               });
  }

  void Answer() override {
    if (!status_.ok()) return Fail(status_);
    record().SetCost(call_->cost());
    const std::unique_ptr<google::protobuf::Message> reply = call_->Reply(CoreCall::kAnyRoom);
    const int field = call_->solution_field();
    Succeed(field == CoreCall::kNoField ? SerializeMessage(*reply)
                                        : SerializeWithBytes(*reply, field, values_));
  }

  const std::unique_ptr<CoreCall> call_;
  Payload values_;
  absl::Status status_;
};

}  // namespace

std::shared_ptr<ServerCall> MakeCoreUnaryCall(ServiceState* state, Method method,
                                              std::unique_ptr<IncomingCall> incoming,
                                              std::unique_ptr<CoreCall> call) {
  return std::make_shared<CoreUnaryCall>(state, method, std::move(incoming), std::move(call));
}

}  // namespace blockd::server
