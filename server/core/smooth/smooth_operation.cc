#include "server/core/smooth/smooth_operation.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "server/core/operations/factor_outcome.h"
#include "server/core/operations/steps.h"

namespace blockd::server {
namespace {

// Columns of one task that are solved for together: more at once are no faster.
constexpr int64_t kMostColumns = 1024;

int64_t ColumnsOf(const SmoothTask& task) {
  int64_t columns = 0;
  for (const SmoothPart& part : task.parts) columns += std::ssize(part.means);
  return columns;
}

int64_t Sum(const std::vector<int64_t>& pieces) {
  return std::reduce(pieces.begin(), pieces.end(), int64_t{0});
}

}  // namespace

// -----------------------------------------------------------------------------------------------------
// Until it is queued

absl::Status SmoothOperation::Ask(SmoothTask& task) const {
  const SmoothPart& first = task.parts[0];
  if (first.factorization) {
    task.plan = first.factorization->shared_plan();
  } else {
    // One system's, so that it has the same bits whatever else there is.
    absl::StatusOr<std::shared_ptr<const EliminationPlan>> plan =
        shard_->PlanFor(first.matrix.form, 1);
    if (!plan.ok()) return plan.status();
    task.plan = *std::move(plan);
  }
  task.device_bytes = DeviceBytes(task);
  WriteTicket(task);
  return absl::OkStatus();
}

// The factors, and what the step takes that takes most: none is under way beside another.
int64_t SmoothOperation::DeviceBytes(const SmoothTask& task) const {
  const EliminationPlan& plan = *task.plan;
  const Solver& solver = shard_->solver();
  int64_t factors = 0, factoring = 0, inverting = 0, sampling = 0;
  for (const SmoothPart& part : task.parts) {
    if (!part.factorization) {
      factors += Shard::FactorCharge(plan, 0);
      factoring += solver.FactorWorkspaceBytes(plan, part.matrix.form, 1);
      if (part.information != nullptr) factoring += solver.InformationBytes(*part.information);
    }
    if (part.inverts()) {
      const int64_t bytes = part.factorization ? Sum(InversePieces(*shard_, InverseOf(task, part)))
                                               : solver.InverseWorkspaceBytes(
                                                     plan, part.parts, 0, plan.shape().num_blocks);
      inverting = std::max(inverting, bytes);
    }
    for (const SmoothDraw& draw : part.draws) {
      sampling = std::max(sampling, Sum(SamplePieces(*shard_, plan, draw.num_samples, 0)));
    }
  }
  const int64_t solving = std::min(ColumnsOf(task), kMostColumns) *
                          solver.SolveWorkspaceBytes(plan, 1, /*residual=*/false);
  return factors + std::max({factoring, solving, inverting, sampling});
}

InverseItem SmoothOperation::InverseOf(const SmoothTask& task, const SmoothPart& part) const {
  return {.factorization = part.factorization,
          .parts = part.parts,
          .first_block = 0,
          .num_blocks = part.factorization->shape().num_blocks,
          .cancelled = &task.context->cancelled};
}

double SmoothOperation::PredictedFirst(const SmoothTask& task, int64_t times) const {
  const CostModel costs = shard_->solver().backend().costs(task.plan->shape());
  const auto systems = std::count_if(task.parts.begin(), task.parts.end(),
                                     [](const auto& part) { return !part.factorization; });
  return (systems > 0 ? PredictedFactorSeconds(*task.plan, costs, systems * times) : 0) +
         PredictedSolveSeconds(*task.plan, 1, costs, ColumnsOf(task) * times);
}

double SmoothOperation::PredictedNext(const SmoothTask& task) const {
  const CostModel costs = shard_->solver().backend().costs(task.plan->shape());
  const SmoothPart& part = task.parts[task.next];
  if (part.inverts() && !task.inverted) return PredictedInverseSeconds(*task.plan, costs);
  return PredictedSampleSeconds(*task.plan, costs, part.draws[task.drawn].num_samples);
}

double SmoothOperation::PredictedSeconds(const SmoothTask& task, int64_t times) const {
  const CostModel costs = shard_->solver().backend().costs(task.plan->shape());
  double seconds = task.solved ? 0 : PredictedFirst(task, times);
  for (size_t i = task.next; i < task.parts.size(); ++i) {
    const SmoothPart& part = task.parts[i];
    const bool begun = i == task.next;
    if (part.inverts() && !(begun && task.inverted)) {
      seconds += PredictedInverseSeconds(*task.plan, costs);
    }
    for (size_t d = begun ? task.drawn : 0; d < part.draws.size(); ++d) {
      seconds += PredictedSampleSeconds(*task.plan, costs, part.draws[d].num_samples);
    }
  }
  return seconds;
}

void SmoothOperation::WriteTicket(SmoothTask& task) const {
  Ticket ticket = task.ticket();
  ticket.key = {WorkKind::kSmooth, task.plan};
  ticket.seconds = PredictedSeconds(task);
  ticket.piece_seconds = task.solved ? PredictedNext(task) : PredictedFirst(task, 1);
  ticket.marginal_seconds =
      task.solved ? ticket.seconds : PredictedSeconds(task, 2) - ticket.seconds;
  ticket.items = ColumnsOf(task);
  ticket.bytes = 0;
  for (const SmoothPart& part : task.parts) {
    if (!task.solved && !part.factorization) ticket.bytes += part.matrix.form.bytes();
  }
  task.set_ticket(std::move(ticket));
}

// -----------------------------------------------------------------------------------------------------
// On the device

Operation::Completion SmoothOperation::Run(const std::vector<TaskPtr>& batch) {
  const std::vector<SmoothTask*> tasks = TasksOf<SmoothTask>(batch);
  if (const absl::Status failed = shard_->CheckInService(); !failed.ok()) {
    for (SmoothTask* const task : tasks) {
      Note(*task, failed);
      Answer(*task);
    }
    return nullptr;
  }
  shard_->BeginWork();
  RanBatch first;
  first.started = shard_->Now();
  std::vector<SmoothTask*> begun;
  std::copy_if(tasks.begin(), tasks.end(), std::back_inserter(begun),
               [](const SmoothTask* task) { return !task->solved; });
  double flops = RunFirst(begun, first);
  int64_t systems = 0;
  for (SmoothTask* const task : tasks) {
    systems += std::ssize(task->parts);
    const bool begins = std::find(begun.begin(), begun.end(), task) != begun.end();
    if (begins) task->cost.Add(shard_->MakeCost(*task, first));
    RanBatch rest;
    rest.started = first.started;
    flops += RunRest(*task, begins ? task->ticket().piece_seconds : 0, rest);
    if (rest.requests > 0) task->cost.Add(shard_->MakeCost(*task, rest));
  }
  shard_->metrics().RecordBatch(WorkKind::kSmooth, std::ssize(tasks), systems, flops);
  shard_->EndWork();
  for (SmoothTask* const task : tasks) {
    task->unfinished = task->status.ok() && HasNext(*task);
    if (!task->unfinished) {
      Answer(*task);
      continue;
    }
    task->accepted = shard_->Now();
    WriteTicket(*task);
  }
  return nullptr;
}

double SmoothOperation::RunFirst(Tasks tasks, RanBatch& ran) {
  if (tasks.empty()) return 0;
  ran.requests = std::ssize(tasks);
  double flops = 0;
  for (const SmoothTask* const task : tasks) {
    ran.items += ColumnsOf(*task);
    flops += task->plan->solve_flops(ColumnsOf(*task));
    for (const SmoothPart& part : task->parts) {
      if (!part.factorization) flops += task->plan->factor_flops();
    }
  }
  FactorAll(tasks, ran);
  SolveAll(tasks, ran);
  for (SmoothTask* const task : tasks) task->solved = true;
  return flops;
}

void SmoothOperation::FactorAll(Tasks tasks, RanBatch& ran) {
  std::vector<FactorItem> items;
  std::vector<std::pair<SmoothTask*, SmoothPart*>> of_item;
  for (SmoothTask* const task : tasks) {
    for (SmoothPart& part : task->parts) {
      if (part.factorization) continue;
      FactorItem& item = items.emplace_back();
      item.matrix = part.matrix;
      item.information = part.information;
      item.cancelled = &task->context->cancelled;
      of_item.push_back({task, &part});
    }
  }
  std::vector<FactorOutcome> outcomes =
      FactorWithRetry(*shard_, tasks[0]->plan, items, &ran.phases);
  for (size_t i = 0; i < outcomes.size(); ++i) {
    auto& [task, part] = of_item[i];
    absl::Status status = OutcomeStatus(*shard_, *task, {.host = part->matrix},
                                        static_cast<int64_t>(part->system), outcomes[i]);
    if (status.ok()) {
      part->factorization = std::move(outcomes[i].factorization);
      if (task->log_determinant) {
        absl::StatusOr<double> value = shard_->solver().LogDeterminant(*part->factorization);
        status = value.status();
        part->log_determinant = value.value_or(0);
      }
    }
    Note(*task, std::move(status));
  }
}

void SmoothOperation::SolveAll(Tasks tasks, RanBatch& ran) {
  std::vector<std::vector<SolveItem>> items;  // of each task
  for (const SmoothTask* const task : tasks) {
    std::vector<SolveItem>& own = items.emplace_back();
    if (!task->status.ok()) continue;
    for (const SmoothPart& part : task->parts) {
      for (const std::span<double> means : part.means) {
        own.push_back({.factorization = part.factorization,
                       .rhs = means.data(),
                       .solution = means.data(),
                       .cancelled = &task->context->cancelled});
      }
    }
  }
  for (bool more = true; more;) {
    more = false;
    std::vector<SolveItem> together;
    std::vector<SmoothTask*> of_item;
    for (size_t t = 0; t < tasks.size(); ++t) {
      const auto count = std::min<int64_t>(std::ssize(items[t]), kMostColumns);
      together.insert(together.end(), items[t].end() - count, items[t].end());
      items[t].resize(items[t].size() - static_cast<size_t>(count));
      of_item.insert(of_item.end(), static_cast<size_t>(count), tasks[t]);
      more |= !items[t].empty();
    }
    if (together.empty()) return;
    Phases phases;
    std::vector<SolveOutcome> outcomes = SolveWithRetry(*shard_, together, &phases);
    AddTo(ran.phases, phases);
    for (size_t i = 0; i < outcomes.size(); ++i) {
      Note(*of_item[i], std::move(outcomes[i].status));
    }
  }
}

bool SmoothOperation::HasNext(SmoothTask& task) {
  while (task.next < task.parts.size()) {
    const SmoothPart& part = task.parts[task.next];
    if (part.inverts() && !task.inverted) return true;
    if (task.drawn < part.draws.size()) return true;
    ++task.next;
    task.inverted = false;
    task.drawn = 0;
  }
  return false;
}

double SmoothOperation::RunRest(SmoothTask& task, double spent_seconds, RanBatch& ran) {
  double flops = 0;
  for (double seconds = spent_seconds; task.status.ok() && HasNext(task);) {
    const double next = PredictedNext(task);
    if (seconds > 0 && seconds + next > task.granted_seconds()) break;
    seconds += next;
    ran.requests = 1;
    flops += RunNext(task, ran);
  }
  return flops;
}

double SmoothOperation::RunNext(SmoothTask& task, RanBatch& ran) {
  SmoothPart& part = task.parts[task.next];
  const EliminationPlan& plan = *task.plan;
  if (part.inverts() && !task.inverted) {
    task.inverted = true;
    ran.items += plan.shape().num_blocks;
    Phases phases;
    Note(task, Invert(task, part, &phases));
    AddTo(ran.phases, phases);
    return InverseFlops(plan);
  }
  const SmoothDraw& draw = part.draws[task.drawn++];
  ran.items += draw.num_samples;
  Note(task, SampleWithRetry(*shard_,
                             {.factorization = part.factorization,
                              .seed = task.seed,
                              .first_sample = draw.first_sample,
                              .num_samples = draw.num_samples,
                              .cancelled = &task.context->cancelled},
                             std::as_writable_bytes(draw.samples)));
  return SampleFlops(plan, draw.num_samples);
}

absl::Status SmoothOperation::Invert(SmoothTask& task, SmoothPart& part, Phases* phases) {
  const InverseItem item = InverseOf(task, part);
  Reservation more;  // for a factor of which nobody knew before that it would be substituted with
  if (!part.is_held && part.factorization->substitutes()) {
    absl::Status status = shard_->device().Extend(
        task.permit.tenant, MemoryPool::Rounded(task.plan->factor_bytes()), &more);
    if (!status.ok()) return status;
  }
  const InverseOutput output{.diagonal = part.diagonal.data(),
                             .coupling = part.coupling.empty() ? nullptr : part.coupling.data()};
  return InvertWithRetry(*shard_, item, output, phases);
}

// -----------------------------------------------------------------------------------------------------
// The end

void SmoothOperation::Note(SmoothTask& task, absl::Status status) {
  shard_->Note(status);
  if (absl::IsCancelled(status)) status = task.EndStatus(shard_->Now());
  task.status.Update(std::move(status));
}

void SmoothOperation::Fail(TaskPtr task, const absl::Status& status) {
  auto& failed = static_cast<SmoothTask&>(*task);
  failed.status.Update(status);
  Answer(failed);
}

void SmoothOperation::Answer(SmoothTask& task) {
  std::vector<Cache::EndedUse> ended;
  for (SmoothPart& part : task.parts) {
    if (!part.is_held) continue;
    part.factorization.reset();
    ended.push_back({std::move(part.held), task.status.ok() ? std::ssize(part.means) : 0});
  }
  shard_->cache().EndUses(ended);
  task.done(task);
}

}  // namespace blockd::server
