// FactorSolve on one device: everything is reserved at once, systems of one
// plan are factored and then solved for together, whoever asks. With handles the factors are kept
// in the place of the old ones, if all went well; else nothing is.
//
// Thread-safe.
#ifndef BLOCKD_SERVER_CORE_OPERATIONS_FACTOR_SOLVE_H_
#define BLOCKD_SERVER_CORE_OPERATIONS_FACTOR_SOLVE_H_

#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "server/core/operations/kept_factorization.h"
#include "server/core/operations/refactor.h"
#include "server/core/shard/placement.h"
#include "server/core/shard/shard.h"
#include "server/core/shard/task.h"
#include "server/core/tenants/admission.h"

namespace blockd::server {

// One of the systems of a task.
struct FactorSolvePart {
  size_t system = 0;     // in the request
  FactorizationPin old;  // what its handle holds; empty without one
  int64_t reserved = 0;  // of the permit's device memory, for its factor; bytes
  Overwritten overwritten;
  FactorOutcome factored;
};

struct FactorSolveTask : Task {
  FactorSolveTask(Operation* operation, ContextPtr context, Permit permit, absl::Time accepted,
                  FactorSolveParams params, FactorSolveDone done)
      : Task(operation, Method::kFactorSolve, std::move(context), std::move(permit), accepted),
        params(std::move(params)),
        done(std::move(done)) {}

  bool has_handles() const { return !params.handles.empty(); }

  FactorSolveParams params;
  FactorSolveDone done;
  std::shared_ptr<const EliminationPlan> plan;
  std::vector<FactorSolveOutcome> outcomes;  // one a system
  std::vector<FactorSolvePart> parts;        // of those that were not refused
};

class FactorSolveOperation final : public Operation {
 public:
  FactorSolveOperation(Admission* admission, Shard* shard) : admission_(admission), shard_(shard) {}

  void Start(ContextPtr context, FactorSolveParams params, FactorSolveDone done);
  // Fills in the needs of a request without handles on this device, bytes and predicted seconds, to
  // choose a device by.
  absl::Status Ask(const FactorSolveParams& params, Offer& offer) const;
  Completion Run(const std::vector<TaskPtr>& batch) override;
  void Fail(TaskPtr task, const absl::Status& status) override;

 private:
  using Tasks = std::span<FactorSolveTask* const>;

  // The error of the request as a whole.
  absl::Status Check(const FactorSolveParams& params) const;
  // The error of one of its systems.
  absl::Status CheckSystem(const FactorSolveTask& task, size_t system) const;
  // Makes a part of each system that is not refused, and pins what its handle holds.
  void MakeParts(FactorSolveTask& task);
  // The plan, and all memory that the parts need.
  absl::Status Admit(FactorSolveTask& task);
  Ticket MakeTicket(const FactorSolveTask& task) const;

  void FactorAll(Tasks tasks, RanBatch& ran);
  void SolveAll(Tasks tasks, RanBatch& ran);
  // The part's outcome. If it succeeded its factors are in force.
  absl::Status Finish(FactorSolveTask& task, FactorSolvePart& part, FactorSolveOutcome& outcome);
  absl::Status Keep(FactorSolveTask& task, FactorSolvePart& part, FactorSolveOutcome& outcome);
  void Answer(FactorSolveTask& task, const RanBatch& ran);

  Admission* const admission_;
  Shard* const shard_;
};

}  // namespace blockd::server

#endif  // BLOCKD_SERVER_CORE_OPERATIONS_FACTOR_SOLVE_H_
