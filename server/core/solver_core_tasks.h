// What waits in the core's queue. Private to the core.
#ifndef BLOCKD_SERVER_CORE_SOLVER_CORE_TASKS_H_
#define BLOCKD_SERVER_CORE_SOLVER_CORE_TASKS_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "server/core/batcher.h"
#include "server/core/factorization_cache.h"
#include "server/core/memory_budget.h"
#include "server/core/solver_core.h"

namespace blockd::server {

// A request under way. Its answer is given exactly once.
struct Task {
  Task(WorkKind kind, Method method, ContextPtr context, absl::Time accepted)
      : kind(kind),
        method(context->method.value_or(method)),
        context(std::move(context)),
        accepted(accepted) {}
  virtual ~Task() = default;

  bool ended(absl::Time now) const {
    return context->deadline <= now || context->cancelled.load(std::memory_order_relaxed);
  }
  // Why it was to stop. The deadline first: whoever cancels because of the deadline means that.
  absl::Status EndStatus(absl::Time now) const {
    return context->deadline <= now ? absl::DeadlineExceededError("the deadline has passed")
                                    : absl::CancelledError("the request was cancelled");
  }

  const WorkKind kind;
  const Method method;
  const ContextPtr context;
  absl::Time accepted;
};

struct SolveTask : Task {
  SolveTask(ContextPtr context, absl::Time accepted, const SolveParams& params, SolveDone done)
      : Task(WorkKind::kSolve, Method::kSolve, std::move(context), accepted),
        params(params),
        done(std::move(done)) {}

  SolveParams params;
  FactorizationCache::Pin pin;
  SolveDone done;
};

struct FactorTask : Task {
  FactorTask(ContextPtr context, absl::Time accepted, FactorParams params, FactorDone done)
      : Task(WorkKind::kFactor, Method::kFactor, std::move(context), accepted),
        params(std::move(params)),
        done(std::move(done)) {}
  FactorParams params;
  FactorDone done;
  Reservation reservation;  // destroyed after the memory that it stands for
  std::shared_ptr<const EliminationPlan> plan;
  std::vector<BlockTridiagonalView> matrices;  // host memory, or
  std::vector<StagedMatrix> staged;            // device memory
  absl::Duration received;                     // how long its upload took
  std::vector<FactorizationCache::Pin> pins;   // what is refactored
  std::vector<int64_t> factor_reserved;        // of `reservation`, for each system's factor; bytes
  bool owns_key = false;                       // others with its idempotency key wait for it
};

struct FactorSolveTask : Task {
  FactorSolveTask(ContextPtr context, absl::Time accepted, const FactorSolveParams& params,
                  SolveDone done)
      : Task(WorkKind::kFactorSolve, Method::kFactorSolve, std::move(context), accepted),
        params(params),
        done(std::move(done)) {}

  FactorSolveParams params;
  SolveDone done;
  Reservation reservation;
  std::shared_ptr<const EliminationPlan> plan;
};

using TaskPtr = std::unique_ptr<Task>;

}  // namespace blockd::server

#endif  // BLOCKD_SERVER_CORE_SOLVER_CORE_TASKS_H_
