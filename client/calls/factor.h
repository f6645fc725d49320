// Factor and refactor, by the way that the size asks for, with retries. Internal to the client.
#ifndef BLOCKD_CLIENT_CALLS_FACTOR_H_
#define BLOCKD_CLIENT_CALLS_FACTOR_H_

#include <span>
#include <string>

#include "absl/status/statusor.h"
#include "blockd/client/results.h"
#include "blockd/client/system.h"
#include "blockd/v1/blockd.pb.h"
#include "client/rpc/connection.h"

namespace blockd::client {

struct FactorAnswer {
  v1::FactorReply reply;  // for as many systems as were sent
  std::string route;      // to the server that answered
};

// `handles`: those to refactor in place, all with one route, or none.
absl::StatusOr<FactorAnswer> FactorSystems(const Connection& connection,
                                           std::span<const SystemView> systems,
                                           std::span<const Factorization> handles,
                                           const FactorOptions& options);

}  // namespace blockd::client

#endif  // BLOCKD_CLIENT_CALLS_FACTOR_H_
