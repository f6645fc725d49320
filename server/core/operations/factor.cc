// Factor: admit, queue, run, keep, answer.
#include "server/core/operations/factor.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/core/common/checks.h"
#include "server/core/common/finite_scanner.h"
#include "server/core/operations/border_costs.h"
#include "server/core/operations/factor_outcome.h"
#include "server/core/operations/refactor.h"
#include "server/core/operations/steps.h"

namespace blockd::server {
namespace {

// Fills in a reply's description of a factorization, but for its handle.
void Describe(const Factorization& factorization, FactoredSystem& system) {
  system.conditioning = factorization.conditioning();
  system.backward_error_bound = factorization.backward_error_bound();
  system.matrix_kept = static_cast<bool>(factorization.matrix());
}

}  // namespace

struct FactorOperation::FactorRun {
  Overwritten old;
  FactorOutcome outcome;
};

void FactorOperation::Start(ContextPtr context, const FactorParams& params,
                            std::vector<BlockTridiagonalView> matrices, FactorDone done) {
  absl::StatusOr<Permit> permit = admission_->Admit(*context);
  if (!permit.ok()) return done(permit.status());
  auto task = std::make_unique<FactorTask>(this, std::move(context), *std::move(permit),
                                           admission_->Now(), params, std::move(done));
  task->params.num_systems = static_cast<int64_t>(matrices.size());
  task->matrices = std::move(matrices);
  absl::Status status = CheckFactor(task->params, admission_->limits());
  if (status.ok()) status = CheckMatrices(task->matrices, params.form);
  // The request fails with the first matrix that holds NaN or infinity.
  const size_t looked_at = params.check_finite ? task->matrices.size() : 0;
  for (size_t i = 0; i < looked_at && status.ok(); ++i) {
    status = CheckFiniteMatrix(task->matrices[i], static_cast<int64_t>(i),
                               [&] { return task->context->CheckOngoing(admission_->Now()); });
  }
  if (!status.ok()) return Fail(std::move(task), status);
  Submit(std::move(task));
}

void FactorOperation::Submit(FactorTaskPtr task) {
  // The first look does not own the key. The second owns it, so that no other request inserts it,
  // and finds what was inserted in between.
  for (const bool owns : {false, true}) {
    if (task->params.idempotency_key.empty()) break;
    if (owns && !OwnKeyOrWait(task)) return;
    absl::StatusOr<std::optional<FactorReply>> found = FindKey(*task->context, task->params);
    if (!found.ok()) return Fail(std::move(task), found.status());
    if (!found->has_value()) continue;
    (*found)->cost.queue = admission_->Now() - task->accepted;
    return Answer(*task, **std::move(found));
  }
  if (task->plan == nullptr) {  // else an upload, which has all it needs
    absl::Status status = Admit(*task, /*staged=*/false, [](FactorTask& task, int64_t bytes) {
      return task.shard->device().Extend(task.permit.tenant, bytes, &task.permit.device);
    });
    if (!status.ok()) return Fail(std::move(task), status);
  }
  Shard& shard = *task->shard;
  const CostModel costs = shard.solver().backend().costs(task->plan->shape());
  const int64_t systems = task->params.num_systems;
  Ticket ticket;
  ticket.key = {WorkKind::kFactor, task->plan};
  const auto predicted = [&](int64_t count) {
    return PredictedFactorSeconds(*task->plan, costs, count) +
           PredictedBorderSeconds(*task->plan, task->params.form.border_rows, costs, count);
  };
  ticket.seconds = predicted(systems);
  ticket.marginal_seconds = predicted(2 * systems) - ticket.seconds;
  ticket.bytes = systems * task->params.form.bytes();
  task->set_ticket(std::move(ticket));
  shard.Submit(std::move(task));
}

void FactorOperation::Fail(TaskPtr task, const absl::Status& status) {
  Answer(static_cast<FactorTask&>(*task), status);
}

absl::Status FactorOperation::PinRefactored(FactorTask& task) {
  const FactorParams& params = task.params;
  for (size_t i = 0; i < params.handles.size(); ++i) {
    absl::StatusOr<FactorizationPin> pin =
        shards_->Of(params.handles[i])
            .cache()
            .Lookup<FactorizationPin>(task.context->caller, params.handles[i]);
    if (!pin.ok()) return pin.status();
    if (&shards_->Of(params.handles[i]) != &shards_->Of(params.handles[0])) {
      return InvalidFieldError("options.handle", "handles of several devices",
                               "handles of one device, as one Factor makes them");
    }
    absl::Status status = CheckRefactored(**pin, params.form.bordered_shape(),
                                          absl::StrCat("options.handle[", i, "]"));
    if (!status.ok()) return status;
    task.pins.push_back(*std::move(pin));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<Shard*>> FactorOperation::Candidates(FactorTask& task, bool staged) {
  const FactorParams& params = task.params;
  if (!params.handles.empty()) {
    Shard& holder = shards_->Of(params.handles[0]);
    const absl::Status status = holder.PlanFor(params.form, params.num_systems).status();
    if (!status.ok()) return status;
    return std::vector<Shard*>{&holder};
  }
  return shards_->Order([&](Shard& shard, Offer& offer) {
    auto plan = shard.PlanFor(params.form, params.num_systems);
    if (!plan.ok() || shards_->size() == 1) return plan.status();
    task.shard = &shard;
    task.plan = *std::move(plan);
    offer.asked_bytes = DeviceBytes(task, staged);
    offer.work_seconds = PredictedFactorSeconds(
        *task.plan, shard.solver().backend().costs(params.form.shape), params.num_systems);
    return absl::OkStatus();
  });
}

absl::Status FactorOperation::Admit(FactorTask& task, bool staged, Take take) {
  const FactorParams& params = task.params;
  absl::Status status = PinRefactored(task);
  if (!status.ok()) return status;
  const absl::StatusOr<std::vector<Shard*>> candidates = Candidates(task, staged);
  if (!candidates.ok()) return candidates.status();
  status = admission_->TakeUpload(task.permit, params.num_systems * params.form.bytes());
  if (!status.ok()) return status;
  if (task.pins.empty()) {
    status =
        admission_->handles().Extend(task.permit.tenant, params.num_systems, &task.permit.handles);
    if (!status.ok()) return status;
  }
  return FirstWithRoom(*candidates,
                       [&](Shard& shard) { return AdmitOn(shard, task, staged, take); });
}

absl::Status FactorOperation::AdmitOn(Shard& shard, FactorTask& task, bool staged, Take take) {
  const FactorParams& params = task.params;
  auto plan = shard.PlanFor(params.form, params.num_systems);
  if (!plan.ok()) return plan.status();
  task.shard = &shard;
  task.plan = *std::move(plan);
  absl::Status status =
      shard.pinned().Extend(task.permit.tenant, PinnedBytes(task), &task.permit.pinned);
  if (!status.ok()) return status;
  status = take(task, DeviceBytes(task, staged));
  if (!status.ok()) task.permit.pinned.Reset();
  return status;
}

int64_t FactorOperation::PinnedBytes(const FactorTask& task) const {
  const FactorParams& params = task.params;
  if (task.pins.empty()) {
    if (!params.pin && admission_->limits().Lease(params.lease) <= absl::ZeroDuration()) return 0;
    const int64_t kept = params.may_keep_matrix() ? Shard::MatrixCharge(params.form) : 0;
    return params.num_systems * (Shard::FactorCharge(*task.plan, params.form.border_rows) + kept);
  }
  int64_t bytes = 0;
  for (const FactorizationPin& old : task.pins) {
    bytes += PinnedBeyond(*task.shard, old, *task.plan, params.form, params.must_pin_matrix(),
                          params.pin || params.lease > absl::ZeroDuration());
  }
  return bytes;
}

// An overwritten factor's own memory serves the new one: only what that lacks is asked for.
int64_t FactorOperation::DeviceBytes(FactorTask& task, bool staged) {
  const FactorParams& params = task.params;
  const int64_t charge = Shard::FactorCharge(*task.plan, params.form.border_rows);
  const bool matrices = staged || params.may_keep_matrix();
  int64_t bytes = task.shard->solver().FactorWorkspaceBytes(
      *task.plan, params.form, params.num_systems, matrices, params.condition_estimate);
  task.factor_reserved.clear();
  for (int64_t i = 0; i < params.num_systems; ++i) {
    task.factor_reserved.push_back(
        params.overwrite && !task.pins.empty() ? BytesBeyond(task.pins[i], *task.plan) : charge);
    bytes += task.factor_reserved.back() + (matrices ? Shard::MatrixCharge(params.form) : 0);
  }
  return bytes;
}

void FactorOperation::PrepareOverwrite(FactorTask& task, int64_t system, FactorRun& run) {
  const auto i = static_cast<size_t>(system);
  absl::StatusOr<Overwritten> overwritten =
      BeginOverwrite(*task.shard, task.pins[i], *task.plan, task.factor_reserved[i], task.permit);
  run.outcome.status = overwritten.status();
  if (overwritten.ok()) run.old = *std::move(overwritten);
}

Operation::Completion FactorOperation::Run(const std::vector<TaskPtr>& batch) {
  const std::vector<FactorTask*> tasks = TasksOf<FactorTask>(batch);
  Shard& shard = *tasks[0]->shard;
  if (absl::Status status = shard.CheckInService(); !status.ok()) {
    for (FactorTask* const task : tasks) Answer(*task, status);
    return nullptr;
  }
  RanBatch ran;
  ran.started = shard.Now();
  shard.BeginWork();
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
      item.recycle = run.old.recycled ? &run.old.recycled : nullptr;
      item.cancelled = &task->context->cancelled;
      items.push_back(item);
      run_of_item.push_back(&run);
    }
  }
  std::vector<FactorOutcome> outcomes = FactorWithRetry(shard, tasks[0]->plan, items, &ran.phases);
  for (size_t i = 0; i < outcomes.size(); ++i) run_of_item[i]->outcome = std::move(outcomes[i]);
  double flops = 0;
  for (const FactorItem& item : items) {
    const MatrixForm& form = item.staged ? item.staged->view().form : item.matrix.form;
    flops += FactorFlops(*tasks[0]->plan, form.border_rows);
  }
  shard.metrics().RecordBatch(WorkKind::kFactor, ran.requests, ran.items, flops);
  shard.EndWork();
  next = 0;
  for (FactorTask* task : tasks) {
    const size_t systems = static_cast<size_t>(task->params.num_systems);
    absl::StatusOr<FactorReply> reply = Keep(*task, std::span(runs).subspan(next, systems));
    if (reply.ok()) reply->cost = shard.MakeCost(*task, ran, task->received);
    Answer(*task, std::move(reply));
    next += systems;
  }
  return nullptr;
}

absl::StatusOr<FactorReply> FactorOperation::Keep(FactorTask& task, std::span<FactorRun> runs) {
  const auto cancelled = [](const FactorRun& run) { return absl::IsCancelled(run.outcome.status); };
  // Nobody would learn the handles of those that were factored before.
  if (task.params.handles.empty() && std::any_of(runs.begin(), runs.end(), cancelled)) {
    for (FactorRun& run : runs) run = {};  // before what they were promised is given back
    return task.EndStatus(admission_->Now());
  }
  Shard& shard = *task.shard;
  FactorReply reply;
  reply.systems.resize(runs.size());
  reply.factor_bytes = task.plan->factor_bytes() +
                       Border::Bytes(task.params.form.shape, task.params.form.border_rows);
  // A later request that finds the key is told the log-determinant without asking the device.
  const bool log_determinant = task.params.log_determinant || !task.params.idempotency_key.empty();
  std::vector<KeptObjectPtr> made;
  for (size_t i = 0; i < runs.size(); ++i) {
    FactorRun& run = runs[i];
    FactoredSystem& system = reply.systems[i];
    const MatrixSource matrix = task.staged.empty() ? MatrixSource{.host = task.matrices[i]}
                                                    : MatrixSource{.staged = &task.staged[i]};
    system.status = OutcomeStatus(shard, task, matrix, static_cast<int64_t>(i), run.outcome);
    std::shared_ptr<Factorization> factorization = std::move(run.outcome.factorization);
    if (system.status.ok() && log_determinant) {
      absl::StatusOr<double> value = shard.solver().LogDeterminant(*factorization);
      system.status = value.status();
      if (value.ok()) system.log_determinant = *value;
      shard.Note(system.status);
    }
    if (!system.status.ok()) {
      if (run.old.begun) shard.cache().FailOverwrite(task.params.handles[i]);
      continue;
    }
    reply.factor_bytes = std::max(reply.factor_bytes, factorization->bytes());
    Describe(*factorization, system);
    const int64_t charge = Shard::FactorCharge(*task.plan, task.params.form.border_rows) +
                           (factorization->matrix() ? Shard::MatrixCharge(task.params.form) : 0);
    auto kept = std::make_shared<KeptFactorization>(task.permit.device.Split(charge),
                                                    std::move(factorization));
    if (task.params.handles.empty()) {
      made.push_back(std::move(kept));
      continue;
    }
    system.handle = task.params.handles[i];
    system.status = shard.cache().Replace(task.context->caller, system.handle, std::move(kept),
                                          {.lease = task.params.lease, .pin = task.params.pin},
                                          task.permit.tenant, &task.permit.pinned);
  }
  if (!made.empty()) KeepNew(task, std::move(made), reply);
  if (!task.params.log_determinant) {
    for (FactoredSystem& system : reply.systems) system.log_determinant.reset();
  }
  if (reply.systems.size() == 1 && !reply.systems[0].status.ok()) return reply.systems[0].status;
  return reply;
}

void FactorOperation::KeepNew(FactorTask& task, std::vector<KeptObjectPtr> made,
                              FactorReply& reply) {
  Cache::EntryOptions options;
  options.lease = admission_->limits().Lease(task.params.lease);
  options.pin = task.params.pin;
  if (!task.params.idempotency_key.empty()) KeepKey(task.params, reply, options);
  Cache::EntryGrants grants{std::move(task.permit.handles), std::move(task.permit.pinned)};
  const std::vector<Handle> handles =
      task.shard->cache().Insert(task.context->caller, std::move(made), options, std::move(grants));
  size_t next = 0;
  for (FactoredSystem& system : reply.systems) {
    if (system.status.ok()) system.handle = handles[next++];
  }
}

void FactorOperation::Answer(FactorTask& task, absl::StatusOr<FactorReply> reply) {
  // Gives everything back before the caller learns of the answer.
  task.pins.clear();
  task.staged.clear();
  task.permit.GiveBack();
  if (task.owns_key) ReleaseKey(task, reply);
  task.owns_key = false;
  task.done(std::move(reply));
}

}  // namespace blockd::server
