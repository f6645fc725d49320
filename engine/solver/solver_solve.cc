// Solver::Solve: items become groups of columns, one a factorization; residuals and refinement.
#include <algorithm>
#include <cstring>
#include <optional>
#include <span>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "blockd/engine/solver.h"
#include "engine/solver/solve_group.h"
#include "engine/solver/stopwatch.h"

namespace blockd {

struct PendingSolve::State {
  Backend* backend = nullptr;
  Track track = Track::kSolve;
  std::vector<SolveItem> items;
  std::vector<SolveOutcome> outcomes;
  std::vector<size_t> order;  // items, group after group
  std::vector<Solver::Group> groups;
  std::vector<DeviceBuffer> memory;
  std::optional<int64_t> mark;  // behind all that the device was given
  bool bordered = false;        // some of it, which was awaited: only the host knows its time
  absl::Status status;          // of the track
  Stopwatch watch;
  double load_seconds = 0, solve_seconds = 0, store_seconds = 0;  // of the host

  void MakeGroups();
  // The columns of all groups that are all right, where they are not in place; `vector` is the
  // group's.
  void AddColumns(const Solver::Group& group, void* vector, const void* SolveItem::*from,
                  std::vector<HostColumns>* columns) const;
  Phases MakePhases(const std::optional<TrackTimes>& times) const;
};

namespace {

bool NeedsResidual(const SolveItem& item) {
  if (item.part != SolvePart::kWhole) return false;
  return item.residual || item.max_refinements > 0 || item.factorization->refines();
}

absl::Status CheckSolveItem(const SolveItem& item, const SolveItem& first) {
  if (item.factorization->plan() != first.factorization->plan()) {
    return absl::InvalidArgumentError("items of one call have equal plans");
  }
  if (item.part != first.part) {
    return absl::InvalidArgumentError("items of one call solve the same part");
  }
  if (item.part != SolvePart::kWhole && (item.residual || item.max_refinements > 0)) {
    return absl::InvalidArgumentError("half a solve has no residual and no refinement");
  }
  if (item.num_rhs < 1) {
    return absl::InvalidArgumentError(absl::StrCat("num_rhs is ", item.num_rhs, ", expected >= 1"));
  }
  if ((item.residual || item.max_refinements > 0) && !item.factorization->matrix()) {
    return absl::FailedPreconditionError(
        "residuals and refinement need a factorization that kept its matrix (keep_matrix)");
  }
  return absl::OkStatus();
}

}  // namespace

void PendingSolve::State::MakeGroups() {
  // Items with a residual need more memory than those without: they are not mixed.
  absl::flat_hash_map<std::pair<const Factorization*, bool>, size_t> group_of;
  group_of.reserve(items.size());
  constexpr size_t kNone = ~size_t{0};
  std::vector<size_t> of_item(items.size(), kNone), count;
  for (size_t i = 0; i < items.size(); ++i) {
    const SolveItem& item = items[i];
    outcomes[i].status = CheckSolveItem(item, items[0]);
    if (!outcomes[i].status.ok()) continue;
    const Factorization* factorization = item.factorization.get();
    outcomes[i].backward_error_bound = factorization->backward_error_bound();
    const bool residual = NeedsResidual(item);
    const auto [known, made] = group_of.try_emplace({factorization, residual}, groups.size());
    if (made) {
      groups.emplace_back();
      groups.back().factorization = factorization;
      groups.back().residual = residual;
      count.push_back(0);
    }
    of_item[i] = known->second;
    groups[known->second].columns += item.num_rhs;
    ++count[known->second];
  }
  order.resize(items.size());
  size_t first = 0;
  for (size_t g = 0; g < groups.size(); ++g) {
    groups[g].items = {order.data() + first, count[g]};
    groups[g].in_place = groups[g].columns == 1 && backend->reads_host_memory() &&
                         !groups[g].residual && groups[g].border_rows() == 0;
    first += std::exchange(count[g], first);
  }
  for (size_t i = 0; i < items.size(); ++i) {
    if (of_item[i] != kNone) order[count[of_item[i]]++] = i;
  }
}

void PendingSolve::State::AddColumns(const Solver::Group& group, void* vector,
                                     const void* SolveItem::*from,
                                     std::vector<HostColumns>* columns) const {
  int64_t first = 0;
  for (const size_t i : group.items) {
    void* const host = from != nullptr ? const_cast<void*>(items[i].*from) : items[i].solution;
    columns->push_back({host, vector, items[i].num_rhs, first, group.columns});
    first += items[i].num_rhs;
  }
}

// One piece for all where there is one, else as SolvePieces says.
void Solver::Allocate(MemoryPool& pool, std::span<Group> groups,
                      std::vector<DeviceBuffer>* memory) {
  int64_t total = 0;
  for (Group& group : groups) {
    group.ForPieces([&](void**, int64_t bytes) { total += MemoryPool::Rounded(bytes); });
  }
  if (absl::StatusOr<DeviceBuffer> all = pool.Allocate(total); all.ok()) {
    std::byte* at = all->data();
    for (Group& group : groups) {
      group.ForPieces([&](void** to, int64_t bytes) {
        *to = at;
        at += MemoryPool::Rounded(bytes);
      });
    }
    memory->push_back(*std::move(all));
    return;
  }
  for (Group& group : groups) {
    const size_t before = memory->size();
    group.ForPieces([&](void** to, int64_t bytes) {
      if (!group.status.ok()) return;
      absl::StatusOr<DeviceBuffer> piece = pool.Allocate(bytes);
      group.status = piece.status();
      if (!piece.ok()) return;
      *to = piece->data();
      memory->push_back(*std::move(piece));
    });
    if (!group.status.ok()) memory->erase(memory->begin() + before, memory->end());
  }
}

namespace {

// One column of a group under refinement.
struct RefinedColumn {
  int32_t asked_steps = 0;  // while they help at all
  int32_t goal_steps = 0;   // while the goal is not reached
  double goal = 0;
  double rounding = 0;  // of x alone: errors below it are no worse than one another
  double error = 0;     // backward error of x
  int32_t steps = 0;    // taken
  bool active = false;

  void Measure(double now) {
    error = now;
    active = (steps < asked_steps && error != 0) || (steps < goal_steps && !(error <= goal));
  }
  // True if the step that was tried reduced the error; every step towards the goal must. Among the
  // steps that the caller asked for, the first that does not halve the error is the last.
  bool Try(double tried) {
    if (!(tried < error || tried <= rounding)) {
      active = false;
      return false;
    }
    ++steps;
    if (!(tried <= error / 2)) asked_steps = 0;
    Measure(tried);
    return true;
  }
};

// Says that refinement did not bring an answer to the error that a kept matrix promises.
absl::Status NotAccurate(double error, double goal) {
  return absl::FailedPreconditionError(
      absl::StrCat("no accurate answer: its backward error is ", error,
                   ", the factorization keeps ", "its matrix to reach ", goal,
                   "; the system is singular to working precision, or the right-hand side is not "
                   "finite or leaves the range of normal numbers"));
}

// How much of a measured backward error may be the rounding of its own residual.
double ResidualRounding(const Shape& shape) {
  const double n = static_cast<double>(shape.block_size);
  return BackwardErrorGoal(shape) / (4 * n) * (3 * n + 2) / 2;
}

std::vector<RefinedColumn> RefinedColumns(std::span<const SolveItem> items,
                                          std::span<const size_t> group) {
  std::vector<RefinedColumn> columns;
  for (const size_t i : group) {
    RefinedColumn column;
    column.asked_steps = items[i].max_refinements;
    const Shape& shape = items[i].factorization->shape();
    column.rounding = BackwardErrorGoal(shape) / (8 * static_cast<double>(shape.block_size));
    if (items[i].factorization->refines()) {
      column.goal_steps = kMaxRefinements;
      column.goal = BackwardErrorGoal(shape) - ResidualRounding(shape);
    }
    columns.insert(columns.end(), items[i].num_rhs, column);
  }
  return columns;
}

}  // namespace

// r = b - A x, and while it helps a column: solve for r, try x + r, and keep the better x. Every
// column goes its own way, whatever is beside it.
absl::Status Solver::Refine(Track track, std::span<const SolveItem> items, Group& group,
                            std::vector<SolveOutcome>& outcomes) {
  const EliminationPlan& plan = group.factorization->plan();
  const Shape& shape = plan.shape();
  const BlockTridiagonalView& matrix = group.factorization->matrix().view();
  std::vector<RefinedColumn> columns = RefinedColumns(items, group.items);
  const auto residual = [&](const void* x) {
    return backend_->Residual(track, matrix, x, group.rhs, group.r, group.columns);
  };
  const auto wanted = [&] { return AnyWanted(items, group.items); };
  absl::StatusOr<std::vector<Backend::ResidualNorms>> norms = residual(group.x);
  if (!norms.ok()) return norms.status();
  for (size_t c = 0; c < columns.size(); ++c) columns[c].Measure((*norms)[c].backward_error());
  std::vector<bool> better(columns.size());
  while (std::any_of(columns.begin(), columns.end(),
                     [](const RefinedColumn& column) { return column.active; })) {
    const SolveSystem correction = group.System(group.r);
    absl::Status status = backend_->Solve(track, {&plan, {&correction, 1}}, wanted);
    if (status.ok()) {
      status = backend_->Add(track, shape.scalar, group.r, group.x, shape.rows() * group.columns);
    }
    if (!status.ok()) return status;
    std::swap(group.r, group.tried);
    norms = residual(group.tried);
    if (!norms.ok()) return norms.status();
    for (size_t c = 0; c < columns.size(); ++c) {
      better[c] = columns[c].active && columns[c].Try((*norms)[c].backward_error());
    }
    status = backend_->CopyColumns(track, shape, group.x, group.tried, better);
    if (!status.ok()) return status;
  }
  size_t c = 0;
  for (const size_t i : group.items) {
    SolveOutcome& outcome = outcomes[i];
    double error = 0;
    for (const size_t end = c + items[i].num_rhs; c < end; ++c) {
      error = LargerOrNaN(error, columns[c].error);
      outcome.refinements = std::max(outcome.refinements, columns[c].steps);
    }
    outcome.backward_error = error;
    outcome.backward_error_bound = error + ResidualRounding(shape);
    constexpr double kRounding = 1 + 1e-9;  // of the sum above
    const double goal = BackwardErrorGoal(shape);
    if (group.factorization->refines() && !(outcome.backward_error_bound <= goal * kRounding)) {
      outcome.status = NotAccurate(error, goal);
    }
  }
  return absl::OkStatus();
}

// -----------------------------------------------------------------------------------------------------
// On the device

PendingSolve Solver::Submit(std::vector<SolveItem> items, Track track, MemoryPool* workspace) {
  auto state = std::make_unique<PendingSolve::State>();
  state->backend = backend_.get();
  state->track = track;
  state->outcomes.resize(items.size());
  state->items = std::move(items);
  if (state->items.empty()) return PendingSolve(std::move(state));
  absl::MutexLock lock(&TrackMutex(track));
  state->watch.Lap();
  state->MakeGroups();
  Allocate(workspace ? *workspace : backend_->pool(), state->groups, &state->memory);
  Run(*state);
  return PendingSolve(std::move(state));
}

void Solver::Run(PendingSolve::State& state) {
  const std::span<const SolveItem> items(state.items);
  const Track track = state.track;
  const EliminationPlan& plan = items[0].factorization->plan();
  std::vector<HostColumns> columns;
  columns.reserve(items.size());
  std::vector<SolveSystem> systems;
  systems.reserve(state.groups.size());
  for (Group& group : state.groups) {
    if (!group.status.ok()) continue;
    if (group.border_rows() > 0) {
      state.bordered = true;
      group.status = SolveBordered(track, items, group);
      continue;
    }
    if (group.in_place) {
      const SolveItem& item = items[group.items[0]];
      group.x = item.solution;
      if (item.solution != item.rhs) std::memcpy(item.solution, item.rhs, group.vector_bytes());
    } else {
      state.AddColumns(group, group.x, &SolveItem::rhs, &columns);
    }
    if (group.residual) state.AddColumns(group, group.rhs, &SolveItem::rhs, &columns);
    systems.push_back(group.System(group.x));
  }
  if (systems.empty()) {
    state.solve_seconds = state.watch.Lap();
    return;
  }
  const auto fail = [&](const absl::Status& status) {
    for (Group& group : state.groups) {
      if (group.border_rows() == 0) group.status.Update(status);
    }
  };
  absl::Status status;
  if (!columns.empty()) status = backend_->PackColumns(track, plan.shape(), columns);
  state.load_seconds = state.watch.Lap();
  if (status.ok()) {
    SolveBatch batch{&plan, systems};
    batch.part = items[0].part;
    if (items.size() == 1) batch.stop = items[0].cancelled;
    status = backend_->Solve(track, batch, [&] {
      return std::any_of(state.groups.begin(), state.groups.end(),
                         [&](const Group& group) { return AnyWanted(items, group.items); });
    });
  }
  fail(status);
  columns.clear();
  for (Group& group : state.groups) {
    if (group.status.ok() && group.residual) {
      group.status = Refine(track, items, group, state.outcomes);
    }
    if (group.status.ok() && !group.in_place && group.border_rows() == 0) {
      state.AddColumns(group, group.x, nullptr, &columns);
    }
  }
  state.solve_seconds = state.watch.Lap();
  status = absl::OkStatus();
  if (!columns.empty()) status = backend_->UnpackColumns(track, plan.shape(), columns);
  state.store_seconds = state.watch.Lap();
  fail(status);
  const bool all_well = std::all_of(state.groups.begin(), state.groups.end(),
                                    [](const Group& group) { return group.status.ok(); });
  if (all_well) {
    absl::StatusOr<int64_t> mark = backend_->Mark(track);
    if (mark.ok()) {
      state.mark = *mark;
      return;
    }
    fail(mark.status());
  }
  // Nothing may read or write the memory of this batch any more when it goes back to the pool.
  state.status = backend_->Synchronize(track);
}

Phases PendingSolve::State::MakePhases(const std::optional<TrackTimes>& times) const {
  if (!times || bordered) return {load_seconds, solve_seconds, store_seconds};
  // The host's waits while it stored are device time already.
  const double waited = times->pack_seconds + times->compute_seconds + times->unpack_seconds;
  return {load_seconds + times->pack_seconds, times->compute_seconds,
          times->unpack_seconds + std::max(0.0, store_seconds - waited)};
}

PendingSolve::PendingSolve() = default;
PendingSolve::PendingSolve(std::unique_ptr<State> state) : state_(std::move(state)) {}
PendingSolve::PendingSolve(PendingSolve&& other) noexcept = default;
PendingSolve& PendingSolve::operator=(PendingSolve&& other) noexcept {
  if (state_ && this != &other) Await();
  state_ = std::move(other.state_);
  return *this;
}
PendingSolve::~PendingSolve() {
  if (state_) Await();
}

bool PendingSolve::is_done() const {
  return !state_ || !state_->mark || state_->backend->reads_host_memory();
}

std::vector<SolveOutcome> PendingSolve::Await(Phases* phases) {
  if (!state_) return {};
  const std::unique_ptr<State> state = std::move(state_);
  std::optional<TrackTimes> times;
  if (state->mark) {
    absl::StatusOr<std::optional<TrackTimes>> awaited =
        state->backend->Await(state->track, *state->mark);
    state->status = awaited.status();
    if (awaited.ok()) times = *awaited;
  }
  std::vector<SolveOutcome>& outcomes = state->outcomes;
  for (const Solver::Group& group : state->groups) {
    for (const size_t i : group.items) {
      if (!group.status.ok() || !state->status.ok()) {
        outcomes[i].status = group.status.ok() ? state->status : group.status;
      }
      if (outcomes[i].status.ok() && IsCancelled(state->items[i].cancelled)) {
        outcomes[i].status = absl::CancelledError("cancelled while solving");
      }
    }
  }
  if (phases) *phases = state->MakePhases(times);
  return std::move(outcomes);
}

std::vector<SolveOutcome> Solver::Solve(std::span<const SolveItem> items, Phases* phases,
                                        Track track, MemoryPool* workspace) {
  return Submit({items.begin(), items.end()}, track, workspace).Await(phases);
}

}  // namespace blockd
