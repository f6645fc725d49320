// SolveMany on the wire, in a call of its own or as a frame of a SolveStream.
//
// Errors are INVALID_ARGUMENT and name the field. Pure functions, thread-safe.
#ifndef BLOCKD_SERVER_TRANSPORT_WIRE_SOLVE_MANY_H_
#define BLOCKD_SERVER_TRANSPORT_WIRE_SOLVE_MANY_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "blockd/v1/blockd.pb.h"
#include "server/core/common/request.h"

namespace blockd::server {

// Solves of one message.
inline constexpr int64_t kMaxSolves = 65536;
// The most bytes of a message without its right-hand sides.
inline constexpr int64_t kMaxSolveManyHeadBytes = 4 << 20;
// The host bytes of a solve beside its right-hand sides, including its status if it fails.
inline constexpr int64_t kHostBytesPerSolve = 512;

// How many solves they are: 1 to kMaxSolves.
absl::StatusOr<int64_t> CountSolves(const v1::SolveManyRequest& request);
// OK if so many solves may have so many bytes of right-hand sides.
absl::Status CheckRhsBytes(const v1::SolveManyRequest& request, int64_t solves, int64_t bytes);

// For a request that these have checked: solves in `values`, where the right-hand sides lie; or
// nowhere yet, if it has no rhs_bytes.
SolveManyParams ToSolveManyParams(const v1::SolveManyRequest& request, std::span<std::byte> values);

// All but the solution.
void ToWire(const SolveManyReply& reply, v1::SolveManyReply* wire);
void ToWire(const FactorSolveReply& reply, v1::SolveManyReply* wire);

}  // namespace blockd::server

#endif  // BLOCKD_SERVER_TRANSPORT_WIRE_SOLVE_MANY_H_
