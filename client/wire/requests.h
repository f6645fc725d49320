// Requests made from views and options, checked on the way. Internal to the client.
#ifndef BLOCKD_CLIENT_WIRE_REQUESTS_H_
#define BLOCKD_CLIENT_WIRE_REQUESTS_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "absl/status/statusor.h"
#include "blockd/client/results.h"
#include "blockd/client/system.h"
#include "blockd/v1/blockd.pb.h"

namespace blockd::client {

// d, for right-hand sides and a solution of so many bytes. INVALID_ARGUMENT where they do not agree
// with each other or with the shape.
absl::StatusOr<int64_t> CountColumns(int64_t rows, Scalar expected, Scalar scalar, size_t rhs_bytes,
                                     size_t solution_bytes);

// Everything but the right-hand sides themselves.
absl::StatusOr<v1::SolveRequest> MakeSolveRequest(const Factorization& factorization, Scalar scalar,
                                                  size_t rhs_bytes, size_t solution_bytes,
                                                  const SolveOptions& options);
v1::SolveOptions ToProto(const SolveOptions& options);
v1::Accuracy ToProto(Accuracy accuracy);
v1::PriorityClass ToProto(Priority priority);

// The parts of replies beside their solutions.
SolveResult ToResult(v1::SolveReply& reply);
Conditioning ConditioningOf(const v1::FactoredSystem& system);

// `handles`: those to refactor in place, or none. Without an idempotency key a random one is made,
// so that a retry never factors twice.
v1::FactorOptions ToProto(const FactorOptions& options, std::span<const Factorization> handles);

// INVALID_ARGUMENT unless there is a system, all are in order and laid out alike, and there are as
// many handles of the same shape, or none.
absl::Status CheckSystems(std::span<const SystemView> systems,
                          std::span<const Factorization> handles);

int64_t TotalBytes(std::span<const SystemView> systems);  // all laid out alike
void SetData(const SystemView& system, v1::SystemData* data);

}  // namespace blockd::client

#endif  // BLOCKD_CLIENT_WIRE_REQUESTS_H_
