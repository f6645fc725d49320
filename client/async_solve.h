// Solve without a waiting thread. Internal to the client.
#ifndef BLOCKD_CLIENT_ASYNC_SOLVE_H_
#define BLOCKD_CLIENT_ASYNC_SOLVE_H_

#include <cstddef>
#include <functional>
#include <memory>
#include <span>

#include "absl/status/statusor.h"
#include "blockd/client/results.h"
#include "client/connection.h"

namespace blockd::client {

// Sends the request, which holds its right-hand sides, by the way that its size asks for, and
// retries and heals as CallHealing does. `done` runs once, on a gRPC thread or on the healer's;
// `solution` stays valid until then.
void StartAsyncSolve(std::shared_ptr<Connection> connection, const Factorization& factorization,
                     v1::SolveRequest request, std::span<std::byte> solution, absl::Time deadline,
                     std::function<void(absl::StatusOr<SolveResult>)> done);

// A reply's solution, in its place. INTERNAL if it is not as long as it must be.
absl::StatusOr<SolveResult> TakeSolution(v1::SolveReply& reply, std::span<std::byte> solution);
// The same of a reply that has not been parsed; the solution is copied once.
absl::StatusOr<SolveResult> ReadSolution(const grpc::ByteBuffer& reply,
                                         std::span<std::byte> solution);

}  // namespace blockd::client

#endif  // BLOCKD_CLIENT_ASYNC_SOLVE_H_
