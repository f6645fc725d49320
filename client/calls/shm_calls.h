// Calls by shared memory, where a connection has it: with the statuses, the retries and the replies
// of those over gRPC. Internal to the client.
#ifndef BLOCKD_CLIENT_CALLS_SHM_CALLS_H_
#define BLOCKD_CLIENT_CALLS_SHM_CALLS_H_

#include <optional>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "client/rpc/connection.h"
#include "client/shm/shm_request.h"
#include "google/protobuf/message_lite.h"

namespace blockd::client {

// Looks at an attempt's status and says what to make of it.
using SeeAttempt = absl::FunctionRef<absl::Status(const absl::Status&)>;

// nullopt where there is no shared memory, or no room in it for the call: then the call goes over
// gRPC. `message` and `data` as in SharedRequest::Make, the right-hand sides as KeptRhs has them,
// because an attempt that fails may have written a part of its solution. `on`: one of the
// factorizations that heals, if one does. The reply is without its solution, which is in its place.
// Thread-safe.
std::optional<absl::Status> CallShared(
    const Connection& connection, const Factorization* on, v1::ShmOperation operation,
    const google::protobuf::MessageLite& message, std::vector<SharedData> data, absl::Time deadline,
    google::protobuf::MessageLite* reply,
    SeeAttempt see = [](const absl::Status& status) { return status; });

// The same of a call without data, which goes over gRPC where it must.
template <typename Request, typename Reply>
absl::Status CallWithoutData(
    const Connection& connection, const Factorization* on, const char* method,
    v1::ShmOperation operation, const Request& request, absl::Time deadline, Reply* reply,
    SeeAttempt see = [](const absl::Status& status) { return status; }) {
  const std::optional<absl::Status> shared =
      CallShared(connection, on, operation, request, {}, deadline, reply, see);
  if (shared) return *shared;
  return connection.Retry(
      deadline,
      [&](grpc::ClientContext& context) {
        return see(ToStatus(connection.Ask(context, method, request, reply)));
      },
      on);
}

}  // namespace blockd::client

#endif  // BLOCKD_CLIENT_CALLS_SHM_CALLS_H_
