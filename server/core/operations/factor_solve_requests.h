// FactorSolves until devices have them: one that suits where nothing is kept, else those that hold
// the handles.
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

  // As SolverCore says it. Systems whose handles several devices hold are a request of each of
  // these.
  void Start(ContextPtr context, FactorSolveParams params, FactorSolveDone done);

 private:
  // The one for a request without handles.
  FactorSolveOperation& Choose(const FactorSolveParams& params);

  Shards* const shards_;
  std::deque<FactorSolveOperation>* const operations_;
};

}  // namespace blockd::server

#endif  // BLOCKD_SERVER_CORE_OPERATIONS_FACTOR_SOLVE_REQUESTS_H_
