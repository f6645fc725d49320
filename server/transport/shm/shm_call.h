// One request of a shared-memory session, from its slot to its reply.
//
// The slot and the message beside it are copies; wire/shared_data.h says how the rest is read.
// Errors, metrics and the log's lines are those of the calls of gRPC. One thread at a time.
#ifndef BLOCKD_SERVER_TRANSPORT_SHM_SHM_CALL_H_
#define BLOCKD_SERVER_TRANSPORT_SHM_SHM_CALL_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "absl/status/status.h"
#include "google/protobuf/message.h"
#include "server/core/tenants/budget.h"
#include "server/transport/calls/core_calls.h"
#include "server/transport/rpc/call.h"
#include "server/transport/rpc/executor.h"
#include "server/transport/shm/shm_session.h"

namespace blockd::server {

class ShmCall final : public Executor::Task, public std::enable_shared_from_this<ShmCall> {
 public:
  ShmCall(std::shared_ptr<ShmSession> session, const v1::ShmRequest& request, ContextPtr context);

  // On the poller's thread: begins, or posts what takes long.
  void Start();
  void Run() noexcept override;  // what comes next

 private:
  // Where its data or its message are many, or reading it may keep others waiting.
  bool IsLong() const;
  // An error is the request's answer, as is one of the next three.
  absl::Status Read();
  // The request's message, copied before it is parsed.
  absl::Status ReadMessage();
  absl::Status ReadData();
  void Ask();

  // The core has answered.
  void OnAnswered(const absl::Status& status);
  void Reply();
  void Fail(const absl::Status& status);
  // With `message` where there is room for it.
  void Answer(const absl::Status& status, const google::protobuf::Message* message);

  enum class Step { kRead, kAwaitScan, kAsk, kReply };

  const ActiveCall active_;  // first: it ends last
  const std::shared_ptr<ShmSession> session_;
  const v1::ShmRequest request_;
  const CoreCallKind* const kind_;  // null: no operation of shared memory
  std::span<std::byte> room_;       // for the reply's message
  Reservation host_bytes_;
  CallRecord record_;
  const std::unique_ptr<CoreCall> call_;  // null with kind_
  Step next_ = Step::kRead;
  bool scans_ = false;  // looks for NaN in much, on a work thread: the session has one at a time
  bool replied_ = false;
};

}  // namespace blockd::server

#endif  // BLOCKD_SERVER_TRANSPORT_SHM_SHM_CALL_H_
