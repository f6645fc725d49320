// Smooth, as one call. Internal to the client.
#ifndef BLOCKD_CLIENT_CALLS_SMOOTH_CALL_H_
#define BLOCKD_CLIENT_CALLS_SMOOTH_CALL_H_

#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "blockd/client/smooth.h"
#include "client/rpc/connection.h"

namespace blockd::client {

struct SmoothAnswer {
  SmoothResult result;               // without handles
  std::vector<std::string> handles;  // their names
  std::string route;                 // behind a router: of the server that has them
};

// INVALID_ARGUMENT where the arrays do not have the sizes that the model says.
absl::StatusOr<SmoothAnswer> SmoothSeries(const Connection& connection,
                                          const StateSpaceModel& model,
                                          std::span<const double> observations,
                                          const SmoothOptions& options);

}  // namespace blockd::client

#endif  // BLOCKD_CLIENT_CALLS_SMOOTH_CALL_H_
