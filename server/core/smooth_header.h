// Checks of a Smooth that need only its header, before its arrays have come.
//
// Pure functions.
#ifndef BLOCKD_SERVER_CORE_SMOOTH_HEADER_H_
#define BLOCKD_SERVER_CORE_SMOOTH_HEADER_H_

#include <cstdint>

#include "absl/status/status.h"
#include "server/core/request.h"
#include "server/core/smooth_request.h"

namespace blockd::server {

// INVALID_ARGUMENT with the proto's path of the field: sizes, samples, the lease, and the priority
// of `context`. The arrays of `params` are not looked at.
absl::Status CheckSmoothHeader(const SmoothParams& params, const RequestContext& context,
                               const CoreLimits& limits);

// The sizes of the results with so many systems, at least 1; `work_bytes` is 0. Of params whose
// header is right.
SmoothSizes SmoothSizesOf(const SmoothParams& params, int64_t systems);

}  // namespace blockd::server

#endif  // BLOCKD_SERVER_CORE_SMOOTH_HEADER_H_
