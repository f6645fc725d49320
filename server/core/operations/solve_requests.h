// Solve and SolveMany until they are queued: pins the factorizations on whichever devices hold
// them, and makes a task for each plan of each device.
//
// Thread-safe.
#ifndef BLOCKD_SERVER_CORE_OPERATIONS_SOLVE_REQUESTS_H_
#define BLOCKD_SERVER_CORE_OPERATIONS_SOLVE_REQUESTS_H_

#include <cstddef>
#include <deque>
#include <memory>
#include <span>
#include <vector>

#include "server/core/common/request.h"
#include "server/core/operations/solve.h"
#include "server/core/shard/shards.h"
#include "server/core/tenants/admission.h"

namespace blockd::server {

class SolveRequests {
 public:
  // All outlive it. One operation a device, in the order of the devices.
  SolveRequests(Admission* admission, Shards* shards, std::deque<SolveOperation>* operations)
      : admission_(admission), shards_(shards), operations_(operations) {}

  // As SolverCore says them.
  void Start(ContextPtr context, const SolveParams& params, SolveDone done);
  void StartMany(ContextPtr context, SolveManyParams params, SolveManyDone done);
  // The same of at least one solve, as a part of an accepted request that is not over.
  void StartPart(ContextPtr context, Permit permit, SolveManyParams params, SolveManyDone done);

 private:
  // The ingredients of a request's tasks.
  struct Tasks {
    const ContextPtr& context;
    const Method method;
    Permit& permit;  // moves to the first task; the others get one of their own
    const std::shared_ptr<SolveRequest>& request;
    std::vector<std::unique_ptr<SolveTask>> made = {};
    int64_t bytes = 0;  // of their right-hand sides
  };

  void StartAll(ContextPtr context, Method method, Permit permit, SolveManyParams params,
                SolveManyDone done);
  absl::Status Check(const RequestContext& context, const SolveManyParams& params,
                     const SolveManyParams::Columns& columns,
                     const Factorization& factorization) const;
  absl::Status MakeAll(Tasks& tasks);
  // Makes the tasks of one device, for these solves or, if `solves` is empty, for all. The outcome
  // of a solve has its error.
  absl::Status Make(size_t shard, std::span<const Handle> handles, std::span<const size_t> solves,
                    Tasks& tasks);

  Admission* const admission_;
  Shards* const shards_;
  std::deque<SolveOperation>* const operations_;
};

}  // namespace blockd::server

#endif  // BLOCKD_SERVER_CORE_OPERATIONS_SOLVE_REQUESTS_H_
