// Options that FactorSolve and FactorSolveMany have under the same names.
#ifndef BLOCKD_SERVER_TRANSPORT_CALLS_FACTOR_SOLVE_OPTIONS_H_
#define BLOCKD_SERVER_TRANSPORT_CALLS_FACTOR_SOLVE_OPTIONS_H_

#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/core/common/errors.h"
#include "server/core/common/request.h"
#include "server/transport/wire/wire.h"

namespace blockd::server {

template <typename Request>
absl::Status ReadFactorSolveOptions(const Request& request, FactorSolveOptions* options) {
  options->overwrite = request.overwrite();
  options->keep_matrix = request.keep_matrix();
  options->residual = request.options().residual();
  options->max_refinements = request.options().max_refinements();
  options->check_finite = request.check_finite();
  options->check_finite_rhs = request.check_finite() || request.options().check_finite();
  const absl::StatusOr<Accuracy> accuracy = ToAccuracy("accuracy", request.accuracy());
  if (!accuracy.ok()) return accuracy.status();
  options->accuracy = *accuracy;
  return absl::OkStatus();
}

}  // namespace blockd::server

#endif  // BLOCKD_SERVER_TRANSPORT_CALLS_FACTOR_SOLVE_OPTIONS_H_
