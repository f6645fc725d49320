#include "server/core/operations/factor_solve.h"

#include <algorithm>

#include "server/core/finite_scanner.h"
#include "server/core/operations/checks.h"
#include "server/core/operations/factor_outcome.h"

namespace blockd::server {

absl::Status FactorSolveOperation::Check(const FactorSolveParams& params) const {
  const MatrixForm& form = params.matrix.form;
  absl::Status status = CheckSpec(form);
  if (status.ok()) {
    status = CheckRhs(form.shape, params.num_rhs, static_cast<int64_t>(params.rhs.size()),
                      static_cast<int64_t>(params.solution.size()), params.max_refinements,
                      shard_->limits());
  }
  if (status.ok()) status = CheckMatrices({&params.matrix, 1}, form, params.check_finite);
  if (status.ok() && params.check_finite_rhs) {
    status = CheckFiniteRhs(form.shape.scalar, form.shape.rows(), params.rhs);
  }
  return status;
}

absl::Status FactorSolveOperation::Admit(FactorSolveTask& task) {
  const FactorSolveParams& params = task.params;
  const MatrixForm& form = params.matrix.form;
  absl::StatusOr<std::shared_ptr<const EliminationPlan>> plan = shard_->PlanFor(form, 1);
  if (!plan.ok()) return plan.status();
  task.plan = *std::move(plan);
  absl::Status status =
      shard_->TakeUpload(task.permit, form.bytes() + static_cast<int64_t>(params.rhs.size()));
  if (!status.ok()) return status;
  const bool keeps = params.may_keep_matrix();
  int64_t bytes = Shard::FactorCharge(*task.plan) +
                  shard_->solver().FactorWorkspaceBytes(*task.plan, form, 1, keeps) +
                  shard_->solver().SolveWorkspaceBytes(*task.plan, params.num_rhs, keeps);
  if (keeps) bytes += Shard::MatrixCharge(form);
  absl::StatusOr<Reservation> device = shard_->device().Reserve(task.permit.tenant, bytes);
  if (!device.ok()) return device.status();
  task.permit.device = *std::move(device);
  return absl::OkStatus();
}

void FactorSolveOperation::Start(ContextPtr context, const FactorSolveParams& params,
                                 SolveDone done) {
  absl::StatusOr<Permit> permit = shard_->Admit(*context);
  if (!permit.ok()) return done(permit.status());
  auto task = std::make_unique<FactorSolveTask>(this, std::move(context), *std::move(permit),
                                                shard_->Now(), params, std::move(done));
  absl::Status status = Check(params);
  if (status.ok()) status = Admit(*task);
  if (!status.ok()) return Fail(std::move(task), status);
  const CostModel costs = shard_->solver().backend().costs(task->plan->shape());
  Ticket ticket;
  ticket.key = {WorkKind::kFactorSolve, task->plan};
  ticket.seconds = PredictedFactorSeconds(*task->plan, costs) +
                   PredictedSolveSeconds(*task->plan, params.num_rhs, costs);
  ticket.marginal_seconds = PredictedFactorSeconds(*task->plan, costs, 2) +
                            PredictedSolveSeconds(*task->plan, params.num_rhs, costs, 2) -
                            ticket.seconds;
  ticket.items = params.num_rhs;
  ticket.bytes = params.matrix.form.bytes() + static_cast<int64_t>(params.rhs.size());
  task->set_ticket(std::move(ticket));
  shard_->Submit(std::move(task));
}

void FactorSolveOperation::Fail(TaskPtr task, const absl::Status& status) {
  FactorOutcome none;
  none.status = status;
  Answer(static_cast<FactorSolveTask&>(*task), std::move(none), {}, {});
}

// The budget had room, so a refusal by the pool means that it is in pieces: makes larger ones, and
// tries once more, each item alone.
std::vector<SolveOutcome> FactorSolveOperation::Solve(std::span<const SolveItem> items,
                                                      Phases* phases) {
  std::vector<SolveOutcome> outcomes = shard_->solver().Solve(items, phases, Track::kFactor);
  for (size_t i = 0; i < items.size(); ++i) {
    if (!absl::IsResourceExhausted(outcomes[i].status)) continue;
    const Factorization& factorization = *items[i].factorization;
    const std::vector<int64_t> pieces = shard_->solver().SolvePieces(
        factorization.plan(), items[i].num_rhs, static_cast<bool>(factorization.matrix()));
    shard_->Defragment(pieces);
    outcomes[i] = shard_->solver().Solve(items.subspan(i, 1), nullptr, Track::kFactor)[0];
    outcomes[i].status = SayInPieces(*shard_, outcomes[i].status, pieces);
  }
  return outcomes;
}

void FactorSolveOperation::Run(const std::vector<TaskPtr>& batch) {
  const std::vector<FactorSolveTask*> tasks = TasksOf<FactorSolveTask>(batch);
  const std::shared_ptr<const EliminationPlan> plan = tasks[0]->plan;
  RanBatch ran;
  ran.started = shard_->Now();
  shard_->BeginWork();
  ran.requests = ran.items = static_cast<int64_t>(tasks.size());
  std::vector<FactorItem> factor_items(tasks.size());
  for (size_t i = 0; i < tasks.size(); ++i) {
    const FactorSolveParams& params = tasks[i]->params;
    factor_items[i].matrix = params.matrix;
    factor_items[i].keep_matrix = params.measures();
    factor_items[i].accuracy = params.accuracy;
    factor_items[i].cancelled = &tasks[i]->context->cancelled;
  }
  std::vector<FactorOutcome> factored = FactorWithRetry(*shard_, plan, factor_items, &ran.phases);

  std::vector<SolveItem> solve_items;
  int64_t columns = 0;
  for (size_t i = 0; i < tasks.size(); ++i) {
    if (!factored[i].status.ok()) continue;
    const FactorSolveParams& params = tasks[i]->params;
    solve_items.push_back({.factorization = factored[i].factorization,
                           .rhs = params.rhs.data(),
                           .solution = params.solution.data(),
                           .num_rhs = params.num_rhs,
                           .residual = params.residual,
                           .max_refinements = params.max_refinements,
                           .cancelled = &tasks[i]->context->cancelled});
    columns += params.num_rhs;
  }
  Phases solve_phases;
  const std::vector<SolveOutcome> solved = Solve(solve_items, &solve_phases);
  ran.phases.upload_seconds += solve_phases.upload_seconds;
  ran.phases.compute_seconds += solve_phases.compute_seconds;
  ran.phases.download_seconds += solve_phases.download_seconds;
  shard_->metrics().RecordBatch(WorkKind::kFactorSolve, ran.requests, ran.items,
                                plan->factor_flops() * static_cast<double>(tasks.size()) +
                                    (columns > 0 ? plan->solve_flops(columns) : 0));

  shard_->EndWork();
  solve_items.clear();  // the last to share the factorizations with `factored`
  size_t next = 0;
  for (size_t i = 0; i < tasks.size(); ++i) {
    const SolveOutcome none;
    const SolveOutcome& solution = factored[i].status.ok() ? solved[next++] : none;
    Answer(*tasks[i], std::move(factored[i]), solution, ran);
  }
}

void FactorSolveOperation::Answer(FactorSolveTask& task, FactorOutcome factored,
                                  const SolveOutcome& solved, const RanBatch& ran) {
  SolveReply reply;
  absl::Status status = OutcomeStatus(*shard_, task, {.host = task.params.matrix}, 0, factored);
  if (status.ok() && !solved.status.ok()) {
    shard_->Note(solved.status);
    status = absl::IsCancelled(solved.status) ? task.EndStatus(shard_->Now()) : solved.status;
  }
  if (status.ok() && task.params.log_determinant) {
    absl::StatusOr<double> log_determinant =
        shard_->solver().LogDeterminant(*factored.factorization);
    status = log_determinant.status();
    shard_->Note(status);
    if (status.ok()) reply.log_determinant = *log_determinant;
  }
  reply.growth = factored.factorization ? factored.factorization->conditioning().growth : 1;
  factored.factorization.reset();  // whoever is told of the answer finds the memory back
  task.permit.GiveBack();
  if (!status.ok()) return task.done(std::move(status));
  reply.backward_error = solved.backward_error;
  if (reply.backward_error) shard_->metrics().RecordBackwardError(*reply.backward_error);
  reply.backward_error_bound = solved.backward_error_bound;
  reply.refinements = solved.refinements;
  reply.cost = shard_->MakeCost(task, ran);
  task.done(reply);
}

}  // namespace blockd::server
