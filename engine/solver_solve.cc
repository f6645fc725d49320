// Solver::Solve: items become groups of columns, one a factorization; residuals and refinement.
#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "blockd/engine/solver.h"
#include "engine/stopwatch.h"

namespace blockd {

// The items of one factorization, solved together: their columns stand side by side in x.
struct Solver::Group {
  const Factorization* factorization = nullptr;
  std::vector<size_t> items;
  int64_t columns = 0;
  DeviceBuffer x;  // packed [block][column][n]; empty if the solution's own memory serves
  // For residuals: a copy of B, B - A X, and in refinement the X that is tried.
  bool residual = false;
  DeviceBuffer rhs;
  DeviceBuffer r;
  DeviceBuffer tried;
  DeviceBuffer chains;
  void* in_place = nullptr;
  absl::Status status;

  void* data() const { return in_place ? in_place : static_cast<void*>(x.data()); }
  SolveSystem System(void* vectors) const {
    return {factorization->data(), vectors, columns, chains.data()};
  }
};

namespace {

bool NeedsResidual(const SolveItem& item) {
  return item.residual || item.max_refinements > 0 || item.factorization->refines();
}

absl::Status CheckSolveItem(const SolveItem& item, const EliminationPlan& plan) {
  if (item.factorization->plan() != plan) {
    return absl::InvalidArgumentError("items of one call have equal plans");
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

// Whether one of these items has not been cancelled.
bool AnyWanted(std::span<const SolveItem> items, std::span<const size_t> group) {
  return std::any_of(group.begin(), group.end(),
                     [items](size_t i) { return !IsCancelled(items[i].cancelled); });
}

}  // namespace

std::vector<Solver::Group> Solver::MakeGroups(std::span<const SolveItem> items,
                                              std::vector<SolveOutcome>& outcomes) {
  std::vector<Group> groups;
  // Items with a residual need more memory than those without: they are not mixed.
  absl::flat_hash_map<std::pair<const Factorization*, bool>, size_t> group_of;
  for (size_t i = 0; i < items.size(); ++i) {
    const SolveItem& item = items[i];
    outcomes[i].status = CheckSolveItem(item, items[0].factorization->plan());
    if (!outcomes[i].status.ok()) continue;
    const Factorization* factorization = item.factorization.get();
    outcomes[i].backward_error_bound =
        BackwardErrorBound(factorization->shape(), factorization->conditioning().growth);
    const auto [known, made] =
        group_of.try_emplace({factorization, NeedsResidual(item)}, groups.size());
    if (made) {
      groups.emplace_back();
      groups.back().factorization = factorization;
      groups.back().residual = NeedsResidual(item);
    }
    groups[known->second].items.push_back(i);
    groups[known->second].columns += item.num_rhs;
  }
  return groups;
}

absl::Status Solver::Load(Track track, std::span<const SolveItem> items, MemoryPool& pool,
                          Group& group) {
  const EliminationPlan& plan = group.factorization->plan();
  const Shape& shape = plan.shape();
  const int64_t scalar = ScalarBytes(shape.scalar);
  const int64_t bytes = shape.rows() * group.columns * scalar;
  absl::StatusOr<DeviceBuffer> chains =
      pool.Allocate(plan.solve_chain_scalars(group.columns) * scalar);
  if (!chains.ok()) return chains.status();
  group.chains = *std::move(chains);
  if (group.columns == 1 && backend_->reads_host_memory() && !group.residual) {
    const SolveItem& item = items[group.items[0]];
    group.in_place = item.solution;
    if (item.solution != item.rhs) std::memcpy(item.solution, item.rhs, bytes);
    return absl::OkStatus();
  }
  std::vector<DeviceBuffer*> buffers = {&group.x};
  if (group.residual) buffers = {&group.x, &group.rhs, &group.r, &group.tried};
  for (DeviceBuffer* buffer : buffers) {
    absl::StatusOr<DeviceBuffer> piece = pool.Allocate(bytes);
    if (!piece.ok()) return piece.status();
    *buffer = *std::move(piece);
  }
  int64_t first_column = 0;
  for (const size_t i : group.items) {
    absl::Status status =
        backend_->PackColumns(track, shape.scalar, group.x.data(), items[i].rhs, shape.block_size,
                              shape.rows(), items[i].num_rhs, first_column, group.columns);
    if (status.ok() && group.residual) {
      status = backend_->PackColumns(track, shape.scalar, group.rhs.data(), items[i].rhs,
                                     shape.block_size, shape.rows(), items[i].num_rhs, first_column,
                                     group.columns);
    }
    if (!status.ok()) return status;
    first_column += items[i].num_rhs;
  }
  return absl::OkStatus();
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
  // Of a step that was tried: whether it is an improvement, as every step to the goal must be. Of
  // those that were asked for one that does not halve the error is the last.
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
  const auto residual = [&](const DeviceBuffer& x) {
    return backend_->Residual(track, matrix, x.data(), group.rhs.data(), group.r.data(),
                              group.columns);
  };
  const auto wanted = [&] { return AnyWanted(items, group.items); };
  absl::StatusOr<std::vector<Backend::ResidualNorms>> norms = residual(group.x);
  if (!norms.ok()) return norms.status();
  for (size_t c = 0; c < columns.size(); ++c) columns[c].Measure((*norms)[c].backward_error());
  std::vector<bool> better(columns.size());
  while (std::any_of(columns.begin(), columns.end(),
                     [](const RefinedColumn& column) { return column.active; })) {
    const SolveSystem correction = group.System(group.r.data());
    absl::Status status = backend_->Solve(track, {&plan, {&correction, 1}}, wanted);
    if (status.ok()) {
      status = backend_->Add(track, shape.scalar, group.r.data(), group.x.data(),
                             shape.rows() * group.columns);
    }
    if (!status.ok()) return status;
    std::swap(group.r, group.tried);
    norms = residual(group.tried);
    if (!norms.ok()) return norms.status();
    for (size_t c = 0; c < columns.size(); ++c) {
      better[c] = columns[c].active && columns[c].Try((*norms)[c].backward_error());
    }
    status = backend_->CopyColumns(track, shape, group.x.data(), group.tried.data(), better);
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
  }
  return absl::OkStatus();
}

absl::Status Solver::Store(Track track, std::span<const SolveItem> items, const Group& group) {
  if (group.in_place) return absl::OkStatus();
  const Shape& shape = group.factorization->shape();
  int64_t first_column = 0;
  for (const size_t i : group.items) {
    absl::Status status = backend_->UnpackColumns(track, shape.scalar, items[i].solution,
                                                  group.x.data(), shape.block_size, shape.rows(),
                                                  items[i].num_rhs, first_column, group.columns);
    if (!status.ok()) return status;
    first_column += items[i].num_rhs;
  }
  return absl::OkStatus();
}

std::vector<SolveOutcome> Solver::Solve(std::span<const SolveItem> items, Phases* phases,
                                        Track track, MemoryPool* workspace) {
  std::vector<SolveOutcome> outcomes(items.size());
  if (items.empty()) return outcomes;
  absl::MutexLock lock(&TrackMutex(track));
  Stopwatch watch;
  Phases spent;
  std::vector<Group> groups = MakeGroups(items, outcomes);
  std::vector<SolveSystem> systems;
  for (Group& group : groups) {
    group.status = Load(track, items, workspace ? *workspace : backend_->pool(), group);
    if (group.status.ok()) systems.push_back(group.System(group.data()));
  }
  spent.upload_seconds = watch.Lap();
  if (!systems.empty()) {
    SolveBatch batch{&items[0].factorization->plan(), systems};
    if (items.size() == 1) batch.stop = items[0].cancelled;
    const absl::Status status = backend_->Solve(track, batch, [&] {
      return std::any_of(groups.begin(), groups.end(),
                         [&](const Group& group) { return AnyWanted(items, group.items); });
    });
    for (Group& group : groups) {
      if (group.status.ok()) group.status = status;
      if (group.status.ok() && group.residual) group.status = Refine(track, items, group, outcomes);
    }
  }
  absl::Status synchronized = backend_->Synchronize(track);
  spent.compute_seconds = watch.Lap();
  for (Group& group : groups) {
    if (group.status.ok()) group.status = Store(track, items, group);
  }
  if (synchronized.ok()) synchronized = backend_->Synchronize(track);
  for (const Group& group : groups) {
    for (const size_t i : group.items) {
      outcomes[i].status = group.status.ok() ? synchronized : group.status;
      if (outcomes[i].status.ok() && IsCancelled(items[i].cancelled)) {
        outcomes[i].status = absl::CancelledError("cancelled while solving");
      }
    }
  }
  spent.download_seconds = watch.Lap();
  if (phases) *phases = spent;
  return outcomes;
}

}  // namespace blockd
