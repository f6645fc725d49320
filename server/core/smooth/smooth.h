// Smooth: assembles the systems of a model in groups, has devices smooth them (smooth_operation.h),
// and keeps their factorizations where the call asks for that. It is one accepted request with one
// place in the queue, however many systems it has.
//
// Thread-safe.
#ifndef BLOCKD_SERVER_CORE_SMOOTH_SMOOTH_H_
#define BLOCKD_SERVER_CORE_SMOOTH_SMOOTH_H_

#include <deque>

#include "blockd/engine/step_pool.h"
#include "server/core/common/request.h"
#include "server/core/common/smooth_request.h"
#include "server/core/operations/solve_requests.h"
#include "server/core/shard/shards.h"
#include "server/core/smooth/smooth_operation.h"
#include "server/core/tenants/admission.h"

namespace blockd::server {

// All outlive the request. One operation a device, in the order of the devices.
struct SmoothDevices {
  Admission* admission = nullptr;
  Shards* shards = nullptr;
  SolveRequests* solves = nullptr;
  std::deque<SmoothOperation>* operations = nullptr;
  StepPool* pool = nullptr;
  Budget* host = nullptr;  // of host memory
};

// Assembles on the calling thread and those of the pool, which takes as long as a factorization of
// the blocks that the model has, or has the device do most of it where that pays
// (Smoother::IsForDevice) and where it has memory of its own; then as SolverCore::Smooth says.
void StartSmooth(const SmoothDevices& devices, ContextPtr context, const MeasuredSmooth& measured,
                 const KeepModel& kept, const SmoothResults& results, PostWork post,
                 SmoothDone done);

}  // namespace blockd::server

#endif  // BLOCKD_SERVER_CORE_SMOOTH_SMOOTH_H_
