// Many solves in one message, with or without new values for what they are of. Internal to the
// client.
#ifndef BLOCKD_CLIENT_CALLS_SOLVE_MANY_H_
#define BLOCKD_CLIENT_CALLS_SOLVE_MANY_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "blockd/client/results.h"
#include "blockd/client/system.h"
#include "blockd/v1/blockd.pb.h"
#include "client/rpc/connection.h"
#include "client/wire/wire.h"

namespace blockd::client {

inline constexpr size_t kMaxSolves = 65536;  // of one message

// Where each solve's right-hand sides lie in those of all of them, and its solution in theirs.
struct ManySolves {
  struct Solve {
    uint32_t num_rhs = 0;
    size_t offset = 0, bytes = 0;
  };
  std::vector<Solve> solves;
};

// `num_rhs`: one a solve, or none for 1 each. INVALID_ARGUMENT where the sizes do not agree.
absl::StatusOr<ManySolves> LayOut(std::span<const Factorization> factorizations, Scalar scalar,
                                  std::span<const int64_t> num_rhs, size_t rhs_bytes,
                                  size_t solution_bytes);
// The same for a refactor of each before its solve, to these systems, with as many right-hand sides
// each. INVALID_ARGUMENT, too, where the systems are not laid out alike.
absl::StatusOr<ManySolves> LayOut(std::span<const Factorization> factorizations,
                                  std::span<const SystemView> systems, Scalar scalar,
                                  size_t rhs_bytes, size_t solution_bytes);
// Everything but the handles and the right-hand sides.
v1::SolveManyRequest MakeSolveManyRequest(std::span<const ManySolves::Solve> solves,
                                          const SolveOptions& options);
// For shared memory, whose places say them.
v1::SolveManyRequest WithoutRhsBytes(v1::SolveManyRequest request);
// Everything but the handles, the matrices and the right-hand sides.
v1::FactorSolveManyRequest MakeFactorSolveManyRequest(const SystemView& system, int64_t num_rhs,
                                                      const SolveOptions& solve,
                                                      const FactorOptions& factor);
// INTERNAL unless it speaks of so many solves.
absl::StatusOr<SolveResult> ToResult(const v1::SolveManyReply& reply, size_t solves);

// Sets what is said of all solves: the largest of those that succeeded.
void Summarize(SolveResult& result);

// In one call to each server that they are on. Those whose factorizations heal are sent again.
absl::StatusOr<SolveResult> SolveManyHealing(const Connection& connection,
                                             std::span<const Factorization> factorizations,
                                             const ManySolves& layout, Bytes rhs,
                                             std::span<std::byte> solution,
                                             const SolveOptions& options);

// The same with a refactor of each before its solve, to these systems, which are laid out alike.
absl::StatusOr<SolveResult> RefactorSolveManyHealing(
    const Connection& connection, std::span<const Factorization> factorizations,
    std::span<const SystemView> systems, const ManySolves& layout, Bytes rhs,
    std::span<std::byte> solution, const SolveOptions& solve, const FactorOptions& factor);

}  // namespace blockd::client

#endif  // BLOCKD_CLIENT_CALLS_SOLVE_MANY_H_
