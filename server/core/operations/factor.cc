// Factor: admit, queue, run, keep, answer.
#include "server/core/operations/factor.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/core/operations/checks.h"
#include "server/core/operations/factor_outcome.h"

namespace blockd::server {

struct FactorOperation::FactorRun {
  DeviceBuffer recycled;     // the old factor's memory, to overwrite
  bool overwriting = false;  // the handle has no factor until this one ends
  FactorOutcome outcome;
};

void FactorOperation::Start(ContextPtr context, const FactorParams& params,
                            std::vector<BlockTridiagonalView> matrices, FactorDone done) {
  absl::StatusOr<Permit> permit = shard_->Admit(*context);
  if (!permit.ok()) return done(permit.status());
  auto task = std::make_unique<FactorTask>(this, std::move(context), *std::move(permit),
                                           shard_->Now(), params, std::move(done));
  task->params.num_systems = static_cast<int64_t>(matrices.size());
  task->matrices = std::move(matrices);
  absl::Status status = CheckFactor(task->params, shard_->limits());
  if (status.ok()) status = CheckMatrices(task->matrices, params.form, params.check_finite);
  if (!status.ok()) return Fail(std::move(task), status);
  Submit(std::move(task));
}

void FactorOperation::Submit(FactorTaskPtr task) {
  // What is held is found without owning the key. Once it is owned, nobody inserts it: it is looked
  // up again for what came in between.
  for (const bool owns : {false, true}) {
    if (task->params.idempotency_key.empty()) break;
    if (owns && !OwnKeyOrWait(task)) return;
    absl::StatusOr<std::optional<FactorReply>> found = FindKey(*task->context, task->params);
    if (!found.ok()) return Fail(std::move(task), found.status());
    if (!found->has_value()) continue;
    (*found)->cost.queue = shard_->Now() - task->accepted;
    return Answer(*task, **std::move(found));
  }
  if (task->plan == nullptr) {  // else an upload, which has all it needs
    absl::Status status = Admit(*task);
    if (!status.ok()) return Fail(std::move(task), status);
    absl::StatusOr<Reservation> device =
        shard_->device().Reserve(task->permit.tenant, DeviceBytes(*task, /*staged=*/false));
    if (!device.ok()) return Fail(std::move(task), device.status());
    task->permit.device = *std::move(device);
  }
  const CostModel costs = shard_->solver().backend().costs(task->plan->shape());
  const int64_t systems = task->params.num_systems;
  Ticket ticket;
  ticket.key = {WorkKind::kFactor, task->plan};
  ticket.seconds = PredictedFactorSeconds(*task->plan, costs, systems);
  ticket.marginal_seconds =
      PredictedFactorSeconds(*task->plan, costs, 2 * systems) - ticket.seconds;
  ticket.bytes = systems * task->params.form.bytes();
  task->set_ticket(std::move(ticket));
  shard_->Submit(std::move(task));
}

void FactorOperation::Fail(TaskPtr task, const absl::Status& status) {
  Answer(static_cast<FactorTask&>(*task), status);
}

absl::Status FactorOperation::PinRefactored(FactorTask& task) {
  const FactorParams& params = task.params;
  for (size_t i = 0; i < params.handles.size(); ++i) {
    absl::StatusOr<FactorizationCache::Pin> pin =
        shard_->cache().Lookup(task.context->caller, params.handles[i]);
    if (!pin.ok()) return pin.status();
    if (!((*pin)->shape() == params.form.shape)) {
      return InvalidFieldError(
          "spec", ToString(params.form.shape),
          absl::StrCat(ToString((*pin)->shape()), ", the shape of options.handle[", i, "]"));
    }
    task.pins.push_back(*std::move(pin));
  }
  return absl::OkStatus();
}

absl::Status FactorOperation::Admit(FactorTask& task) {
  const FactorParams& params = task.params;
  absl::Status status = PinRefactored(task);
  if (!status.ok()) return status;
  absl::StatusOr<std::shared_ptr<const EliminationPlan>> plan =
      shard_->PlanFor(params.form, params.num_systems);
  if (!plan.ok()) return plan.status();
  status = shard_->TakeUpload(task.permit, params.num_systems * params.form.bytes());
  if (!status.ok()) return status;
  const int64_t charge = Shard::FactorCharge(**plan);
  if (task.pins.empty()) {
    absl::StatusOr<Reservation> handles =
        shard_->handles().Reserve(task.permit.tenant, params.num_systems);
    if (!handles.ok()) return handles.status();
    task.permit.handles = *std::move(handles);
  }
  if (params.pin || LeaseOf(params) > absl::ZeroDuration()) {
    const int64_t kept = params.may_keep_matrix() ? Shard::MatrixCharge(params.form) : 0;
    absl::StatusOr<Reservation> pinned =
        shard_->pinned().Reserve(task.permit.tenant, params.num_systems * (charge + kept));
    if (!pinned.ok()) return pinned.status();
    task.permit.pinned = *std::move(pinned);
  }
  task.plan = *std::move(plan);
  return absl::OkStatus();
}

// An overwritten factor's own memory serves the new one: only what that lacks is asked for.
int64_t FactorOperation::DeviceBytes(FactorTask& task, bool staged) {
  const FactorParams& params = task.params;
  const int64_t charge = Shard::FactorCharge(*task.plan);
  const bool matrices = staged || params.may_keep_matrix();
  int64_t bytes = shard_->solver().FactorWorkspaceBytes(*task.plan, params.form, params.num_systems,
                                                        matrices, params.condition_estimate);
  task.factor_reserved.clear();
  for (int64_t i = 0; i < params.num_systems; ++i) {
    const int64_t reused = params.overwrite && !task.pins.empty()
                               ? std::min(charge, Shard::FactorCharge(task.pins[i]->plan()))
                               : 0;
    task.factor_reserved.push_back(charge - reused);
    bytes += charge - reused + (matrices ? Shard::MatrixCharge(params.form) : 0);
  }
  return bytes;
}

// Takes the old factor out of the cache to be overwritten. Where somebody uses it, or it is another
// one by now, the new one needs memory of its own, and the old one stays until it is there.
void FactorOperation::PrepareOverwrite(FactorTask& task, int64_t system, FactorRun& run) {
  FactorizationCache::Pin& pin = task.pins[static_cast<size_t>(system)];
  const int64_t old_charge = Shard::FactorCharge(pin->plan());
  std::optional<Holding> old = shard_->cache().BeginOverwrite(pin);
  if (!old) {
    const int64_t missing =
        Shard::FactorCharge(*task.plan) - task.factor_reserved[static_cast<size_t>(system)];
    absl::StatusOr<Reservation> more = shard_->device().Reserve(task.permit.tenant, missing);
    if (more.ok()) {
      task.permit.device.Merge(*std::move(more));
    } else {
      run.outcome.status = more.status();
    }
    return;
  }
  run.overwriting = true;
  task.permit.device.Merge(old->reservation.Split(old_charge));
  const bool same_size = old->factorization->plan().factor_bytes() == task.plan->factor_bytes();
  run.recycled = Factorization::Recycle(std::move(old->factorization));
  if (!same_size) run.recycled.Reset();
}

void FactorOperation::Run(const std::vector<TaskPtr>& batch) {
  const std::vector<FactorTask*> tasks = TasksOf<FactorTask>(batch);
  RanBatch ran;
  ran.started = shard_->Now();
  shard_->BeginWork();
  ran.requests = static_cast<int64_t>(tasks.size());
  for (const FactorTask* task : tasks) ran.items += task->params.num_systems;
  std::vector<FactorRun> runs(static_cast<size_t>(ran.items));  // the items point into it
  std::vector<FactorItem> items;
  std::vector<FactorRun*> run_of_item;
  size_t next = 0;
  for (FactorTask* task : tasks) {
    for (int64_t i = 0; i < task->params.num_systems; ++i) {
      FactorRun& run = runs[next++];
      if (task->params.overwrite && !task->pins.empty()) PrepareOverwrite(*task, i, run);
      if (!run.outcome.status.ok()) continue;
      FactorItem item;
      if (!task->matrices.empty()) item.matrix = task->matrices[static_cast<size_t>(i)];
      if (!task->staged.empty()) item.staged = &task->staged[static_cast<size_t>(i)];
      item.keep_matrix = task->params.keep_matrix;
      item.accuracy = task->params.accuracy;
      item.estimate_condition = task->params.condition_estimate;
      item.recycle = run.recycled ? &run.recycled : nullptr;
      item.cancelled = &task->context->cancelled;
      items.push_back(item);
      run_of_item.push_back(&run);
    }
  }
  std::vector<FactorOutcome> outcomes =
      FactorWithRetry(*shard_, tasks[0]->plan, items, &ran.phases);
  for (size_t i = 0; i < outcomes.size(); ++i) run_of_item[i]->outcome = std::move(outcomes[i]);
  shard_->metrics().RecordBatch(WorkKind::kFactor, ran.requests, ran.items,
                                tasks[0]->plan->factor_flops() * static_cast<double>(items.size()));
  shard_->EndWork();
  next = 0;
  for (FactorTask* task : tasks) {
    const size_t systems = static_cast<size_t>(task->params.num_systems);
    absl::StatusOr<FactorReply> reply = Keep(*task, std::span(runs).subspan(next, systems));
    if (reply.ok()) reply->cost = shard_->MakeCost(*task, ran, task->received);
    Answer(*task, std::move(reply));
    next += systems;
  }
}

void Describe(const Factorization& factorization, FactoredSystem& system) {
  system.conditioning = factorization.conditioning();
  system.backward_error_bound =
      BackwardErrorBound(factorization.shape(), factorization.conditioning().growth);
  system.matrix_kept = static_cast<bool>(factorization.matrix());
}

absl::StatusOr<FactorReply> FactorOperation::Keep(FactorTask& task, std::span<FactorRun> runs) {
  const auto cancelled = [](const FactorRun& run) { return absl::IsCancelled(run.outcome.status); };
  // Nobody would learn the handles of those that were factored before.
  if (task.params.handles.empty() && std::any_of(runs.begin(), runs.end(), cancelled)) {
    return task.EndStatus(shard_->Now());
  }
  FactorReply reply;
  reply.systems.resize(runs.size());
  reply.factor_bytes = task.plan->factor_bytes();
  // Whoever finds the key later is told it without asking the device.
  const bool log_determinant = task.params.log_determinant || !task.params.idempotency_key.empty();
  std::vector<Holding> holdings;
  for (size_t i = 0; i < runs.size(); ++i) {
    FactorRun& run = runs[i];
    FactoredSystem& system = reply.systems[i];
    const MatrixSource matrix = task.staged.empty() ? MatrixSource{.host = task.matrices[i]}
                                                    : MatrixSource{.staged = &task.staged[i]};
    system.status = OutcomeStatus(*shard_, task, matrix, static_cast<int64_t>(i), run.outcome);
    std::shared_ptr<Factorization> factorization = std::move(run.outcome.factorization);
    if (system.status.ok() && log_determinant) {
      absl::StatusOr<double> value = shard_->solver().LogDeterminant(*factorization);
      system.status = value.status();
      if (value.ok()) system.log_determinant = *value;
      shard_->Note(system.status);
    }
    if (!system.status.ok()) {
      if (run.overwriting) shard_->cache().FailOverwrite(task.params.handles[i]);
      continue;
    }
    reply.factor_bytes = std::max(reply.factor_bytes, factorization->bytes());
    Describe(*factorization, system);
    const int64_t charge = Shard::FactorCharge(*task.plan) +
                           (factorization->matrix() ? Shard::MatrixCharge(task.params.form) : 0);
    Holding holding{task.permit.device.Split(charge), std::move(factorization)};
    if (task.params.handles.empty()) {
      holdings.push_back(std::move(holding));
      continue;
    }
    system.handle = task.params.handles[i];
    FactorizationCache::EntryGrants grants;
    grants.pinned = task.permit.pinned.Split(charge);
    system.status = shard_->cache().Replace(task.context->caller, system.handle, std::move(holding),
                                            {.lease = task.params.lease, .pin = task.params.pin},
                                            std::move(grants));
  }
  if (!holdings.empty()) KeepNew(task, std::move(holdings), reply);
  if (!task.params.log_determinant) {
    for (FactoredSystem& system : reply.systems) system.log_determinant.reset();
  }
  if (reply.systems.size() == 1 && !reply.systems[0].status.ok()) return reply.systems[0].status;
  return reply;
}

void FactorOperation::KeepNew(FactorTask& task, std::vector<Holding> holdings, FactorReply& reply) {
  FactorizationCache::EntryOptions options;
  options.lease = LeaseOf(task.params);
  options.pin = task.params.pin;
  if (!task.params.idempotency_key.empty()) KeepKey(task.params, reply, options);
  FactorizationCache::EntryGrants grants{std::move(task.permit.handles),
                                         std::move(task.permit.pinned)};
  const std::vector<Handle> handles =
      shard_->cache().Insert(task.context->caller, std::move(holdings), options, std::move(grants));
  size_t next = 0;
  for (FactoredSystem& system : reply.systems) {
    if (system.status.ok()) system.handle = handles[next++];
  }
}

void FactorOperation::Answer(FactorTask& task, absl::StatusOr<FactorReply> reply) {
  // Whoever is told of the answer finds everything back.
  task.pins.clear();
  task.staged.clear();
  task.permit.GiveBack();
  if (task.owns_key) ReleaseKey(task, reply);
  task.owns_key = false;
  task.done(std::move(reply));
}

}  // namespace blockd::server
