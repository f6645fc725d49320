// The parameters of a FactorSolve beside its data, over gRPC and in shared memory, where the data
// lies elsewhere; and those of a FactorSolveMany in shared memory.
//
// Errors are INVALID_ARGUMENT and name the field. Plain functions; a record is used by one thread
// at a time. Matrices point to the palette's indices in the request, which outlives them.
#ifndef BLOCKD_SERVER_TRANSPORT_CALLS_FACTOR_SOLVE_PARAMS_H_
#define BLOCKD_SERVER_TRANSPORT_CALLS_FACTOR_SOLVE_PARAMS_H_

#include "absl/status/statusor.h"
#include "blockd/v1/blockd.pb.h"
#include "server/core/common/request.h"
#include "server/transport/rpc/call.h"

namespace blockd::server {

// Form, handle, num_rhs and options; the matrix has no blocks yet.
absl::StatusOr<FactorSolveParams> ReadHead(const v1::FactorSolveRequest& request,
                                           CallRecord* record);
// A matrix without blocks, and columns that say how many they are, for each of the handles.
absl::StatusOr<FactorSolveManyParams> ReadHead(const v1::FactorSolveManyRequest& request,
                                               CallRecord* record);

}  // namespace blockd::server

#endif  // BLOCKD_SERVER_TRANSPORT_CALLS_FACTOR_SOLVE_PARAMS_H_
