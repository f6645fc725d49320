// FactorSolve: nothing is kept, everything is reserved at once.
#include <utility>

#include "server/core/finite_scanner.h"
#include "server/core/solver_core_impl.h"

namespace blockd::server {

void SolverCore::Impl::FactorSolve(ContextPtr context, const FactorSolveParams& params,
                                   SolveDone done) {
  absl::Status status = BeginWork(*context);
  if (!status.ok()) return done(std::move(status));
  auto task =
      std::make_unique<FactorSolveTask>(std::move(context), clock_->Now(), params, std::move(done));
  const MatrixForm& form = params.matrix.form;
  status = CheckForm(form);
  if (status.ok()) {
    status = CheckRhs(form.shape, params.num_rhs, static_cast<int64_t>(params.rhs.size()),
                      static_cast<int64_t>(params.solution.size()), params.max_refinements);
  }
  if (status.ok()) status = CheckMatrices({&params.matrix, 1}, form, params.check_finite);
  if (status.ok() && params.check_finite_rhs) {
    status = CheckFiniteRhs(form.shape.scalar, form.shape.rows(), params.rhs);
  }
  if (status.ok()) status = AdmitFactorSolve(*task);
  if (status.ok()) return Queue(std::move(task));
  task->done(std::move(status));
  task.reset();
  Finished(1);
}

void SolverCore::Impl::RunFactorSolves(std::span<FactorSolveTask* const> tasks) {
  const std::shared_ptr<const EliminationPlan> plan = tasks[0]->plan;
  Piece piece;
  piece.started = clock_->Now();
  piece.requests = piece.items = static_cast<int64_t>(tasks.size());
  std::vector<FactorItem> factor_items(tasks.size());
  for (size_t i = 0; i < tasks.size(); ++i) {
    const FactorSolveParams& params = tasks[i]->params;
    factor_items[i].matrix = params.matrix;
    factor_items[i].keep_matrix = params.measures();
    factor_items[i].accuracy = params.accuracy;
    factor_items[i].cancelled = &tasks[i]->context->cancelled;
  }
  std::vector<FactorOutcome> factored = FactorWithRetry(plan, factor_items, &piece.phases);

  std::vector<SolveItem> solve_items;
  int64_t columns = 0;
  int64_t workspace = 0;
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
    workspace += solver_->SolveWorkspaceBytes(*plan, params.num_rhs, params.may_keep_matrix());
  }
  Phases solve_phases;
  const std::vector<SolveOutcome> solved = SolveWithRetry(solve_items, workspace, &solve_phases);
  piece.phases.upload_seconds += solve_phases.upload_seconds;
  piece.phases.compute_seconds += solve_phases.compute_seconds;
  piece.phases.download_seconds += solve_phases.download_seconds;
  metrics_->RecordBatch(WorkKind::kFactorSolve, piece.requests, piece.items,
                        plan->factor_flops() * static_cast<double>(tasks.size()) +
                            (columns > 0 ? plan->solve_flops(columns) : 0));

  solve_items.clear();  // the last to share the factorizations with `factored`
  size_t next = 0;
  for (size_t i = 0; i < tasks.size(); ++i) {
    const SolveOutcome none;
    const SolveOutcome& solution = factored[i].status.ok() ? solved[next++] : none;
    AnswerFactorSolve(*tasks[i], std::move(factored[i]), solution, piece);
  }
  metrics_->RecordDeviceBusy(clock_->Now() - piece.started);
}

void SolverCore::Impl::AnswerFactorSolve(FactorSolveTask& task, FactorOutcome factored,
                                         const SolveOutcome& solved, const Piece& piece) {
  SolveReply reply;
  absl::Status status = OutcomeStatus(task, {.host = task.params.matrix}, 0, factored);
  if (status.ok() && !solved.status.ok()) {
    Note(solved.status);
    status = absl::IsCancelled(solved.status) ? task.EndStatus(clock_->Now()) : solved.status;
  }
  if (status.ok() && task.params.log_determinant) {
    absl::StatusOr<double> log_determinant = solver_->LogDeterminant(*factored.factorization);
    status = log_determinant.status();
    Note(status);
    if (status.ok()) reply.log_determinant = *log_determinant;
  }
  reply.growth = factored.factorization ? factored.factorization->conditioning().growth : 1;
  factored.factorization.reset();  // whoever is told of the answer finds the memory back
  task.reservation.Reset();
  if (!status.ok()) return task.done(std::move(status));
  reply.backward_error = solved.backward_error;
  if (reply.backward_error) metrics_->RecordBackwardError(*reply.backward_error);
  reply.backward_error_bound = solved.backward_error_bound;
  reply.refinements = solved.refinements;
  reply.cost = MakeCost(task, piece);
  task.done(reply);
}

}  // namespace blockd::server
