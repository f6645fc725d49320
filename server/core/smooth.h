// Smooth, over the core's own Factor, SolveMany, SelectedInverse and Sample: a chain of them for
// each system, all chains at once. It is one accepted request, whose parts only wait for places.
//
// Thread-safe.
#ifndef BLOCKD_SERVER_CORE_SMOOTH_H_
#define BLOCKD_SERVER_CORE_SMOOTH_H_

#include "blockd/engine/step_pool.h"
#include "server/core/common/request.h"
#include "server/core/common/smooth_request.h"
#include "server/core/tenants/admission.h"

namespace blockd::server {

class SolverCore;

// Assembles on the calling thread and those of `pool`, which takes as long as a factorization of
// the blocks that the model has, or has the device do most of it where that pays
// (Smoother::IsForDevice) and where it has memory of its own; then as SolverCore::Smooth says.
void StartSmooth(SolverCore* core, Admission* admission, StepPool* pool, ContextPtr context,
                 const MeasuredSmooth& measured, const KeepModel& kept,
                 const SmoothResults& results, PostWork post, SmoothDone done);

}  // namespace blockd::server

#endif  // BLOCKD_SERVER_CORE_SMOOTH_H_
