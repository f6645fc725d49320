#include "server/core/operations/solve.h"

#include <algorithm>
#include <optional>

#include "server/core/operations/steps.h"

namespace blockd::server {
namespace {

constexpr double kPiece = 2;  // times one column

// True if the solve measures its backward error, asked for or not.
bool Measures(const SolveManyParams& params, const Factorization& factorization) {
  return params.needs_matrix() || factorization.refines();
}

SolveOutcome Failed(absl::Status status) {
  SolveOutcome outcome;
  outcome.status = std::move(status);
  return outcome;
}

}  // namespace

void SolveOperation::Submit(std::unique_ptr<SolveTask> task) {
  WriteTicket(*task);
  shard_->Submit(std::move(task));
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
  ticket.refines = Measures(task.request->params, *task.parts[0].pin);
  const Factorization& first = *task.parts[0].pin;  // most are alike
  ticket.bytes = task.left * first.rows() * ScalarBytes(first.shape().scalar);
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
  int64_t columns = 0, border = 0;  // of the last one, as this
  bool measures = false;
  for (const Slice& slice : slices) {
    const bool does = Measures(slice.task->request->params, *slice.part->pin);
    const int64_t p = slice.part->pin->border().rows();
    // The slices of a task have one plan, and most are alike.
    if (slice.columns != columns || does != measures || p != border) {
      columns = slice.columns;
      measures = does;
      border = p;
      last = shard_->solver().SolveWorkspaceBytes(slice.task->plan(), columns, measures, border);
    }
    bytes += last;
  }
  return bytes;
}

SolveOperation::Room SolveOperation::FindRoom(int64_t bytes) {
  MemoryPool* const reserve = shard_->solve_reserve();
  if (reserve != nullptr && bytes <= reserve->stats().largest_free_bytes) return {reserve, {}};
  std::optional<Reservation> free = shard_->device().TryReserve(nullptr, bytes);
  if (!free) return {};
  return {&shard_->solver().backend().pool(), *std::move(free)};
}

void SolveOperation::AwaitFlights() {
  absl::MutexLock lock(&flights_mutex_);
  const auto none = [this]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return flights_ == 0; };
  flights_mutex_.Await(absl::Condition(&none));
}

std::vector<SolveItem> SolveOperation::ItemsOf(const Slices& slices) const {
  std::vector<SolveItem> items;
  items.reserve(slices.size());
  for (const Slice& slice : slices) {
    const SolvePart& part = *slice.part;
    const SolveManyParams& params = slice.task->request->params;
    const int64_t offset = part.solved * part.pin->rows() * ScalarBytes(part.pin->shape().scalar);
    items.push_back({.factorization = part.pin.factorization(),
                     .rhs = part.columns.rhs.data() + offset,
                     .solution = part.columns.solution.data() + offset,
                     .num_rhs = slice.columns,
                     .residual = params.residual,
                     .max_refinements = params.max_refinements,
                     .cancelled = &slice.task->context->cancelled});
  }
  return items;
}

std::vector<SolveOutcome> SolveOperation::Solve(const Slices& slices, MemoryPool* pool,
                                                Phases* phases) {
  return shard_->solver().Solve(ItemsOf(slices), phases, Track::kSolve, pool);
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

Operation::Completion SolveOperation::Run(const std::vector<TaskPtr>& batch) {
  if (!shard_->in_service()) {
    AnswerOutOfService(batch);
    return nullptr;
  }
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
  const auto room_for = [this](std::span<SolveTask* const> tasks) {
    int64_t bytes = 0;
    for (SolveTask* task : tasks) bytes += Workspace(NextOf(*task, task->left));
    return FindRoom(bytes);
  };
  if (!whole.empty()) {
    Room room = room_for(whole);
    if (room.pool != nullptr) return RunTogether(whole, std::move(room));
  }
  for (std::span<SolveTask* const> tasks(whole); !tasks.empty();) {
    AwaitFlights();
    Room room;
    size_t count = tasks.size();
    for (;; count = (count + 1) / 2) {
      room = room_for(tasks.first(count));
      if (room.pool != nullptr || count == 1) break;
    }
    if (room.pool == nullptr) {
      RunInPieces(*tasks[0], tasks[0]->left);
    } else {
      Completion completion = RunTogether(tasks.first(count), std::move(room));
      if (count == tasks.size()) return completion;
      if (completion != nullptr) completion();
    }
    tasks = tasks.subspan(count);
  }
  return nullptr;
}

struct SolveOperation::Flight {
  std::vector<SolveTask*> tasks;
  Slices slices;
  Room room;
  PendingSolve pending;
  RanBatch ran;
};

Operation::Completion SolveOperation::RunTogether(std::span<SolveTask* const> tasks, Room room) {
  auto flight = std::make_unique<Flight>();
  flight->tasks.assign(tasks.begin(), tasks.end());
  RanBatch& ran = flight->ran;
  ran.started = shard_->Now();
  shard_->BeginWork();
  for (SolveTask* task : tasks) {
    const Slices all = NextOf(*task, task->left);
    flight->slices.insert(flight->slices.end(), all.begin(), all.end());
    ran.requests += task->requests;
    ran.items += task->columns;
  }
  MemoryPool* const pool = room.pool;
  flight->room = std::move(room);
  flight->pending = shard_->solver().Submit(ItemsOf(flight->slices), Track::kSolve, pool);
  if (flight->pending.is_done()) {
    Land(*flight);
    return nullptr;
  }
  {
    absl::MutexLock lock(&flights_mutex_);
    ++flights_;
  }
  return [this, flight = std::move(flight)] {
    Land(*flight);
    absl::MutexLock lock(&flights_mutex_);
    --flights_;
  };
}

void SolveOperation::Land(Flight& flight) {
  RanBatch& ran = flight.ran;
  std::vector<SolveOutcome> outcomes = flight.pending.Await(&ran.phases);
  shard_->metrics().RecordBatch(WorkKind::kSolve, ran.requests, ran.items,
                                flight.tasks[0]->plan().solve_flops(ran.items));
  shard_->EndWork();
  flight.room.reservation.Reset();
  for (size_t i = 0; i < outcomes.size(); ++i) Take(flight.slices[i], std::move(outcomes[i]));
  for (SolveTask* task : flight.tasks) {
    if (task->left > 0) {
      RunInPieces(*task, task->left);  // there was room, but in pieces: known before it flew
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
  shard_->Defragment(
      solver.SolvePieces(slice.task->plan(), 1, measures, slice.part->pin->border().rows()));
  return Solve({slice}, &solver.backend().pool(), nullptr)[0];
}

void SolveOperation::RunInPieces(SolveTask& task, int64_t most) {
  AwaitFlights();
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

void SolveOperation::AnswerOutOfService(const std::vector<TaskPtr>& batch) {
  for (SolveTask* const task : TasksOf<SolveTask>(batch)) {
    for (SolvePart& part : task->parts) {
      const Handle& handle = task->request->params.handles[part.solve];
      part.outcome = Failed(shard_->cache().Get(task->context->caller, handle).status());
    }
    Answer(*task, Cost());
  }
}

void SolveOperation::Fail(TaskPtr task, const absl::Status& status) {
  auto& failed = static_cast<SolveTask&>(*task);
  for (SolvePart& part : failed.parts) part.outcome = Failed(status);
  Answer(failed, Cost());
}

void SolveOperation::Answer(SolveTask& task, const Cost& cost) {
  const std::shared_ptr<SolveRequest> request = task.request;
  const absl::Time now = shard_->Now();
  std::vector<Cache::EndedUse> ended;
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
  // Gives everything back before the caller learns of the answer.
  shard_->cache().EndUses(ended);
  task.permit.GiveBack();
  {
    absl::MutexLock lock(&request->mutex);
    request->cost.Add(cost);
  }
  if (--request->unanswered == 0) request->Answer();
}

}  // namespace blockd::server
