// Systems of a Smooth in orthogonal form, on the server's processors: those that have no
// information form, and those whose numbers from a device are not good enough.
#ifndef BLOCKD_SERVER_CORE_SMOOTH_ORTHOGONAL_H_
#define BLOCKD_SERVER_CORE_SMOOTH_ORTHOGONAL_H_

#include <cstddef>
#include <memory>
#include <span>

#include "absl/status/status.h"
#include "server/core/common/smooth_request.h"
#include "server/core/smooth/smooth.h"

namespace blockd::server {

// Writes all results of these systems, their forms, errors and log-likelihoods, but for the
// reasons; on the calling thread and those of the pool, a system each. INVALID_ARGUMENT with
// SingularCovariance or NotSmoothable, RESOURCE_EXHAUSTED for want of host memory; ends between two
// systems if the request is over.
absl::Status SmoothOrthogonally(const SmoothDevices& devices, const RequestContext& context,
                                const MeasuredSmooth& measured, std::span<const size_t> systems,
                                const SmoothResults& results, SmoothReply* reply);

// All systems of a model that is not smoothed in information form, for a reason.
std::shared_ptr<PendingSmooth> MakeOrthogonalSmooth(const SmoothDevices& devices,
                                                    ContextPtr context,
                                                    const MeasuredSmooth& measured,
                                                    SmoothedSystem::Reason reason,
                                                    const SmoothResults& results);

}  // namespace blockd::server

#endif  // BLOCKD_SERVER_CORE_SMOOTH_ORTHOGONAL_H_
