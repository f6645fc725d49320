#include "client/release.h"

#include "blockd/client/errors.h"

namespace blockd::client {

absl::StatusOr<int64_t> ReleaseNow(const Connection& connection,
                                   std::span<const std::string> handles, const std::string& route) {
  v1::ReleaseRequest request;
  for (const std::string& handle : handles) request.add_handle(handle);
  v1::ReleaseReply reply;
  bool repeated = false;
  const Factorization on{.handle = {}, .route = route};
  const absl::Status status = connection.Retry(
      connection.Deadline({}),
      [&](grpc::ClientContext& context) {
        const absl::Status once = ToStatus(connection.stub().Release(&context, request, &reply));
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
