// FactorSolve in one message or by shared memory, with or without a handle. Internal to the client.
#ifndef BLOCKD_CLIENT_CALLS_FACTOR_SOLVE_H_
#define BLOCKD_CLIENT_CALLS_FACTOR_SOLVE_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "blockd/client/results.h"
#include "blockd/client/system.h"
#include "blockd/v1/blockd.pb.h"
#include "client/rpc/connection.h"
#include "client/wire/wire.h"

namespace blockd::client {

// Everything but the handle, the matrix and the right-hand sides.
v1::FactorSolveRequest MakeFactorSolveRequest(const SystemView& system, int64_t columns,
                                              const SolveOptions& solve,
                                              const FactorOptions& factor);

// The system, the columns and the deadline of one call; `rhs` as KeptRhs has them.
struct FactorSolveCall {
  const SystemView& system;
  Bytes rhs;
  std::span<std::byte> solution;
  absl::Time deadline;
};

// Keeps nothing. OUT_OF_RANGE, and nothing was sent, if it is too large for one message and has no
// room in shared memory.
absl::StatusOr<FactorSolveResult> FactorSolveOnce(const Connection& connection,
                                                  v1::FactorSolveRequest request,
                                                  const FactorSolveCall& call);

// Sends the request, again after each restoration of a factorization that heals; the system's
// values are those that are restored from then on. OUT_OF_RANGE as above.
absl::StatusOr<FactorSolveResult> RefactorSolveHealing(const Connection& connection,
                                                       const Factorization& factorization,
                                                       v1::FactorSolveRequest request,
                                                       const FactorSolveCall& call,
                                                       const FactorOptions& factor);

}  // namespace blockd::client

#endif  // BLOCKD_CLIENT_CALLS_FACTOR_SOLVE_H_
