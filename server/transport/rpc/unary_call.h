// A unary call: one message, one answer. Parses its request, runs, answers.
#ifndef BLOCKD_SERVER_TRANSPORT_RPC_UNARY_CALL_H_
#define BLOCKD_SERVER_TRANSPORT_RPC_UNARY_CALL_H_

#include <grpcpp/support/byte_buffer.h>

#include <cstdint>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "google/protobuf/message.h"
#include "server/core/tenants/budget.h"
#include "server/transport/rpc/call.h"
#include "server/transport/rpc/server_call.h"
#include "server/transport/wire/raw_message.h"

namespace blockd::server {

class UnaryCall : public ServerCall {
 public:
  // The caller needs one of `roles`.
  UnaryCall(ServiceState* state, Method method, std::unique_ptr<IncomingCall> incoming,
            RoleSet roles = {Role::kUse});

 protected:
  virtual google::protobuf::Message* request() = 0;
  // The request is parsed and its bytes are counted. Ends, now or later, with Succeed or Fail.
  virtual void Start() = 0;
  // Reads request() out of message(), whose memory is given back then.
  virtual absl::Status ReadRequest() { return Parse(message()); }
  // True if Start takes too long for a serving thread, however small the request is.
  virtual bool IsLong() const { return false; }
  // The most bytes of a message that is not long.
  virtual size_t ShortBytes() const { return kShortMessageBytes; }
  // True if the call asks for work, which CheckWork may refuse before the request is read.
  virtual bool IsWork() const { return false; }
  // After AnswerSoon.
  virtual void Answer() {}
  // It is over: metrics and log.
  virtual void Publish() { record_.Publish(); }

  void Succeed(const grpc::ByteBuffer& reply);
  void Fail(const absl::Status& status);
  // The core has answered: calls Answer, `here` or on a thread that answers.
  void AnswerSoon(bool here) noexcept;

  ServiceState* state() { return state_; }
  SolverCore& core() { return *state_->core; }
  CallRecord& record() { return record_; }
  // Parses request(), and counts what that takes.
  absl::Status Parse(const grpc::ByteBuffer& bytes) {
    return state_->Parse(bytes, *record_.context(), request(), &host_bytes_);
  }
  // Memory for values that the device is to reach, which are counted for this call, and
  // `more_bytes` with them.
  absl::StatusOr<Payload> Allocate(int64_t bytes, int64_t more_bytes = 0);

 private:
  void OnBegin() final;
  void OnRead(bool ok) final;
  void OnCancel() final { state_->core->Cancel(*record_.context()); }
  void OnDone() final;
  void OnFailure(const absl::Status& status) final { Fail(status); }

  absl::Status CheckWork() const;
  void HandleMessage() noexcept;
  void AnswerNow() noexcept;

  ServiceState* const state_;
  CallRecord record_;
  Reservation host_bytes_;
  bool came_ = false;  // the request
  MemberTask<UnaryCall, &UnaryCall::HandleMessage> handle_task_{this};
  MemberTask<UnaryCall, &UnaryCall::AnswerNow> answer_task_{this};
};

// A unary call of this type of request.
template <typename Request>
class CallOf : public UnaryCall {
 public:
  using UnaryCall::UnaryCall;

 protected:
  Request request_;

 private:
  google::protobuf::Message* request() final { return &request_; }
};

// One that the core answers, some time, with a `Reply`.
template <typename Request, typename Reply>
class CoreCallOf : public CallOf<Request> {
 public:
  using CallOf<Request>::CallOf;

 protected:
  // The callback that the core calls once. It holds the call.
  auto Done() {
    return [self = std::static_pointer_cast<CoreCallOf>(this->shared_from_this())](
               absl::StatusOr<Reply> reply) {
      self->reply_ = std::move(reply);
      self->AnswerSoon(self->reply_.ok() && self->reply_->cost.answers_are_few());
    };
  }
  virtual void Answer(const Reply& reply) = 0;

 private:
  void Answer() final {
    if (!reply_.ok()) return this->Fail(reply_.status());
    this->record().SetCost(reply_->cost);
    Answer(*reply_);
  }

  absl::StatusOr<Reply> reply_ = absl::UnknownError("");
};

}  // namespace blockd::server

#endif  // BLOCKD_SERVER_TRANSPORT_RPC_UNARY_CALL_H_
