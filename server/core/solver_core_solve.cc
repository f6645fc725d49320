// Solve: pin, queue or run at once, answer.
#include <algorithm>
#include <utility>

#include "server/core/finite_scanner.h"
#include "server/core/solver_core_impl.h"

namespace blockd::server {
namespace {

// Below this much predicted work a change of threads would cost more than the solve.
constexpr double kInlineSeconds = 100e-6;

bool NeedsMatrix(const SolveParams& params) {
  return params.residual || params.max_refinements > 0;
}

// Whether its error is measured, asked for or not.
bool Measures(const SolveParams& params, const Factorization& factorization) {
  return NeedsMatrix(params) || factorization.refines();
}

SolveOutcome Failed(absl::Status status) {
  SolveOutcome outcome;
  outcome.status = std::move(status);
  return outcome;
}

}  // namespace

void SolverCore::Impl::Solve(ContextPtr context, const SolveParams& params, SolveDone done) {
  const absl::Time now = clock_->Now();
  auto task = std::make_unique<SolveTask>(std::move(context), now, params, std::move(done));
  if (task->ended(now)) return task->done(task->EndStatus(now));
  absl::StatusOr<FactorizationCache::Pin> pin = cache_.Lookup(task->context->caller, params.handle);
  if (!pin.ok()) return task->done(pin.status());
  task->pin = *std::move(pin);
  absl::Status status =
      CheckRhs(task->pin->shape(), params.num_rhs, static_cast<int64_t>(params.rhs.size()),
               static_cast<int64_t>(params.solution.size()), params.max_refinements);
  if (status.ok() && params.check_finite) {
    status = CheckFiniteRhs(task->pin->shape().scalar, task->pin->shape().rows(), params.rhs);
  }
  if (status.ok() && NeedsMatrix(params) && !task->pin->matrix()) {
    status = absl::FailedPreconditionError(
        "residuals and refinement need a factorization that kept its matrix (keep_matrix)");
  }
  if (!status.ok()) {
    task->pin = {};
    return task->done(std::move(status));
  }
  if (!QueueSolve(task, RunsAtOnce(*task))) return;
  SolveAtOnce(*task);
  task.reset();
  Finished(1);
}

void SolverCore::Impl::SolveAtOnce(SolveTask& task) {
  absl::StatusOr<Reservation> workspace = budget_.Reserve(SolveWorkspace(task));
  if (!workspace.ok()) {
    EndInline();
    return AnswerSolve(task, Failed(workspace.status()), Cost());
  }
  SolveTask* const alone = &task;
  const SolvedPiece piece = SolvePiece({&alone, 1}, *std::move(workspace));
  EndInline();  // the device is free for others before this one is answered
  AnswerSolve(task, piece.outcomes[0], MakeCost(task, piece));
}

bool SolverCore::Impl::RunsAtOnce(const SolveTask& task) const {
  if (limits_.max_batch_delay > absl::ZeroDuration() || Measures(task.params, *task.pin)) {
    return false;
  }
  return PredictedSolveSeconds(task.pin->plan(), task.params.num_rhs,
                               solver_->backend().costs(task.pin->plan().shape())) < kInlineSeconds;
}

int64_t SolverCore::Impl::SolveWorkspace(const SolveTask& task) const {
  return solver_->SolveWorkspaceBytes(task.pin->plan(), task.params.num_rhs,
                                      Measures(task.params, *task.pin));
}

// Runs a batch whole if its workspace fits, else in halves, and evicts only where a single request
// does not fit: a smaller batch costs less than somebody's factorization.
void SolverCore::Impl::RunSolves(std::span<SolveTask* const> tasks) {
  while (!tasks.empty()) {
    std::optional<Reservation> workspace;
    size_t count = tasks.size();
    for (;; count = (count + 1) / 2) {
      int64_t bytes = 0;
      for (SolveTask* task : tasks.first(count)) bytes += SolveWorkspace(*task);
      workspace = budget_.TryReserve(bytes);
      if (workspace || count == 1) break;
    }
    if (!workspace) {
      absl::StatusOr<Reservation> alone = budget_.Reserve(SolveWorkspace(*tasks[0]));
      if (!alone.ok()) {
        AnswerSolve(*tasks[0], Failed(alone.status()), Cost());
        tasks = tasks.subspan(1);
        continue;
      }
      workspace = *std::move(alone);
    }
    const SolvedPiece piece = SolvePiece(tasks.first(count), *std::move(workspace));
    for (size_t i = 0; i < count; ++i) {
      AnswerSolve(*tasks[i], piece.outcomes[i], MakeCost(*tasks[i], piece));
    }
    tasks = tasks.subspan(count);
  }
}

SolverCore::Impl::SolvedPiece SolverCore::Impl::SolvePiece(std::span<SolveTask* const> tasks,
                                                           Reservation workspace) {
  SolvedPiece piece;
  piece.started = clock_->Now();
  piece.requests = static_cast<int64_t>(tasks.size());
  std::vector<SolveItem> items;
  items.reserve(tasks.size());
  for (const SolveTask* task : tasks) {
    const SolveParams& params = task->params;
    items.push_back({.factorization = task->pin.factorization(),
                     .rhs = params.rhs.data(),
                     .solution = params.solution.data(),
                     .num_rhs = params.num_rhs,
                     .residual = params.residual,
                     .max_refinements = params.max_refinements,
                     .cancelled = &task->context->cancelled});
    piece.items += params.num_rhs;
  }
  piece.outcomes = SolveWithRetry(items, workspace.bytes(), &piece.phases);
  metrics_->RecordBatch(WorkKind::kSolve, piece.requests, piece.items,
                        tasks[0]->pin->plan().solve_flops(piece.items));
  metrics_->RecordDeviceBusy(clock_->Now() - piece.started);
  return piece;
}

// The budget had room, so a refusal by the pool means that it is in pieces: make larger ones, and
// try once more, each item alone.
std::vector<SolveOutcome> SolverCore::Impl::SolveWithRetry(std::span<const SolveItem> items,
                                                           int64_t workspace_bytes,
                                                           Phases* phases) {
  std::vector<SolveOutcome> outcomes = solver_->Solve(items, phases);
  const auto exhausted = [](const SolveOutcome& outcome) {
    return absl::IsResourceExhausted(outcome.status);
  };
  if (std::none_of(outcomes.begin(), outcomes.end(), exhausted)) return outcomes;
  if (!Defragment(workspace_bytes) && items.size() == 1) return outcomes;
  for (size_t i = 0; i < items.size(); ++i) {
    if (exhausted(outcomes[i])) outcomes[i] = solver_->Solve(items.subspan(i, 1))[0];
  }
  return outcomes;
}

void SolverCore::Impl::AnswerSolve(SolveTask& task, const SolveOutcome& outcome, const Cost& cost) {
  if (outcome.status.ok()) cache_.RecordSolved(task.pin, task.params.num_rhs);
  task.pin = {};  // whoever was told of the answer finds the memory back
  if (!outcome.status.ok()) {
    Note(outcome.status);
    return task.done(absl::IsCancelled(outcome.status) ? task.EndStatus(clock_->Now())
                                                       : outcome.status);
  }
  SolveReply reply;
  reply.backward_error = outcome.backward_error;
  if (reply.backward_error) metrics_->RecordBackwardError(*reply.backward_error);
  reply.backward_error_bound = outcome.backward_error_bound;
  reply.refinements = outcome.refinements;
  reply.cost = cost;
  task.done(reply);
}

}  // namespace blockd::server
