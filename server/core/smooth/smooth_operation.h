// Some systems of a Smooth on one device: all are factored, but for those that are held already,
// and solved for together with others of their plan; then one after another is inverted and
// sampled. Where others wait, the task goes back to the queue between two of these steps.
//
// Thread-safe.
#ifndef BLOCKD_SERVER_CORE_SMOOTH_SMOOTH_OPERATION_H_
#define BLOCKD_SERVER_CORE_SMOOTH_SMOOTH_OPERATION_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "server/core/operations/kept_factorization.h"
#include "server/core/shard/shard.h"
#include "server/core/shard/task.h"

namespace blockd::server {

// Consecutive samples of one system.
struct SmoothDraw {
  uint64_t first_sample = 0;
  int64_t num_samples = 0;
  std::span<double> samples;
};

// One system, and where its results go.
struct SmoothPart {
  bool inverts() const { return !diagonal.empty(); }

  size_t system = 0;  // in the request
  bool is_held = false;
  FactorizationPin held;  // if so
  // Unless it is held: A in host memory, or its form and what the device makes it of.
  BlockTridiagonalView matrix;
  const InformationForm* information = nullptr;
  std::vector<std::span<double>> means;  // one a series; right-hand sides until it is solved
  InverseParts parts = InverseParts::kDiagonalBlocks;
  std::span<double> diagonal, coupling;  // no diagonal: no inverse is wanted
  std::vector<SmoothDraw> draws;

  std::shared_ptr<Factorization> factorization;  // once it is factored, or held
  double log_determinant = 0;                    // of one that was factored
};

struct SmoothTask : Task {
  // It keeps what it wants of the parts and gives the rest back, with GiveBack.
  using Done = absl::AnyInvocable<void(SmoothTask& task)>;
  SmoothTask(Operation* operation, ContextPtr context, Permit permit, absl::Time accepted,
             Done done)
      : Task(operation, Method::kSmooth, std::move(context), std::move(permit), accepted),
        done(std::move(done)) {}

  void GiveBack() {
    parts.clear();
    permit.GiveBack();
  }

  Done done;
  uint64_t seed = 0;  // of the samples
  bool log_determinant = false;
  std::vector<SmoothPart> parts;  // at least one
  // As Ask fills them in; the permit has so much before the task is submitted.
  std::shared_ptr<const EliminationPlan> plan;
  int64_t device_bytes = 0;

  absl::Status status;  // the first failure
  Cost cost;

  // The next step, after all parts were solved: of the part `next`, its inverse or a draw.
  bool solved = false;
  size_t next = 0, drawn = 0;
  bool inverted = false;
};

class SmoothOperation final : public Operation {
 public:
  explicit SmoothOperation(Shard* shard) : shard_(shard) {}

  // Fills in the task's plan, device memory and ticket for this device.
  absl::Status Ask(SmoothTask& task) const;
  Completion Run(const std::vector<TaskPtr>& batch) override;
  void Fail(TaskPtr task, const absl::Status& status) override;

 private:
  using Tasks = std::span<SmoothTask* const>;

  int64_t DeviceBytes(const SmoothTask& task) const;
  InverseItem InverseOf(const SmoothTask& task, const SmoothPart& part) const;
  // These three for all steps that are left, for the first, and for the one after it.
  double PredictedSeconds(const SmoothTask& task, int64_t times = 1) const;
  double PredictedFirst(const SmoothTask& task, int64_t times) const;
  double PredictedNext(const SmoothTask& task) const;
  void WriteTicket(SmoothTask& task) const;

  // Factors and solves the parts of all tasks; flops.
  double RunFirst(Tasks tasks, RanBatch& ran);
  void FactorAll(Tasks tasks, RanBatch& ran);
  void SolveAll(Tasks tasks, RanBatch& ran);
  // As many steps as it was granted; flops.
  double RunRest(SmoothTask& task, double spent_seconds, RanBatch& ran);
  // The next step; flops.
  double RunNext(SmoothTask& task, RanBatch& ran);
  absl::Status Invert(SmoothTask& task, SmoothPart& part, Phases* phases);
  // Moves on to the next step there is; false if it was the last.
  static bool HasNext(SmoothTask& task);
  void Note(SmoothTask& task, absl::Status status);
  void Answer(SmoothTask& task);

  Shard* const shard_;
};

}  // namespace blockd::server

#endif  // BLOCKD_SERVER_CORE_SMOOTH_SMOOTH_OPERATION_H_
