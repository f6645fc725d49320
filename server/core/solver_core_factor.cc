// Factor: admit, queue, run, keep, answer.
#include <algorithm>
#include <utility>

#include "server/core/solver_core_impl.h"

namespace blockd::server {

// One system of a batch.
struct SolverCore::Impl::FactorRun {
  DeviceBuffer recycled;     // the old factor's memory, to overwrite
  bool overwriting = false;  // the handle has no factor until this one ends
  FactorOutcome outcome;
};

void SolverCore::Impl::Factor(ContextPtr context, const FactorParams& params,
                              std::vector<BlockTridiagonalView> matrices, FactorDone done) {
  absl::Status status = BeginWork(*context);
  if (!status.ok()) return done(std::move(status));
  auto task =
      std::make_unique<FactorTask>(std::move(context), clock_->Now(), params, std::move(done));
  task->params.num_systems = static_cast<int64_t>(matrices.size());
  task->matrices = std::move(matrices);
  status = CheckFactor(task->params);
  if (status.ok()) {
    status = CheckMatrices(task->matrices, params.form, params.check_finite);
  }
  if (!status.ok()) return EndFactor(std::move(task), std::move(status));
  SubmitFactor(std::move(task));
}

void SolverCore::Impl::SubmitFactor(std::unique_ptr<FactorTask> task) {
  // What is held is found without owning the key. Once it is owned, nobody inserts it: it is looked
  // up again for what came in between.
  for (const bool owns : {false, true}) {
    if (task->params.idempotency_key.empty()) break;
    if (owns && !OwnKeyOrWait(task)) return;
    absl::StatusOr<std::optional<FactorReply>> found = FindKey(task->context->caller, task->params);
    Note(found.status());
    if (!found.ok()) return EndFactor(std::move(task), found.status());
    if (!found->has_value()) continue;
    (*found)->cost.queue = clock_->Now() - task->accepted;
    return EndFactor(std::move(task), **std::move(found));
  }
  const bool admitted = task->plan != nullptr;
  absl::Status status = admitted ? absl::OkStatus() : AdmitFactor(*task, /*staged=*/false);
  if (!status.ok()) return EndFactor(std::move(task), std::move(status));
  Queue(std::move(task));
}

// Takes the old factor out of the cache to be overwritten. Where somebody uses it, or it is another
// one by now, the new one needs memory of its own, and the old one stays until it is there.
void SolverCore::Impl::PrepareOverwrite(FactorTask& task, int64_t system, FactorRun& run) {
  FactorizationCache::Pin& pin = task.pins[system];
  const int64_t old_charge = FactorCharge(pin->plan());
  std::optional<Holding> old = cache_.BeginOverwrite(pin);
  if (!old) {
    const int64_t missing = FactorCharge(*task.plan) - task.factor_reserved[system];
    absl::StatusOr<Reservation> more = budget_.Reserve(missing);
    if (more.ok()) {
      task.reservation.Merge(*std::move(more));
    } else {
      run.outcome.status = more.status();
    }
    return;
  }
  run.overwriting = true;
  task.reservation.Merge(old->reservation.Split(old_charge));
  const bool same_size = old->factorization->plan().factor_bytes() == task.plan->factor_bytes();
  run.recycled = Factorization::Recycle(std::move(old->factorization));
  if (!same_size) run.recycled.Reset();
}

void SolverCore::Impl::RunFactors(std::span<FactorTask* const> tasks) {
  Piece piece;
  piece.started = clock_->Now();
  piece.requests = static_cast<int64_t>(tasks.size());
  for (const FactorTask* task : tasks) piece.items += task->params.num_systems;
  std::vector<FactorRun> runs(static_cast<size_t>(piece.items));  // the items point into it
  std::vector<FactorItem> items;
  std::vector<FactorRun*> run_of_item;
  size_t next = 0;
  for (FactorTask* task : tasks) {
    for (int64_t i = 0; i < task->params.num_systems; ++i) {
      FactorRun& run = runs[next++];
      if (task->params.overwrite && !task->pins.empty()) PrepareOverwrite(*task, i, run);
      if (!run.outcome.status.ok()) continue;
      FactorItem item;
      if (!task->matrices.empty()) item.matrix = task->matrices[i];
      if (!task->staged.empty()) item.staged = &task->staged[i];
      item.keep_matrix = task->params.keep_matrix;
      item.accuracy = task->params.accuracy;
      item.estimate_condition = task->params.condition_estimate;
      item.recycle = run.recycled ? &run.recycled : nullptr;
      item.cancelled = &task->context->cancelled;
      items.push_back(item);
      run_of_item.push_back(&run);
    }
  }
  std::vector<FactorOutcome> outcomes = FactorWithRetry(tasks[0]->plan, items, &piece.phases);
  for (size_t i = 0; i < outcomes.size(); ++i) run_of_item[i]->outcome = std::move(outcomes[i]);
  metrics_->RecordBatch(WorkKind::kFactor, piece.requests, piece.items,
                        tasks[0]->plan->factor_flops() * static_cast<double>(items.size()));
  next = 0;
  for (FactorTask* task : tasks) {
    const size_t systems = static_cast<size_t>(task->params.num_systems);
    absl::StatusOr<FactorReply> reply = KeepFactors(*task, std::span(runs).subspan(next, systems));
    if (reply.ok()) reply->cost = MakeCost(*task, piece, task->received);
    AnswerFactor(*task, std::move(reply));
    next += systems;
  }
  metrics_->RecordDeviceBusy(clock_->Now() - piece.started);
}

// The budget had room, so a refusal by the pool means that it is in pieces: make larger ones, and
// try once more, each item alone.
std::vector<FactorOutcome> SolverCore::Impl::FactorWithRetry(
    const std::shared_ptr<const EliminationPlan>& plan, std::span<const FactorItem> items,
    Phases* phases) {
  if (items.empty()) return {};
  std::vector<FactorOutcome> outcomes = solver_->Factor(plan, items, phases);
  const auto exhausted = [](const FactorOutcome& outcome) {
    return absl::IsResourceExhausted(outcome.status);
  };
  if (std::none_of(outcomes.begin(), outcomes.end(), exhausted)) return outcomes;
  const MatrixForm& form = items[0].staged ? items[0].staged->view().form : items[0].matrix.form;
  // What is staged has its memory.
  const bool staged = items[0].staged != nullptr, kept = items[0].keep_matrix && !staged;
  const int64_t alone = FactorCharge(*plan) +
                        solver_->FactorWorkspaceBytes(*plan, form, 1, staged || kept) +
                        (kept ? MatrixCharge(form) : 0);
  if (!Defragment(alone) && items.size() == 1) return outcomes;
  for (size_t i = 0; i < items.size(); ++i) {
    if (!exhausted(outcomes[i])) continue;
    outcomes[i] = std::move(solver_->Factor(plan, items.subspan(i, 1))[0]);
  }
  return outcomes;
}

void SolverCore::Impl::Describe(const Factorization& factorization, FactoredSystem& system) {
  system.conditioning = factorization.conditioning();
  system.backward_error_bound =
      BackwardErrorBound(factorization.shape(), factorization.conditioning().growth);
  system.matrix_kept = static_cast<bool>(factorization.matrix());
}

absl::Status SolverCore::Impl::OutcomeStatus(const Task& task, const MatrixSource& matrix,
                                             int64_t system, const FactorOutcome& outcome) {
  if (outcome.not_positive_definite) {
    return NotSpdStatus(matrix, system, *outcome.not_positive_definite);
  }
  Note(outcome.status);
  return absl::IsCancelled(outcome.status) ? task.EndStatus(clock_->Now()) : outcome.status;
}

// Moves what succeeded into the cache, each with its part of the task's reservation. With one
// system, its failure is the whole request's.
absl::StatusOr<FactorReply> SolverCore::Impl::KeepFactors(FactorTask& task,
                                                          std::span<FactorRun> runs) {
  const auto cancelled = [](const FactorRun& run) { return absl::IsCancelled(run.outcome.status); };
  // Nobody would learn the handles of those that were factored before.
  if (task.params.handles.empty() && std::any_of(runs.begin(), runs.end(), cancelled)) {
    return task.EndStatus(clock_->Now());
  }
  FactorReply reply;
  reply.systems.resize(runs.size());
  reply.factor_bytes = task.plan->factor_bytes();
  std::vector<Holding> holdings;
  for (size_t i = 0; i < runs.size(); ++i) {
    FactorRun& run = runs[i];
    FactoredSystem& system = reply.systems[i];
    const MatrixSource matrix = task.staged.empty() ? MatrixSource{.host = task.matrices[i]}
                                                    : MatrixSource{.staged = &task.staged[i]};
    system.status = OutcomeStatus(task, matrix, static_cast<int64_t>(i), run.outcome);
    std::shared_ptr<Factorization> factorization = std::move(run.outcome.factorization);
    if (system.status.ok() && task.params.log_determinant) {
      absl::StatusOr<double> log_determinant = solver_->LogDeterminant(*factorization);
      system.status = log_determinant.status();
      if (log_determinant.ok()) system.log_determinant = *log_determinant;
      Note(system.status);
    }
    if (!system.status.ok()) {
      if (run.overwriting) cache_.FailOverwrite(task.params.handles[i]);
      continue;
    }
    reply.factor_bytes = std::max(reply.factor_bytes, factorization->bytes());
    Describe(*factorization, system);
    const int64_t charge =
        FactorCharge(*task.plan) + (factorization->matrix() ? MatrixCharge(task.params.form) : 0);
    Holding holding{task.reservation.Split(charge), std::move(factorization)};
    if (task.params.handles.empty()) {
      holdings.push_back(std::move(holding));
      continue;
    }
    system.handle = task.params.handles[i];
    system.status = cache_.Replace(task.context->caller, system.handle, std::move(holding),
                                   {.lease = task.params.lease, .pin = task.params.pin});
  }
  if (!holdings.empty()) KeepNew(task, std::move(holdings), reply);
  if (reply.systems.size() == 1 && !reply.systems[0].status.ok()) return reply.systems[0].status;
  return reply;
}

void SolverCore::Impl::KeepNew(FactorTask& task, std::vector<Holding> holdings,
                               FactorReply& reply) {
  FactorizationCache::EntryOptions options;
  options.lease = LeaseOf(task.params);
  options.pin = task.params.pin;
  if (!task.params.idempotency_key.empty()) KeepKey(task.params, reply, options);
  const std::vector<Handle> handles =
      cache_.Insert(task.context->caller, std::move(holdings), options);
  size_t next = 0;
  for (FactoredSystem& system : reply.systems) {
    if (system.status.ok()) system.handle = handles[next++];
  }
}

void SolverCore::Impl::AnswerFactor(FactorTask& task, absl::StatusOr<FactorReply> reply) {
  // Whoever is told of the answer finds the memory back.
  task.pins.clear();
  task.staged.clear();
  task.reservation.Reset();
  if (task.owns_key) ReleaseKey(task, reply);
  task.owns_key = false;
  task.done(std::move(reply));
}

}  // namespace blockd::server
