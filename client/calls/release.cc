#include "client/calls/release.h"

#include <utility>

#include "blockd/client/errors.h"
#include "client/calls/shm_calls.h"

namespace blockd::client {

absl::StatusOr<int64_t> ReleaseNow(const Connection& connection,
                                   std::span<const std::string> handles, const std::string& route) {
  const absl::Time deadline = connection.Deadline({});
  v1::ReleaseRequest request;
  for (const std::string& handle : handles) request.add_handle(handle);
  v1::ReleaseReply reply;
  bool repeated = false;
  const auto see = [&](const absl::Status& once) {
    const auto detail = GetHandleNotFound(once);
    const bool again = std::exchange(repeated, true);
    if (again && detail.has_value() && detail->reason() == v1::HandleNotFound::RELEASED) {
      return absl::OkStatus();
    }
    return once;
  };
  const Factorization on{.handle = {}, .route = route};
  const absl::Status status = CallWithoutData(
      connection, &on, "Release", v1::ShmOperation::kRelease, request, deadline, &reply, see);
  if (!status.ok()) return status;
  return reply.released_bytes();
}

}  // namespace blockd::client
