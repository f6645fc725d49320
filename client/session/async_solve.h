// Solve without a waiting thread. Internal to the client.
#ifndef BLOCKD_CLIENT_SESSION_ASYNC_SOLVE_H_
#define BLOCKD_CLIENT_SESSION_ASYNC_SOLVE_H_

#include <cstddef>
#include <functional>
#include <memory>
#include <span>

#include "absl/status/statusor.h"
#include "blockd/client/results.h"
#include "client/rpc/connection.h"
#include "client/wire/wire.h"

namespace blockd::client {

// Sends the request, which has no right-hand sides, with a copy of these, by the way that their
// size asks for, and retries and heals as CallHealing does. `done` runs once: at once where it
// cannot begin, or on the thread of the connection's answers, of gRPC, of the shared memory or of
// the healer. `solution` stays valid until then.
void StartAsyncSolve(std::shared_ptr<Connection> connection, const Factorization& factorization,
                     v1::SolveRequest request, Bytes rhs, std::span<std::byte> solution,
                     absl::Time deadline, std::function<void(absl::StatusOr<SolveResult>)> done);

// The solution of a reply, in its place. INTERNAL if it is not as long as it must be.
absl::StatusOr<SolveResult> ReadSolution(const grpc::ByteBuffer& reply,
                                         std::span<std::byte> solution);

}  // namespace blockd::client

#endif  // BLOCKD_CLIENT_SESSION_ASYNC_SOLVE_H_
