#include "server/core/operations/solve.h"

#include <algorithm>
#include <optional>

#include "server/core/finite_scanner.h"
#include "server/core/operations/checks.h"

namespace blockd::server {
namespace {

constexpr double kPiece = 2;  // times one column

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

SolveItem ItemOf(const SolveTask& task) {
  const SolveParams& params = task.params;
  return {.factorization = task.pin.factorization(),
          .rhs = params.rhs.data(),
          .solution = params.solution.data(),
          .num_rhs = params.num_rhs,
          .residual = params.residual,
          .max_refinements = params.max_refinements,
          .cancelled = &task.context->cancelled};
}

void AddTo(Phases& sum, const Phases& more) {
  sum.upload_seconds += more.upload_seconds;
  sum.compute_seconds += more.compute_seconds;
  sum.download_seconds += more.download_seconds;
}

}  // namespace

void SolveOperation::Start(ContextPtr context, const SolveParams& params, SolveDone done) {
  absl::StatusOr<Permit> permit = shard_->Admit(*context);
  if (!permit.ok()) return done(permit.status());
  auto task = std::make_unique<SolveTask>(this, std::move(context), *std::move(permit),
                                          shard_->Now(), params, std::move(done));
  absl::StatusOr<FactorizationCache::Pin> pin =
      shard_->cache().Lookup(task->context->caller, params.handle);
  if (!pin.ok()) return Fail(std::move(task), pin.status());
  task->pin = *std::move(pin);
  const Factorization& factorization = *task->pin;
  const auto rhs_bytes = static_cast<int64_t>(params.rhs.size());
  absl::Status status = CheckRhs(factorization.shape(), params.num_rhs, rhs_bytes,
                                 static_cast<int64_t>(params.solution.size()),
                                 params.max_refinements, shard_->limits());
  if (status.ok() && params.check_finite) {
    status = CheckFiniteRhs(factorization.shape().scalar, factorization.shape().rows(), params.rhs);
  }
  if (status.ok() && NeedsMatrix(params) && !factorization.matrix()) {
    status = absl::FailedPreconditionError(
        "residuals and refinement need a factorization that kept its matrix (keep_matrix)");
  }
  if (status.ok()) status = shard_->TakeUpload(task->permit, rhs_bytes);
  if (!status.ok()) return Fail(std::move(task), status);

  WriteTicket(*task);
  shard_->Submit(std::move(task));
}

void SolveOperation::WriteTicket(SolveTask& task) const {
  const EliminationPlan& plan = task.pin->plan();
  const int64_t columns = task.params.num_rhs - task.solved_columns;
  const CostModel costs = shard_->solver().backend().costs(plan.shape());
  Ticket ticket = task.ticket();
  ticket.key = {WorkKind::kSolve, task.pin->shared_plan()};
  ticket.seconds = PredictedSolveSeconds(plan, columns, costs);
  ticket.marginal_seconds = PredictedSolveSeconds(plan, 2 * columns, costs) - ticket.seconds;
  // More columns than one cost little more than one: a piece has some.
  ticket.piece_seconds = columns > 1 ? kPiece * PredictedSolveSeconds(plan, 1, costs) : 0;
  ticket.items = columns;
  ticket.bytes = columns * plan.shape().rows() * ScalarBytes(plan.shape().scalar);
  task.set_ticket(std::move(ticket));
}

int64_t SolveOperation::ColumnsWithin(const SolveTask& task, double seconds) const {
  const EliminationPlan& plan = task.pin->plan();
  const CostModel costs = shard_->solver().backend().costs(plan.shape());
  int64_t columns = 1;
  while (columns < task.params.num_rhs &&
         PredictedSolveSeconds(plan, 2 * columns, costs) <= seconds) {
    columns *= 2;
  }
  return columns;
}

void SolveOperation::Fail(TaskPtr task, const absl::Status& status) {
  Answer(static_cast<SolveTask&>(*task), Failed(status), Cost());
}

int64_t SolveOperation::Workspace(const SolveTask& task, int64_t num_rhs) const {
  return shard_->solver().SolveWorkspaceBytes(task.pin->plan(), num_rhs,
                                              Measures(task.params, *task.pin));
}

SolveOperation::Room SolveOperation::FindRoom(int64_t bytes) {
  MemoryPool* const reserve = shard_->solve_reserve();
  if (reserve != nullptr && bytes <= reserve->stats().capacity_bytes) return {reserve, {}};
  std::optional<Reservation> free = shard_->device().TryReserve(nullptr, bytes);
  if (!free) return {};
  return {&shard_->solver().backend().pool(), *std::move(free)};
}

void SolveOperation::Run(const std::vector<TaskPtr>& batch) {
  std::vector<SolveTask*> whole;
  for (SolveTask* const task : TasksOf<SolveTask>(batch)) {
    const int64_t all = task->params.num_rhs;
    if (task->is_piece()) {
      const int64_t some = ColumnsWithin(*task, task->granted_seconds());
      RunInParts(*task, std::min(all, task->solved_columns + some));
    } else if (task->solved_columns > 0) {
      RunInParts(*task, all);
    } else {
      whole.push_back(task);
    }
  }
  for (std::span<SolveTask* const> tasks(whole); !tasks.empty();) {
    Room room;
    size_t count = tasks.size();
    for (;; count = (count + 1) / 2) {
      int64_t bytes = 0;
      for (SolveTask* task : tasks.first(count)) bytes += Workspace(*task, task->params.num_rhs);
      room = FindRoom(bytes);
      if (room.pool != nullptr || count == 1) break;
    }
    if (room.pool != nullptr) {
      RunTogether(tasks.first(count), std::move(room));
    } else {
      RunInParts(*tasks[0], tasks[0]->params.num_rhs);
    }
    tasks = tasks.subspan(count);
  }
}

void SolveOperation::RunTogether(std::span<SolveTask* const> tasks, Room room) {
  RanBatch ran;
  ran.started = shard_->Now();
  shard_->BeginWork();
  ran.requests = static_cast<int64_t>(tasks.size());
  std::vector<SolveItem> items;
  items.reserve(tasks.size());
  for (const SolveTask* task : tasks) {
    items.push_back(ItemOf(*task));
    ran.items += task->params.num_rhs;
  }
  std::vector<SolveOutcome> outcomes =
      shard_->solver().Solve(items, &ran.phases, Track::kSolve, room.pool);
  shard_->metrics().RecordBatch(WorkKind::kSolve, ran.requests, ran.items,
                                tasks[0]->pin->plan().solve_flops(ran.items));
  shard_->EndWork();
  room.reservation.Reset();
  items.clear();
  for (size_t i = 0; i < tasks.size(); ++i) {
    if (absl::IsResourceExhausted(outcomes[i].status)) {
      RunInParts(*tasks[i], tasks[i]->params.num_rhs);  // there was room, but in pieces
    } else {
      Answer(*tasks[i], outcomes[i], shard_->MakeCost(*tasks[i], ran));
    }
  }
}

SolveOutcome SolveOperation::SolveColumns(const SolveTask& task, int64_t first, int64_t columns,
                                          MemoryPool* pool, Phases* phases) {
  SolveItem item = ItemOf(task);
  const Shape& shape = task.pin->shape();
  const size_t offset = static_cast<size_t>(first * shape.rows() * ScalarBytes(shape.scalar));
  item.rhs = task.params.rhs.data() + offset;
  item.solution = task.params.solution.data() + offset;
  item.num_rhs = columns;
  return shard_->solver().Solve({&item, 1}, phases, Track::kSolve, pool)[0];
}

SolveOutcome SolveOperation::SolveAfterEviction(const SolveTask& task, int64_t column,
                                                int64_t bytes) {
  absl::StatusOr<Reservation> room = shard_->device().Reserve(nullptr, bytes);
  if (!room.ok()) return Failed(room.status());
  Solver& solver = shard_->solver();
  const bool measures = Measures(task.params, *task.pin);
  shard_->Defragment(solver.SolvePieces(task.pin->plan(), 1, measures));
  return SolveColumns(task, column, 1, &solver.backend().pool(), nullptr);
}

void SolveOperation::RunInParts(SolveTask& task, int64_t end) {
  RanBatch& ran = task.ran;
  if (task.solved_columns == 0) ran.started = shard_->Now();
  shard_->BeginWork();
  ran.requests = 1;
  ran.items = task.params.num_rhs;
  SolveOutcome& all = task.outcome;
  int64_t columns = end - task.solved_columns;
  while (task.solved_columns < end && all.status.ok()) {
    columns = std::min(columns, end - task.solved_columns);
    const int64_t bytes = Workspace(task, columns);
    Room room = FindRoom(bytes);
    SolveOutcome part;
    if (room.pool != nullptr) {
      Phases phases;
      part = SolveColumns(task, task.solved_columns, columns, room.pool, &phases);
      AddTo(ran.phases, phases);
    }
    if (room.pool == nullptr || absl::IsResourceExhausted(part.status)) {
      if (columns > 1) {
        columns = (columns + 1) / 2;
        continue;
      }
      // The last resort, where the reserve is too small for one column, or there is none.
      room = {};
      part = SolveAfterEviction(task, task.solved_columns, bytes);
    }
    all.status = part.status;
    if (part.backward_error) {
      all.backward_error = LargerOrNaN(all.backward_error.value_or(0), *part.backward_error);
    }
    all.backward_error_bound = LargerOrNaN(all.backward_error_bound, part.backward_error_bound);
    all.refinements = std::max(all.refinements, part.refinements);
    task.solved_columns += columns;
  }
  shard_->EndWork();
  if (all.status.ok() && end < task.params.num_rhs) {
    task.unfinished = true;
    return WriteTicket(task);
  }
  shard_->metrics().RecordBatch(WorkKind::kSolve, ran.requests, ran.items,
                                task.pin->plan().solve_flops(ran.items));
  Answer(task, all, shard_->MakeCost(task, ran));
}

void SolveOperation::Answer(SolveTask& task, const SolveOutcome& outcome, const Cost& cost) {
  if (outcome.status.ok()) shard_->cache().RecordSolved(task.pin, task.params.num_rhs);
  // Whoever is told of the answer finds everything back.
  task.pin.Reset();
  task.permit.GiveBack();
  if (!outcome.status.ok()) {
    shard_->Note(outcome.status);
    return task.done(absl::IsCancelled(outcome.status) ? task.EndStatus(shard_->Now())
                                                       : outcome.status);
  }
  SolveReply reply;
  reply.backward_error = outcome.backward_error;
  if (reply.backward_error) shard_->metrics().RecordBackwardError(*reply.backward_error);
  reply.backward_error_bound = outcome.backward_error_bound;
  reply.refinements = outcome.refinements;
  reply.cost = cost;
  task.done(reply);
}

}  // namespace blockd::server
