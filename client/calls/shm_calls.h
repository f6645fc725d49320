// Calls by shared memory, where a connection has it: with the statuses, the retries and the results
// of those over gRPC. Internal to the client.
//
// Each is nullopt where there is no shared memory, or no room in it for the call: then it goes over
// gRPC. What lies in a SharedBuffer is not copied. Thread-safe.
#ifndef BLOCKD_CLIENT_CALLS_SHM_CALLS_H_
#define BLOCKD_CLIENT_CALLS_SHM_CALLS_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "blockd/client/results.h"
#include "blockd/client/system.h"
#include "blockd/v1/blockd.pb.h"
#include "client/rpc/connection.h"
#include "client/shm/shm_request.h"
#include "client/wire/wire.h"

namespace blockd::client {

// `request` has everything but the handle, which is of `on`, and the right-hand sides.
std::optional<absl::Status> SolveShared(const Connection& connection, const Factorization& on,
                                        const v1::SolveRequest& request, Bytes rhs,
                                        std::span<std::byte> solution, absl::Time deadline,
                                        absl::StatusOr<SolveResult>* result);

// `on`: one of them that heals, if one does. The reply is without its solution, which is in place.
std::optional<absl::Status> SolveManyShared(const Connection& connection, const Factorization& on,
                                            std::span<const SharedSolve> solves,
                                            const v1::SolveOptions& options, absl::Time deadline,
                                            v1::SolveManyReply* reply);

std::optional<absl::Status> FactorShared(const Connection& connection, const Factorization* on,
                                         const v1::FactorStreamHeader& header,
                                         std::span<const SystemView> systems, absl::Time deadline,
                                         v1::FactorReply* reply);

// `message` has the handles, if any, and neither matrices nor right-hand sides.
std::optional<absl::Status> FactorSolveShared(const Connection& connection, const Factorization* on,
                                              const v1::FactorSolveRequest& message,
                                              const SystemView& system, const SharedSolve& solve,
                                              absl::Time deadline, v1::FactorSolveReply* reply);
// One solve a system. The reply as SolveManyShared's.
std::optional<absl::Status> FactorSolveManyShared(const Connection& connection,
                                                  const Factorization& on,
                                                  const v1::FactorSolveManyRequest& message,
                                                  std::span<const SystemView> systems,
                                                  std::span<const SharedSolve> solves,
                                                  absl::Time deadline, v1::SolveManyReply* reply);

std::optional<absl::Status> ReleaseShared(const Connection& connection, const std::string& handle,
                                          absl::Time deadline, int64_t* released_bytes);

}  // namespace blockd::client

#endif  // BLOCKD_CLIENT_CALLS_SHM_CALLS_H_
