#include "server/core/operations/factor_solve.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "server/core/common/checks.h"
#include "server/core/common/finite_scanner.h"
#include "server/core/operations/border_costs.h"
#include "server/core/operations/factor_outcome.h"
#include "server/core/operations/steps.h"

namespace blockd::server {
namespace {

// True if all systems ended for one reason that is no system's own.
bool EndedAsAWhole(const std::vector<FactorSolveOutcome>& outcomes) {
  const absl::Status& first = outcomes[0].solve.status;
  if (!absl::IsCancelled(first) && !absl::IsDeadlineExceeded(first)) return false;
  return std::all_of(outcomes.begin(), outcomes.end(), [&](const FactorSolveOutcome& outcome) {
    return outcome.solve.status.code() == first.code();
  });
}

int64_t ColumnsOf(const FactorSolveTask& task) {
  int64_t columns = 0;
  for (const FactorSolvePart& part : task.parts) columns += task.params.solves[part.system].num_rhs;
  return columns;
}

int64_t RhsBytesOf(const FactorSolveTask& task) {
  int64_t bytes = 0;
  for (const FactorSolvePart& part : task.parts) {
    bytes += static_cast<int64_t>(task.params.solves[part.system].rhs.size());
  }
  return bytes;
}

}  // namespace

// -----------------------------------------------------------------------------------------------------
// Until it is queued

void FactorSolveOperation::Start(ContextPtr context, FactorSolveParams params,
                                 FactorSolveDone done) {
  absl::StatusOr<Permit> permit =
      admission_->Admit(*context, std::max<int64_t>(std::ssize(params.matrices), 1));
  if (!permit.ok()) return done(permit.status());
  auto task = std::make_unique<FactorSolveTask>(this, std::move(context), *std::move(permit),
                                                shard_->Now(), std::move(params), std::move(done));
  absl::Status status = Check(task->params);
  if (!status.ok()) return Fail(std::move(task), status);
  MakeParts(*task);
  if (task->params.check_finite || task->params.check_finite_rhs) {
    status = task->context->CheckOngoing(shard_->Now());  // of all, wherever the look ended
    if (!status.ok()) return Fail(std::move(task), status);
  }
  if (task->parts.empty()) return Answer(*task, {});
  status = Admit(*task);
  if (!status.ok()) return Fail(std::move(task), status);
  task->set_ticket(MakeTicket(*task));
  shard_->Submit(std::move(task));
}

absl::Status FactorSolveOperation::Check(const FactorSolveParams& params) const {
  const size_t systems = params.matrices.size();
  absl::Status status = CheckSystems(static_cast<int64_t>(systems), shard_->limits());
  if (status.ok()) status = CheckSpec(params.form);
  if (!status.ok()) return status;
  const BorderedShape shape = params.form.bordered_shape();
  status = CheckNoBorder(shape, "keep_matrix", params.keep_matrix);
  status.Update(CheckNoBorder(shape, "accuracy", params.accuracy == Accuracy::kGuaranteed));
  status.Update(CheckNoBorder(shape, "options.residual", params.residual));
  status.Update(CheckNoBorder(shape, "options.max_refinements", params.max_refinements > 0));
  if (!status.ok()) return status;
  if (params.solves.size() != systems) {
    return InvalidFieldError("rhs", absl::StrCat(params.solves.size(), " solves"),
                             absl::StrCat(systems, ", one a system"));
  }
  if (!params.handles.empty() && params.handles.size() != systems) {
    return InvalidFieldError("handle", absl::StrCat(params.handles.size(), " handles"),
                             absl::StrCat(systems, ", one a system, or none"));
  }
  status = CheckDistinct(params.handles, "handle");
  return status.ok() ? CheckMatrices(params.matrices, params.form) : status;
}

absl::Status FactorSolveOperation::CheckSystem(const FactorSolveTask& task, size_t system) const {
  const FactorSolveParams& params = task.params;
  const SolveManyParams::Columns& columns = params.solves[system];
  const BorderedShape shape = params.form.bordered_shape();
  absl::Status status = CheckRhs(shape, columns.num_rhs, static_cast<int64_t>(columns.rhs.size()),
                                 static_cast<int64_t>(columns.solution.size()),
                                 params.max_refinements, shard_->limits());
  const auto ongoing = [&] { return task.context->CheckOngoing(shard_->Now()); };
  if (status.ok() && params.check_finite) {
    status = CheckFiniteMatrix(params.matrices[system], params.PlaceOf(system), ongoing);
  }
  if (status.ok() && params.check_finite_rhs) {
    status = CheckFiniteRhs(shape.chain.scalar, shape.rows(), columns.rhs, ongoing);
  }
  return status;
}

void FactorSolveOperation::MakeParts(FactorSolveTask& task) {
  const FactorSolveParams& params = task.params;
  const size_t systems = params.matrices.size();
  task.outcomes.resize(systems);
  task.parts.reserve(systems);
  std::vector<absl::StatusOr<FactorizationPin>> pins =
      shard_->cache().LookupAll<FactorizationPin>(task.context->caller, params.handles);
  for (size_t i = 0; i < systems; ++i) {
    absl::Status& status = task.outcomes[i].solve.status;
    status = CheckSystem(task, i);
    if (status.ok() && task.has_handles()) status = pins[i].status();
    if (status.ok() && task.has_handles()) {
      status = CheckRefactored(**pins[i], params.form.bordered_shape(),
                               systems == 1 && params.places.empty()
                                   ? "handle"
                                   : absl::StrCat("handle[", params.PlaceOf(i), "]"));
    }
    if (!status.ok()) continue;
    FactorSolvePart& part = task.parts.emplace_back();
    part.system = i;
    if (task.has_handles()) part.old = *std::move(pins[i]);
  }
  task.requests = std::max<int64_t>(std::ssize(task.parts), 1);
}

absl::Status FactorSolveOperation::Ask(const FactorSolveParams& params, Offer& offer) const {
  const MatrixForm& form = params.form;
  absl::Status status = CheckSystems(std::ssize(params.matrices), shard_->limits());
  if (status.ok()) status = CheckSpec(form);
  for (const SolveManyParams::Columns& columns : params.solves) {
    status.Update(CheckColumns(columns.num_rhs, shard_->limits()));
  }
  if (!status.ok()) return status;
  const int64_t systems = std::ssize(params.matrices);
  absl::StatusOr<std::shared_ptr<const EliminationPlan>> plan = shard_->PlanFor(form, systems);
  if (!plan.ok()) return plan.status();
  const bool keeps = params.may_keep_matrix();
  Solver& solver = shard_->solver();
  const CostModel costs = solver.backend().costs(form.shape);
  offer.asked_bytes = solver.FactorWorkspaceBytes(**plan, form, systems, keeps);
  offer.work_seconds = PredictedFactorSeconds(**plan, costs, systems);
  for (const SolveManyParams::Columns& columns : params.solves) {
    offer.asked_bytes +=
        Shard::FactorCharge(**plan, form.border_rows) + (keeps ? Shard::MatrixCharge(form) : 0) +
        solver.SolveWorkspaceBytes(**plan, columns.num_rhs, keeps, form.border_rows);
    offer.work_seconds += PredictedSolveSeconds(**plan, columns.num_rhs, costs);
  }
  return absl::OkStatus();
}

absl::Status FactorSolveOperation::Admit(FactorSolveTask& task) {
  const FactorSolveParams& params = task.params;
  const int64_t systems = std::ssize(task.parts);
  absl::StatusOr<std::shared_ptr<const EliminationPlan>> plan =
      shard_->PlanFor(params.form, std::ssize(params.matrices));
  if (!plan.ok()) return plan.status();
  task.plan = *std::move(plan);
  absl::Status status =
      admission_->TakeUpload(task.permit, systems * params.form.bytes() + RhsBytesOf(task));
  if (!status.ok()) return status;
  Solver& solver = shard_->solver();
  const bool keeps = params.may_keep_matrix();
  int64_t bytes = solver.FactorWorkspaceBytes(*task.plan, params.form, systems, keeps);
  int64_t pinned_bytes = 0;
  for (FactorSolvePart& part : task.parts) {
    if (task.has_handles()) {
      pinned_bytes += PinnedBeyond(*shard_, part.old, *task.plan, params.form,
                                   params.must_pin_matrix(), /*pins=*/false);
    }
    part.reserved = params.overwrite && task.has_handles()
                        ? BytesBeyond(part.old, *task.plan)
                        : Shard::FactorCharge(*task.plan, params.form.border_rows);
    bytes += part.reserved + (keeps ? Shard::MatrixCharge(params.form) : 0) +
             solver.SolveWorkspaceBytes(*task.plan, params.solves[part.system].num_rhs, keeps,
                                        params.form.border_rows);
  }
  status = shard_->pinned().Extend(task.permit.tenant, pinned_bytes, &task.permit.pinned);
  if (!status.ok()) return status;
  return shard_->device().Extend(task.permit.tenant, bytes, &task.permit.device);
}

Ticket FactorSolveOperation::MakeTicket(const FactorSolveTask& task) const {
  const EliminationPlan& plan = *task.plan;
  const CostModel costs = shard_->solver().backend().costs(plan.shape());
  const int64_t systems = std::ssize(task.parts), columns = ColumnsOf(task);
  const int64_t each = (columns + systems - 1) / systems;
  const auto predicted = [&](int64_t count) {
    return PredictedFactorSeconds(plan, costs, count) +
           PredictedBorderSeconds(plan, task.params.form.border_rows, costs, count) +
           PredictedSolveSeconds(plan, each, costs, count);
  };
  Ticket ticket;
  ticket.key = {WorkKind::kFactorSolve, task.plan};
  ticket.seconds = predicted(systems);
  ticket.marginal_seconds = predicted(2 * systems) - ticket.seconds;
  ticket.items = columns;
  ticket.bytes = systems * task.params.form.bytes() + RhsBytesOf(task);
  return ticket;
}

// -----------------------------------------------------------------------------------------------------
// On the device

Operation::Completion FactorSolveOperation::Run(const std::vector<TaskPtr>& batch) {
  const std::vector<FactorSolveTask*> tasks = TasksOf<FactorSolveTask>(batch);
  if (const absl::Status failed = shard_->CheckInService(); !failed.ok()) {
    for (FactorSolveTask* const task : tasks) {
      for (const FactorSolvePart& part : task->parts) {
        task->outcomes[part.system].solve.status = failed;
      }
      Answer(*task, {});
    }
    return nullptr;
  }
  const EliminationPlan& plan = *tasks[0]->plan;
  RanBatch ran;
  ran.started = shard_->Now();
  shard_->BeginWork();
  int64_t columns = 0;
  for (const FactorSolveTask* task : tasks) {
    ran.requests += task->requests;
    columns += ColumnsOf(*task);
  }
  ran.items = ran.requests;
  FactorAll(tasks, ran);
  SolveAll(tasks, ran);
  const int64_t p = tasks[0]->params.form.border_rows;  // most are alike
  shard_->metrics().RecordBatch(
      WorkKind::kFactorSolve, ran.requests, ran.items,
      FactorFlops(plan, p) * static_cast<double>(ran.items) + SolveFlops(plan, columns, p));
  shard_->EndWork();
  for (FactorSolveTask* task : tasks) {
    for (FactorSolvePart& part : task->parts) {
      FactorSolveOutcome& outcome = task->outcomes[part.system];
      outcome.solve.status = Finish(*task, part, outcome);
      part.factored.factorization.reset();
    }
    Answer(*task, ran);
  }
  return nullptr;
}

void FactorSolveOperation::FactorAll(Tasks tasks, RanBatch& ran) {
  std::vector<FactorItem> items;
  std::vector<FactorSolvePart*> part_of_item;
  for (FactorSolveTask* task : tasks) {
    const FactorSolveParams& params = task->params;
    for (FactorSolvePart& part : task->parts) {
      if (params.overwrite && task->has_handles()) {
        absl::StatusOr<Overwritten> overwritten =
            BeginOverwrite(*shard_, part.old, *task->plan, part.reserved, task->permit);
        part.factored.status = overwritten.status();
        if (!overwritten.ok()) continue;
        part.overwritten = *std::move(overwritten);
      }
      FactorItem& item = items.emplace_back();
      item.matrix = params.matrices[part.system];
      item.keep_matrix = params.keep_matrix || params.measures();
      item.accuracy = params.accuracy;
      item.recycle = part.overwritten.recycled ? &part.overwritten.recycled : nullptr;
      item.cancelled = &task->context->cancelled;
      part_of_item.push_back(&part);
    }
  }
  std::vector<FactorOutcome> factored =
      FactorWithRetry(*shard_, tasks[0]->plan, items, &ran.phases);
  for (size_t i = 0; i < factored.size(); ++i) part_of_item[i]->factored = std::move(factored[i]);
}

void FactorSolveOperation::SolveAll(Tasks tasks, RanBatch& ran) {
  std::vector<SolveItem> items;
  std::vector<SolveOutcome*> outcomes;
  for (FactorSolveTask* task : tasks) {
    const FactorSolveParams& params = task->params;
    for (const FactorSolvePart& part : task->parts) {
      if (!part.factored.status.ok()) continue;
      const SolveManyParams::Columns& columns = params.solves[part.system];
      items.push_back({.factorization = part.factored.factorization,
                       .rhs = columns.rhs.data(),
                       .solution = columns.solution.data(),
                       .num_rhs = columns.num_rhs,
                       .residual = params.residual,
                       .max_refinements = params.max_refinements,
                       .cancelled = &task->context->cancelled});
      outcomes.push_back(&task->outcomes[part.system].solve);
    }
  }
  Phases phases;
  std::vector<SolveOutcome> solved = SolveWithRetry(*shard_, items, &phases);
  for (size_t i = 0; i < solved.size(); ++i) *outcomes[i] = std::move(solved[i]);
  AddTo(ran.phases, phases);
}

absl::Status FactorSolveOperation::Finish(FactorSolveTask& task, FactorSolvePart& part,
                                          FactorSolveOutcome& outcome) {
  absl::Status status = OutcomeStatus(*shard_, task, {.host = task.params.matrices[part.system]},
                                      task.params.PlaceOf(part.system), part.factored);
  if (status.ok()) {
    status = outcome.solve.status;
    shard_->Note(status);
    if (absl::IsCancelled(status)) status = task.EndStatus(shard_->Now());
  }
  if (status.ok() && task.params.log_determinant) {
    absl::StatusOr<double> log_determinant =
        shard_->solver().LogDeterminant(*part.factored.factorization);
    status = log_determinant.status();
    shard_->Note(status);
    if (status.ok()) outcome.log_determinant = *log_determinant;
  }
  if (status.ok()) {
    outcome.growth = part.factored.factorization->conditioning().growth;
    if (outcome.solve.backward_error) {
      shard_->metrics().RecordBackwardError(*outcome.solve.backward_error);
    }
    if (task.has_handles()) status = Keep(task, part, outcome);
  } else if (part.overwritten.begun) {
    shard_->cache().FailOverwrite(task.params.handles[part.system]);
  }
  return status;
}

absl::Status FactorSolveOperation::Keep(FactorSolveTask& task, FactorSolvePart& part,
                                        FactorSolveOutcome& outcome) {
  const FactorSolveParams& params = task.params;
  std::shared_ptr<Factorization> factorization = std::move(part.factored.factorization);
  // It was at hand for the solve alone.
  const bool guaranteed = params.accuracy == Accuracy::kGuaranteed && factorization->at_risk();
  if (!params.keep_matrix && !guaranteed) factorization->DropMatrix();
  outcome.matrix_kept = static_cast<bool>(factorization->matrix());
  const int64_t charge = Shard::FactorCharge(*task.plan, params.form.border_rows) +
                         (outcome.matrix_kept ? Shard::MatrixCharge(params.form) : 0);
  return shard_->cache().Replace(task.context->caller, params.handles[part.system],
                                 std::make_shared<KeptFactorization>(
                                     task.permit.device.Split(charge), std::move(factorization)),
                                 {}, task.permit.tenant, &task.permit.pinned);
}

// -----------------------------------------------------------------------------------------------------
// The end

void FactorSolveOperation::Fail(TaskPtr task, const absl::Status& status) {
  auto& failed = static_cast<FactorSolveTask&>(*task);
  failed.parts.clear();
  failed.permit.GiveBack();
  failed.done(status);
}

void FactorSolveOperation::Answer(FactorSolveTask& task, const RanBatch& ran) {
  // Gives everything back before the caller learns of the answer.
  std::vector<Cache::EndedUse> ended;
  for (FactorSolvePart& part : task.parts) {
    const bool solved = task.outcomes[part.system].solve.status.ok();
    ended.push_back({std::move(part.old), solved ? task.params.solves[part.system].num_rhs : 0});
  }
  shard_->cache().EndUses(ended);
  task.parts.clear();
  task.permit.GiveBack();
  if (EndedAsAWhole(task.outcomes)) return task.done(task.outcomes[0].solve.status);
  FactorSolveReply reply;
  reply.systems = std::move(task.outcomes);
  if (ran.requests > 0) reply.cost = shard_->MakeCost(task, ran);
  task.done(std::move(reply));
}

}  // namespace blockd::server
