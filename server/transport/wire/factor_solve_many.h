// FactorSolveMany on the wire, in a call of its own or as a frame of a SolveStream.
//
// Errors are INVALID_ARGUMENT and name the field. Functions without a state; what a view points to
// is the request's own memory.
#ifndef BLOCKD_SERVER_TRANSPORT_WIRE_FACTOR_SOLVE_MANY_H_
#define BLOCKD_SERVER_TRANSPORT_WIRE_FACTOR_SOLVE_MANY_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "blockd/v1/blockd.pb.h"
#include "server/core/common/request.h"
#include "server/transport/wire/wire.h"

namespace blockd::server {

// Reads the options that FactorSolve and FactorSolveMany have under the same names.
template <typename Request>
absl::Status ReadFactorSolveOptions(const Request& request, FactorSolveOptions* options) {
  options->overwrite = request.overwrite();
  options->keep_matrix = request.keep_matrix();
  options->residual = request.options().residual();
  options->max_refinements = request.options().max_refinements();
  options->check_finite = request.check_finite();
  options->check_finite_rhs = request.check_finite() || request.options().check_finite();
  absl::StatusOr<Accuracy> accuracy = ToAccuracy("accuracy", request.accuracy());
  if (!accuracy.ok()) return accuracy.status();
  options->accuracy = *accuracy;
  return absl::OkStatus();
}

absl::Status ReadHandles(const v1::FactorSolveManyRequest& request, FactorSolveManyParams* params);
int64_t NumRhs(const v1::FactorSolveManyRequest& request);  // of each system
// All but the priority, and the solves, for which there may be no room yet; the right-hand sides
// have the bytes that they must have.
absl::StatusOr<FactorSolveManyParams> ToFactorSolveManyParams(
    const v1::FactorSolveManyRequest& request);
// The solves of a request that was read so, each with its part of `solutions`, which has as many
// bytes as the right-hand sides.
void AddSolves(const v1::FactorSolveManyRequest& request, std::span<std::byte> solutions,
               FactorSolveManyParams* params);

// All but the solution.
void ToWire(const FactorSolveManyReply& reply, v1::SolveManyReply* wire);
// Nothing is said of a solution that there is not.
void ClearFailed(const FactorSolveManyReply& reply,
                 std::span<const SolveManyParams::Columns> solves);

}  // namespace blockd::server

#endif  // BLOCKD_SERVER_TRANSPORT_WIRE_FACTOR_SOLVE_MANY_H_
