// FactorSolve: nothing is kept, everything is reserved at once.
//
// Thread-safe.
#ifndef BLOCKD_SERVER_CORE_OPERATIONS_FACTOR_SOLVE_H_
#define BLOCKD_SERVER_CORE_OPERATIONS_FACTOR_SOLVE_H_

#include <memory>
#include <utility>
#include <vector>

#include "server/core/shard.h"
#include "server/core/task.h"

namespace blockd::server {

struct FactorSolveTask : Task {
  FactorSolveTask(Operation* operation, ContextPtr context, Permit permit, absl::Time accepted,
                  const FactorSolveParams& params, SolveDone done)
      : Task(operation, Method::kFactorSolve, std::move(context), std::move(permit), accepted),
        params(params),
        done(std::move(done)) {}

  FactorSolveParams params;
  SolveDone done;
  std::shared_ptr<const EliminationPlan> plan;
};

class FactorSolveOperation final : public Operation {
 public:
  explicit FactorSolveOperation(Shard* shard) : shard_(shard) {}

  void Start(ContextPtr context, const FactorSolveParams& params, SolveDone done);
  void Run(const std::vector<TaskPtr>& batch) override;
  void Fail(TaskPtr task, const absl::Status& status) override;

 private:
  absl::Status Check(const FactorSolveParams& params) const;
  absl::Status Admit(FactorSolveTask& task);
  std::vector<SolveOutcome> Solve(std::span<const SolveItem> items, Phases* phases);
  void Answer(FactorSolveTask& task, FactorOutcome factored, const SolveOutcome& solved,
              const RanBatch& ran);

  Shard* const shard_;
};

}  // namespace blockd::server

#endif  // BLOCKD_SERVER_CORE_OPERATIONS_FACTOR_SOLVE_H_
