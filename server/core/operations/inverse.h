// SelectedInverse and Sample on one device: each runs alone, on the lane of what factors, where no
// Solve waits for it. The memory that it needs is reserved before it waits, for a sample that of so
// many columns that more would be no faster.
//
// Thread-safe.
#ifndef BLOCKD_SERVER_CORE_OPERATIONS_INVERSE_H_
#define BLOCKD_SERVER_CORE_OPERATIONS_INVERSE_H_

#include <cstdint>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "server/core/operations/kept_factorization.h"
#include "server/core/shard/shard.h"
#include "server/core/shard/task.h"
#include "server/core/tenants/admission.h"

namespace blockd::server {

class InverseOperation final : public Operation {
 public:
  InverseOperation(Admission* admission, Shard* shard) : admission_(admission), shard_(shard) {}

  // As SolverCore says them.
  void StartInverse(ContextPtr context, const SelectedInverseParams& params, CostDone done);
  void StartSample(ContextPtr context, const SampleParams& params, CostDone done);
  Completion Run(const std::vector<TaskPtr>& batch) override;
  void Fail(TaskPtr task, const absl::Status& status) override;

 private:
  struct InverseTask : Task {
    InverseTask(Operation* operation, Method method, ContextPtr context, Permit permit,
                absl::Time accepted, CostDone done)
        : Task(operation, method, std::move(context), std::move(permit), accepted),
          done(std::move(done)) {}

    CostDone done;
    FactorizationPin pin;
    bool samples = false;           // which of the two it is
    SelectedInverseParams inverse;  //
    SampleParams sample;            //
  };

  void Start(ContextPtr context, Method method, const Handle& handle, CostDone done,
             absl::FunctionRef<absl::Status(InverseTask&)> prepare);
  absl::Status PrepareInverse(InverseTask& task) const;
  absl::Status PrepareSample(InverseTask& task) const;
  static InverseItem ItemOf(const InverseTask& task);
  // Pieces of device memory that it takes; bytes.
  std::vector<int64_t> Pieces(const InverseTask& task) const;
  double PredictedSeconds(const InverseTask& task) const;

  absl::Status Compute(InverseTask& task, RanBatch& ran);
  absl::Status Invert(InverseTask& task, Phases* phases);
  absl::Status Sample(InverseTask& task);
  void Answer(InverseTask& task, absl::Status status, const Cost& cost);

  Admission* const admission_;
  Shard* const shard_;
};

}  // namespace blockd::server

#endif  // BLOCKD_SERVER_CORE_OPERATIONS_INVERSE_H_
