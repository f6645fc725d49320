// One request of a shared-memory session, from its slot to its reply.
//
// All bytes that decide anything are read from copies: the slot, the descriptors of many solves,
// the message beside a matrix. Right-hand sides and matrices are read, and solutions written, where
// they lie. Errors, metrics and the log's lines are those of the calls of gRPC. One thread at a
// time.
#ifndef BLOCKD_SERVER_TRANSPORT_SHM_SHM_CALL_H_
#define BLOCKD_SERVER_TRANSPORT_SHM_SHM_CALL_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "blockd/v1/blockd.pb.h"
#include "google/protobuf/message.h"
#include "server/core/tenants/budget.h"
#include "server/transport/rpc/call.h"
#include "server/transport/rpc/executor.h"
#include "server/transport/shm/shm_session.h"

namespace blockd::server {

class ShmCall final : public Executor::Task, public std::enable_shared_from_this<ShmCall> {
 public:
  ShmCall(std::shared_ptr<ShmSession> session, const v1::ShmRequest& request, ContextPtr context);

  // On the poller's thread: begins, or posts what takes long.
  void Start();
  void Run() noexcept override;  // what was posted

 private:
  bool IsLong() const;
  // Reads as much of the request as it may before it awaits its turn to look for NaN. An error is
  // the request's answer, as is one of Begin.
  absl::Status Prepare();
  absl::Status Begin();
  absl::Status Solve();
  absl::Status SolveMany();
  absl::Status Factor();
  absl::Status FactorSolve();
  absl::Status FactorSolveMany();
  absl::Status Release();

  // The parts of the memory that the request names; checked.
  absl::StatusOr<std::span<std::byte>> Data(std::string_view name, uint64_t offset,
                                            uint64_t bytes) const {
    return session_->mapping().Data(name, offset, bytes);
  }
  absl::StatusOr<SolveManyParams::Columns> ColumnsOf(int64_t num_rhs, uint64_t rhs_offset,
                                                     uint64_t solution_offset,
                                                     uint64_t bytes) const;
  // Checks that the solutions of many solves, each of which fits, fit together: those that do not
  // overlap do. So no request has the server read or clear more than the memory.
  absl::Status CheckTogether(std::span<const SolveManyParams::Columns> solves) const;
  absl::Status CheckReplyRoom(uint64_t items) const;
  // The request's message, copied before it is parsed; it is the call's.
  absl::Status ReadMessage();
  absl::Status ReadMessage(google::protobuf::Message* message);
  template <typename Message>
  const Message& MessageOf() const {
    return static_cast<const Message&>(*message_);
  }
  // The `systems` ShmFactorSolve: where blocks and columns lie. Blocks that are looked at for NaN
  // have to fit together as solutions do.
  absl::Status ReadSystems(std::span<BlockTridiagonalView> matrices, bool check_finite,
                           std::span<SolveManyParams::Columns> solves) const;

  void Fail(const absl::Status& status);
  // With `message` where there is room for it.
  void Succeed(v1::ShmReply reply, const google::protobuf::Message* message = nullptr);
  void Answer(const absl::Status& status, v1::ShmReply& reply,
              const google::protobuf::Message* message);
  void AnswerFactor(const absl::StatusOr<FactorReply>& answer);
  static void AnswerSoon(std::shared_ptr<ShmCall> call);
  // The bytes of the solutions of failed solves, once the core has answered many.
  size_t BytesToClear() const;
  void SucceedMany(v1::SolveManyReply* reply);
  void AnswerSolveMany();
  void AnswerFactorSolve(const absl::StatusOr<SolveReply>& answer);
  void AnswerFactorSolveMany();

  const ActiveCall active_;  // first: it ends last
  const std::shared_ptr<ShmSession> session_;
  const v1::ShmRequest request_;
  std::span<std::byte> room_;  // for the reply's message
  Reservation host_bytes_;
  CallRecord record_;
  std::unique_ptr<google::protobuf::Message> message_;  // has the palette's indices
  bool prepared_ = false;
  bool scans_ = false;  // looks for NaN, on a work thread: the session has one such at a time
  std::vector<SolveManyParams::Columns> solves_;
  absl::StatusOr<SolveManyReply> solved_ = absl::UnknownError("");
  absl::StatusOr<FactorSolveManyReply> refactored_ = absl::UnknownError("");
  bool answering_ = false;  // the core has answered many solves, and that is to be written
};

}  // namespace blockd::server

#endif  // BLOCKD_SERVER_TRANSPORT_SHM_SHM_CALL_H_
