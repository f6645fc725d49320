// The requests of one SolveSession in shared memory. Internal to the client.
//
// As SolveStream is over gRPC, but that each is copied on its way there and back, so that nothing
// is written to a solution that was given up. Thread-safe.
#ifndef BLOCKD_CLIENT_SESSION_SHM_STREAM_H_
#define BLOCKD_CLIENT_SESSION_SHM_STREAM_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "blockd/client/results.h"
#include "client/calls/solve_many.h"
#include "client/rpc/connection.h"
#include "client/shm/shm_link.h"
#include "client/shm/shm_request.h"
#include "client/shm/shm_session.h"

namespace blockd::client {

class ShmStream : public std::enable_shared_from_this<ShmStream> {
 public:
  using Done = std::function<void(absl::StatusOr<SolveResult>)>;
  struct Request {
    uint64_t id = 0;
    absl::Time deadline;
    bool heals = false;  // opens a session anew where the one before has ended
    Done done;
  };

  // `link` outlives it.
  explicit ShmStream(ShmLink* link) : link_(link) {}
  // Null where the connection, which outlives it, has no shared memory.
  static std::shared_ptr<ShmStream> Make(const Connection& connection);

  // nullopt: there is no room, and nothing happens. An error, and no `done`, where it cannot be
  // sent. `solve` without its right-hand sides, with the handle; `replace_last` cancels the last
  // one of the same handle that is not answered.
  std::optional<absl::Status> Send(Request request, const v1::SolveRequest& solve, Bytes rhs,
                                   std::span<std::byte> solution, bool replace_last);
  // `frame` without its right-hand sides, with the handles.
  std::optional<absl::Status> SendFrame(Request request, const v1::SolveManyRequest& frame,
                                        const ManySolves& layout, Bytes rhs,
                                        std::span<std::byte> solution);
  // Its answer, CANCELLED or not, comes as ever. False if it is not outstanding.
  bool Cancel(uint64_t id);
  // Nothing is written to its solution after this, and `done` does not run, if it has not yet begun
  // to.
  void Abandon(uint64_t id);
  // All of them are cancelled and given up; no more are sent.
  void End();

 private:
  struct Call;
  using CallPtr = std::shared_ptr<Call>;

  absl::StatusOr<std::shared_ptr<ShmSession>> SessionFor(const Request& request);
  // As gRPC's request `message`, to whose reply `to_result` is applied.
  template <typename Reply, typename ToSolveResult>
  std::optional<absl::Status> Start(CallPtr call, Request request, v1::ShmOperation operation,
                                    const google::protobuf::MessageLite& message,
                                    std::vector<SharedData> data, ToSolveResult to_result);
  absl::Status Start(const CallPtr& call, const v1::ShmRequest& request, absl::Time deadline);
  void Finish(const CallPtr& call, const absl::StatusOr<v1::ShmReply>& reply);
  CallPtr Find(uint64_t id);
  CallPtr LastOf(const std::string& handle);

  ShmLink* const link_;
  absl::Mutex mutex_;
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
  std::shared_ptr<ShmSession> session_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<uint64_t, CallPtr> calls_ ABSL_GUARDED_BY(mutex_);  // not answered
};

}  // namespace blockd::client

#endif  // BLOCKD_CLIENT_SESSION_SHM_STREAM_H_
