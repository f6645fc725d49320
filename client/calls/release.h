// Giving handles back, with retries. Internal to the client.
#ifndef BLOCKD_CLIENT_CALLS_RELEASE_H_
#define BLOCKD_CLIENT_CALLS_RELEASE_H_

#include <cstdint>
#include <span>
#include <string>

#include "absl/status/statusor.h"
#include "client/rpc/connection.h"

namespace blockd::client {

// The bytes that the server got back. A retry that finds its handle released by the attempt before
// it has succeeded.
absl::StatusOr<int64_t> ReleaseNow(const Connection& connection,
                                   std::span<const std::string> handles, const std::string& route);

}  // namespace blockd::client

#endif  // BLOCKD_CLIENT_CALLS_RELEASE_H_
