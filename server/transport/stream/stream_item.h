// A request of a SolveStream, or a frame of solves or refactors, as the server holds it until it is
// answered.
//
// One thread at a time, but for what its context says.
#ifndef BLOCKD_SERVER_TRANSPORT_STREAM_STREAM_ITEM_H_
#define BLOCKD_SERVER_TRANSPORT_STREAM_STREAM_ITEM_H_

#include <cstdint>
#include <memory>
#include <span>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "blockd/v1/blockd.pb.h"
#include "server/core/tenants/budget.h"
#include "server/transport/rpc/call.h"
#include "server/transport/rpc/executor.h"
#include "server/transport/stream/stream_request.h"
#include "server/transport/wire/raw_message.h"

namespace blockd::server {

// Takes the call out of a message that is a request or a frame.
std::unique_ptr<CoreCall> TakeCall(StreamMessage* message);

// The solutions overwrite the right-hand sides where they lie, but for those of a refactor, which
// has a message that was parsed. As a task it takes the core's answer to the stream.
struct StreamItem final : public Executor::Task, public std::enable_shared_from_this<StreamItem> {
  using Answered = absl::AnyInvocable<void(const std::shared_ptr<StreamItem>&)>;

  // Takes the call out of the message, which is its first.
  StreamItem(ServiceState* state, ContextPtr context, StreamMessage& first);

  RequestContext& context() { return *record.context(); }
  bool arriving() const { return received < bytes; }
  bool is_frame() const { return part != v1::SolveStreamRequest::kRequestFieldNumber; }
  // The bytes that count towards the limit on what the stream may hold.
  int64_t held_bytes() const { return bytes + call->data_bytes(); }

  // Reads the request, and checks it as far as is possible without room for the right-hand sides.
  // Sets `bytes`.
  absl::Status Read(StreamMessage& message);
  // Takes the item's host memory if its right-hand sides have come too; else only TakeRoom does.
  absl::Status TakeMemory(const StreamMessage& message);
  // To be called before so many bytes of the right-hand sides are here. Takes at most twice as many
  // from the host's budget: bytes that are announced and do not come are left to others.
  absl::Status TakeRoom(int64_t first_bytes);
  // The next bytes of the right-hand sides. They are counted with `received` afterwards.
  void Copy(const StreamMessage& message) {
    CopyPieces(message.pieces, values.span().data() + received);
  }
  // Hands it to the core. Its status is known when `answered`, which holds it, runs as a reply of
  // the state's.
  void Solve(Answered answered);
  void Run() noexcept override;
  // Once it is answered: with the solution, or with how long it is where that follows in chunks.
  grpc::ByteBuffer AnswerMessage(bool in_chunks);

  ServiceState* const state;
  const uint64_t id;
  const int part;
  const absl::Time start;  // of SteadyNow
  CallRecord record;
  Reservation host_bytes;  // destroyed after the memory that it stands for
  const std::unique_ptr<CoreCall> call;
  Payload values;
  int64_t bytes = 0;     // of the right-hand sides, and of the solutions
  int64_t received = 0;  // of them
  int64_t order = 0;     // among the requests of the stream
  bool answered = false;
  absl::Status status;

 private:
  int64_t room_ = 0;  // for so many of `bytes`
  Answered on_answered_;
};
using StreamItemPtr = std::shared_ptr<StreamItem>;

// The error, of a field of this part of a stream's message.
absl::Status WithinPart(int part, const absl::Status& error);

}  // namespace blockd::server

#endif  // BLOCKD_SERVER_TRANSPORT_STREAM_STREAM_ITEM_H_
