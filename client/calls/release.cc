#include "client/calls/release.h"

#include <set>
#include <string_view>

#include "blockd/client/errors.h"
#include "client/calls/shm_calls.h"

namespace blockd::client {
namespace {

// By shared memory, one after another: all that are held go, even if others are not found.
absl::StatusOr<int64_t> ReleaseEach(const Connection& connection,
                                    std::span<const std::string> handles, absl::Time deadline) {
  int64_t all = 0;
  absl::Status first;
  std::set<std::string_view> seen;
  for (const std::string& handle : handles) {
    if (!seen.insert(handle).second) continue;
    int64_t bytes = 0;
    const auto status = ReleaseShared(connection, handle, deadline, &bytes);
    if (status) first.Update(*status);
    all += bytes;
  }
  if (!first.ok()) return first;
  return all;
}

}  // namespace

absl::StatusOr<int64_t> ReleaseNow(const Connection& connection,
                                   std::span<const std::string> handles, const std::string& route) {
  const absl::Time deadline = connection.Deadline({});
  if (connection.shared_memory() != nullptr && !handles.empty()) {
    return ReleaseEach(connection, handles, deadline);
  }
  v1::ReleaseRequest request;
  for (const std::string& handle : handles) request.add_handle(handle);
  v1::ReleaseReply reply;
  bool repeated = false;
  const Factorization on{.handle = {}, .route = route};
  const absl::Status status = connection.Retry(
      deadline,
      [&](grpc::ClientContext& context) {
        const absl::Status once = ToStatus(connection.Ask(context, "Release", request, &reply));
        const auto detail = GetHandleNotFound(once);
        if (repeated && detail.has_value() && detail->reason() == v1::HandleNotFound::RELEASED) {
          return absl::OkStatus();
        }
        repeated = true;
        return once;
      },
      &on);
  if (!status.ok()) return status;
  return reply.released_bytes();
}

}  // namespace blockd::client
