// FactorSolve and FactorSolveMany until a device has them: one that suits where nothing is kept,
// else those that hold the handles.
//
// Thread-safe.
#ifndef BLOCKD_SERVER_CORE_OPERATIONS_FACTOR_SOLVE_REQUESTS_H_
#define BLOCKD_SERVER_CORE_OPERATIONS_FACTOR_SOLVE_REQUESTS_H_

#include <deque>

#include "server/core/common/request.h"
#include "server/core/operations/factor_solve.h"
#include "server/core/shard/shards.h"

namespace blockd::server {

class FactorSolveRequests {
 public:
  // Both outlive it. One operation a device, in the order of the devices.
  FactorSolveRequests(Shards* shards, std::deque<FactorSolveOperation>* operations)
      : shards_(shards), operations_(operations) {}

  // As SolverCore says them.
  void Start(ContextPtr context, const FactorSolveParams& params, SolveDone done);
  // Systems whose handles several devices hold are a request of each of these.
  void StartMany(ContextPtr context, FactorSolveManyParams params, FactorSolveManyDone done);

 private:
  FactorSolveOperation& For(const FactorSolveParams& params);

  Shards* const shards_;
  std::deque<FactorSolveOperation>* const operations_;
};

}  // namespace blockd::server

#endif  // BLOCKD_SERVER_CORE_OPERATIONS_FACTOR_SOLVE_REQUESTS_H_
