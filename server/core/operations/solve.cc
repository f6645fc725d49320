#include "server/core/operations/solve.h"

#include <algorithm>
#include <optional>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "server/core/finite_scanner.h"
#include "server/core/operations/checks.h"

namespace blockd::server {
namespace {

constexpr double kPiece = 2;  // times one column

bool NeedsMatrix(const SolveManyParams& params) {
  return params.residual || params.max_refinements > 0;
}

// Whether its error is measured, asked for or not.
bool Measures(const SolveManyParams& params, const Factorization& factorization) {
  return NeedsMatrix(params) || factorization.refines();
}

SolveOutcome Failed(absl::Status status) {
  SolveOutcome outcome;
  outcome.status = std::move(status);
  return outcome;
}

void AddTo(Phases& sum, const Phases& more) {
  sum.upload_seconds += more.upload_seconds;
  sum.compute_seconds += more.compute_seconds;
  sum.download_seconds += more.download_seconds;
}

void AddTo(Cost& sum, const Cost& more) {
  sum.queue = std::max(sum.queue, more.queue);
  sum.batch_requests += more.batch_requests;
  sum.batch_items += more.batch_items;
  sum.upload += more.upload;
  sum.compute += more.compute;
  sum.download += more.download;
}

// Whether all of it is over for the one reason that is no solve's own.
bool EndedAsAWhole(const std::vector<SolveOutcome>& outcomes) {
  const absl::Status& first = outcomes[0].status;
  if (!absl::IsCancelled(first) && !absl::IsDeadlineExceeded(first)) return false;
  return std::all_of(outcomes.begin(), outcomes.end(), [&](const SolveOutcome& outcome) {
    return outcome.status.code() == first.code();
  });
}

void Answer(SolveRequest& request) {
  if (EndedAsAWhole(request.outcomes)) return request.done(request.outcomes[0].status);
  SolveManyReply reply;
  reply.outcomes = std::move(request.outcomes);
  {
    absl::MutexLock lock(&request.mutex);
    reply.cost = request.cost;
  }
  request.done(std::move(reply));
}

}  // namespace

// -----------------------------------------------------------------------------------------------------
// Until it is queued

void SolveOperation::Start(ContextPtr context, const SolveParams& params, SolveDone done) {
  SolveManyParams one;
  one.handles.push_back(params.handle);
  one.solves.push_back({params.num_rhs, params.rhs, params.solution});
  one.residual = params.residual;
  one.max_refinements = params.max_refinements;
  one.check_finite = params.check_finite;
  StartAll(std::move(context), Method::kSolve, std::move(one),
           [done = std::move(done)](absl::StatusOr<SolveManyReply> many) mutable {
             if (!many.ok()) return done(many.status());
             const SolveOutcome& outcome = many->outcomes[0];
             if (!outcome.status.ok()) return done(outcome.status);
             SolveReply reply;
             reply.backward_error = outcome.backward_error;
             reply.backward_error_bound = outcome.backward_error_bound;
             reply.refinements = outcome.refinements;
             reply.cost = many->cost;
             done(reply);
           });
}

void SolveOperation::StartMany(ContextPtr context, SolveManyParams params, SolveManyDone done) {
  if (params.solves.empty()) return done(InvalidFieldError("handle", "0 solves", "at least 1"));
  StartAll(std::move(context), Method::kSolveMany, std::move(params), std::move(done));
}

void SolveOperation::StartAll(ContextPtr context, Method method, SolveManyParams params,
                              SolveManyDone done) {
  absl::StatusOr<Permit> permit =
      shard_->Admit(*context, static_cast<int64_t>(params.solves.size()));
  if (!permit.ok()) return done(permit.status());
  auto request = std::make_shared<SolveRequest>();
  request->params = std::move(params);
  request->done = std::move(done);
  request->outcomes.resize(request->params.solves.size());
  std::vector<TaskOfPlan> tasks;
  const absl::Status status = MakeTasks(context, method, *permit, request, &tasks);
  if (!status.ok() || tasks.empty()) {
    // Whoever is told finds everything back, and the core waits for them.
    for (TaskOfPlan& task : tasks) {
      task->parts.clear();
      task->permit.GiveBack();
    }
    permit->GiveBack();
    return status.ok() ? server::Answer(*request) : request->done(status);
  }
  request->unanswered = static_cast<int>(tasks.size());
  for (TaskOfPlan& task : tasks) {
    WriteTicket(*task);
    shard_->Submit(std::move(task));
  }
}

absl::Status SolveOperation::Check(const SolveManyParams& params,
                                   const SolveManyParams::Columns& columns,
                                   const Factorization& factorization) const {
  const Shape& shape = factorization.shape();
  absl::Status status = CheckRhs(shape, columns.num_rhs, static_cast<int64_t>(columns.rhs.size()),
                                 static_cast<int64_t>(columns.solution.size()),
                                 params.max_refinements, shard_->limits());
  if (!status.ok()) return status;
  // The first one counts from where the message's right-hand sides begin.
  const std::byte* const begin = params.solves[0].rhs.data();
  if (const auto at = columns.rhs.data() - begin; at % ScalarBytes(shape.scalar) != 0) {
    return InvalidFieldError("rhs", absl::StrCat("float64 from byte ", at, " on"),
                             "a multiple of 8");
  }
  if (params.check_finite) {
    status = CheckFiniteRhs(shape.scalar, shape.rows(), columns.rhs);
    if (!status.ok()) return status;
  }
  if (NeedsMatrix(params) && !factorization.matrix()) {
    return absl::FailedPreconditionError(
        "residuals and refinement need a factorization that kept its matrix (keep_matrix)");
  }
  return absl::OkStatus();
}

absl::Status SolveOperation::MakeTasks(const ContextPtr& context, Method method, Permit& permit,
                                       const std::shared_ptr<SolveRequest>& request,
                                       std::vector<TaskOfPlan>* tasks) {
  const SolveManyParams& params = request->params;
  const absl::Time now = shard_->Now();
  absl::flat_hash_map<const EliminationPlan*, SolveTask*> task_of;
  std::vector<absl::StatusOr<FactorizationCache::Pin>> pins =
      shard_->cache().LookupAll(context->caller, params.handles);
  int64_t bytes = 0;
  SolveTask* task = nullptr;  // of the solve before
  for (size_t i = 0; i < pins.size(); ++i) {
    absl::Status& status = request->outcomes[i].status;
    status = pins[i].status();
    if (status.ok()) status = Check(params, params.solves[i], **pins[i]);
    if (!status.ok()) continue;
    const EliminationPlan* const plan = &(*pins[i])->plan();
    if (task == nullptr || plan != &task->plan()) task = task_of[plan];
    if (task == nullptr) {
      tasks->push_back(std::make_unique<SolveTask>(this, method, context, Permit(), now, request));
      Permit& own = tasks->back()->permit;
      if (tasks->size() == 1) {
        std::swap(own, permit);
      } else {
        absl::StatusOr<Permit> another = shard_->AdmitAnother((*tasks)[0]->permit);
        if (!another.ok()) return another.status();
        own = *std::move(another);
      }
      task_of[plan] = task = tasks->back().get();
      if (tasks->size() == 1) task->parts.reserve(pins.size());  // as a rule they have one plan
    }
    SolvePart& part = task->parts.emplace_back();
    part.solve = i;
    part.pin = *std::move(pins[i]);
    part.columns = params.solves[i];
    ++task->requests;
    task->columns += part.columns.num_rhs;
    task->left += part.columns.num_rhs;
    bytes += static_cast<int64_t>(part.columns.rhs.size());
  }
  return tasks->empty() ? absl::OkStatus() : shard_->TakeUpload((*tasks)[0]->permit, bytes);
}

// With as many columns of each solve as they have on average.
double SolveOperation::PredictedSeconds(const SolveTask& task, int64_t columns) const {
  const EliminationPlan& plan = task.plan();
  const CostModel costs = shard_->solver().backend().costs(plan.shape());
  if (task.parts.size() == 1) return PredictedSolveSeconds(plan, columns, costs);
  const int64_t each = (task.columns + task.requests - 1) / task.requests;
  return PredictedSolveSeconds(plan, std::min(each, columns), costs,
                               std::max<int64_t>(columns / each, 1));
}

void SolveOperation::WriteTicket(SolveTask& task) const {
  Ticket ticket = task.ticket();
  ticket.key = {WorkKind::kSolve, task.parts[0].pin->shared_plan()};
  ticket.seconds = PredictedSeconds(task, task.left);
  ticket.marginal_seconds = PredictedSeconds(task, 2 * task.left) - ticket.seconds;
  // More columns than one cost little more than one: a piece has some.
  ticket.piece_seconds = task.left > 1 ? kPiece * PredictedSeconds(task, 1) : 0;
  ticket.items = task.left;
  const Shape& shape = task.plan().shape();
  ticket.bytes = task.left * shape.rows() * ScalarBytes(shape.scalar);
  task.set_ticket(std::move(ticket));
}

int64_t SolveOperation::ColumnsWithin(const SolveTask& task, double seconds) const {
  int64_t columns = 1;
  while (columns < task.left && PredictedSeconds(task, 2 * columns) <= seconds) columns *= 2;
  return columns;
}

// -----------------------------------------------------------------------------------------------------
// On the device

SolveOperation::Slices SolveOperation::NextOf(SolveTask& task, int64_t most) {
  Slices slices;
  std::vector<SolvePart>& parts = task.parts;
  while (task.first_left < parts.size() && parts[task.first_left].left() == 0) ++task.first_left;
  for (size_t i = task.first_left; i < parts.size() && most > 0; ++i) {
    const int64_t columns = std::min(parts[i].left(), most);
    if (columns == 0) continue;
    slices.push_back({&task, &parts[i], columns});
    most -= columns;
  }
  return slices;
}

int64_t SolveOperation::Workspace(const Slices& slices) const {
  int64_t bytes = 0, last = 0;
  int64_t columns = 0;  // of the last one, as this
  bool measures = false;
  for (const Slice& slice : slices) {
    const bool does = Measures(slice.task->request->params, *slice.part->pin);
    // Those of a task have one plan, and most are alike.
    if (slice.columns != columns || does != measures) {
      columns = slice.columns;
      measures = does;
      last = shard_->solver().SolveWorkspaceBytes(slice.task->plan(), columns, measures);
    }
    bytes += last;
  }
  return bytes;
}

SolveOperation::Room SolveOperation::FindRoom(int64_t bytes) {
  MemoryPool* const reserve = shard_->solve_reserve();
  if (reserve != nullptr && bytes <= reserve->stats().capacity_bytes) return {reserve, {}};
  std::optional<Reservation> free = shard_->device().TryReserve(nullptr, bytes);
  if (!free) return {};
  return {&shard_->solver().backend().pool(), *std::move(free)};
}

std::vector<SolveOutcome> SolveOperation::Solve(const Slices& slices, MemoryPool* pool,
                                                Phases* phases) {
  std::vector<SolveItem> items;
  items.reserve(slices.size());
  for (const Slice& slice : slices) {
    const SolvePart& part = *slice.part;
    const SolveManyParams& params = slice.task->request->params;
    const Shape& shape = part.pin->shape();
    const int64_t offset = part.solved * shape.rows() * ScalarBytes(shape.scalar);
    items.push_back({.factorization = part.pin.factorization(),
                     .rhs = part.columns.rhs.data() + offset,
                     .solution = part.columns.solution.data() + offset,
                     .num_rhs = slice.columns,
                     .residual = params.residual,
                     .max_refinements = params.max_refinements,
                     .cancelled = &slice.task->context->cancelled});
  }
  return shard_->solver().Solve(items, phases, Track::kSolve, pool);
}

bool SolveOperation::Take(const Slice& slice, SolveOutcome outcome) {
  if (absl::IsResourceExhausted(outcome.status)) return false;
  SolvePart& part = *slice.part;
  SolveOutcome& all = part.outcome;
  if (outcome.backward_error) {
    all.backward_error = LargerOrNaN(all.backward_error.value_or(0), *outcome.backward_error);
  }
  all.backward_error_bound = LargerOrNaN(all.backward_error_bound, outcome.backward_error_bound);
  all.refinements = std::max(all.refinements, outcome.refinements);
  const int64_t over = outcome.status.ok() ? slice.columns : part.left();
  all.status = std::move(outcome.status);
  part.solved += over;
  slice.task->left -= over;
  return true;
}

void SolveOperation::Run(const std::vector<TaskPtr>& batch) {
  std::vector<SolveTask*> whole;
  for (SolveTask* const task : TasksOf<SolveTask>(batch)) {
    if (task->is_piece()) {
      RunInPieces(*task, ColumnsWithin(*task, task->granted_seconds()));
    } else if (task->left < task->columns) {
      RunInPieces(*task, task->left);
    } else {
      whole.push_back(task);
    }
  }
  for (std::span<SolveTask* const> tasks(whole); !tasks.empty();) {
    Room room;
    size_t count = tasks.size();
    for (;; count = (count + 1) / 2) {
      int64_t bytes = 0;
      for (SolveTask* task : tasks.first(count)) bytes += Workspace(NextOf(*task, task->left));
      room = FindRoom(bytes);
      if (room.pool != nullptr || count == 1) break;
    }
    if (room.pool != nullptr) {
      RunTogether(tasks.first(count), std::move(room));
    } else {
      RunInPieces(*tasks[0], tasks[0]->left);
    }
    tasks = tasks.subspan(count);
  }
}

void SolveOperation::RunTogether(std::span<SolveTask* const> tasks, Room room) {
  RanBatch ran;
  ran.started = shard_->Now();
  shard_->BeginWork();
  Slices slices;
  for (SolveTask* task : tasks) {
    const Slices all = NextOf(*task, task->left);
    slices.insert(slices.end(), all.begin(), all.end());
    ran.requests += task->requests;
    ran.items += task->columns;
  }
  std::vector<SolveOutcome> outcomes = Solve(slices, room.pool, &ran.phases);
  shard_->metrics().RecordBatch(WorkKind::kSolve, ran.requests, ran.items,
                                tasks[0]->plan().solve_flops(ran.items));
  shard_->EndWork();
  room.reservation.Reset();
  for (size_t i = 0; i < slices.size(); ++i) Take(slices[i], std::move(outcomes[i]));
  for (SolveTask* task : tasks) {
    if (task->left > 0) {
      RunInPieces(*task, task->left);  // there was room, but in pieces
    } else {
      Answer(*task, shard_->MakeCost(*task, ran));
    }
  }
}

SolveOutcome SolveOperation::SolveAfterEviction(const Slice& slice) {
  absl::StatusOr<Reservation> room = shard_->device().Reserve(nullptr, Workspace({slice}));
  if (!room.ok()) return Failed(room.status());
  Solver& solver = shard_->solver();
  const bool measures = Measures(slice.task->request->params, *slice.part->pin);
  shard_->Defragment(solver.SolvePieces(slice.task->plan(), 1, measures));
  return Solve({slice}, &solver.backend().pool(), nullptr)[0];
}

void SolveOperation::RunInPieces(SolveTask& task, int64_t most) {
  RanBatch& ran = task.ran;
  if (ran.requests == 0) ran.started = shard_->Now();
  shard_->BeginWork();
  ran.requests = task.requests;
  ran.items = task.columns;
  const int64_t leave = task.left - most;
  int64_t columns = most;
  while (task.left > leave && task.left > 0) {
    columns = std::min(columns, task.left - leave);
    const Slices slices = NextOf(task, columns);
    Room room = FindRoom(Workspace(slices));
    bool all = room.pool != nullptr;
    if (all) {
      Phases phases;
      std::vector<SolveOutcome> outcomes = Solve(slices, room.pool, &phases);
      for (size_t i = 0; i < slices.size(); ++i) all &= Take(slices[i], std::move(outcomes[i]));
      AddTo(ran.phases, phases);
    }
    if (all) continue;
    if (columns > 1) {
      columns = (columns + 1) / 2;
      continue;
    }
    // The last resort, where the reserve is too small for one column, or there is none.
    room = {};
    SolveOutcome outcome = SolveAfterEviction(slices[0]);
    if (absl::IsResourceExhausted(outcome.status)) {
      slices[0].part->outcome.status = outcome.status;
      task.left -= slices[0].part->left();
      slices[0].part->solved = slices[0].part->columns.num_rhs;
    } else {
      Take(slices[0], std::move(outcome));
    }
  }
  shard_->EndWork();
  if (task.left > 0) {
    task.unfinished = true;
    return WriteTicket(task);
  }
  shard_->metrics().RecordBatch(WorkKind::kSolve, ran.requests, ran.items,
                                task.plan().solve_flops(ran.items));
  Answer(task, shard_->MakeCost(task, ran));
}

// -----------------------------------------------------------------------------------------------------
// The end

void SolveOperation::Fail(TaskPtr task, const absl::Status& status) {
  auto& failed = static_cast<SolveTask&>(*task);
  for (SolvePart& part : failed.parts) part.outcome = Failed(status);
  Answer(failed, Cost());
}

void SolveOperation::Answer(SolveTask& task, const Cost& cost) {
  const std::shared_ptr<SolveRequest> request = task.request;
  const absl::Time now = shard_->Now();
  std::vector<FactorizationCache::EndedSolve> ended;
  ended.reserve(task.parts.size());
  for (SolvePart& part : task.parts) {
    absl::Status& status = part.outcome.status;
    ended.push_back({std::move(part.pin), status.ok() ? part.columns.num_rhs : 0});
    if (!status.ok()) {
      shard_->Note(status);
      if (absl::IsCancelled(status)) status = task.EndStatus(now);
    } else if (part.outcome.backward_error) {
      shard_->metrics().RecordBackwardError(*part.outcome.backward_error);
    }
    request->outcomes[part.solve] = std::move(part.outcome);
  }
  // Whoever is told of the answer finds everything back.
  shard_->cache().EndSolves(ended);
  task.permit.GiveBack();
  {
    absl::MutexLock lock(&request->mutex);
    AddTo(request->cost, cost);
  }
  if (--request->unanswered == 0) server::Answer(*request);
}

}  // namespace blockd::server
