#include "server/core/operations/inverse.h"

#include <algorithm>
#include <memory>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "server/core/common/checks.h"
#include "server/core/operations/border_costs.h"
#include "server/core/operations/steps.h"

namespace blockd::server {
namespace {

absl::Status CheckBytes(const char* field, int64_t came, int64_t expected) {
  if (came == expected) return absl::OkStatus();
  return InvalidFieldError(field, absl::StrCat(came, " bytes"), absl::StrCat(expected, " bytes"));
}

}  // namespace

absl::Status SelectedInverseParams::Resolve(const Shape& shape) {
  if (first_block < 0 || first_block >= shape.num_blocks) {
    return InvalidFieldError("first_block", absl::StrCat(first_block),
                             absl::StrCat("0 to ", shape.num_blocks - 1));
  }
  const int64_t rest = shape.num_blocks - first_block;
  if (num_blocks < 0 || num_blocks > rest) {
    return InvalidFieldError("num_blocks", absl::StrCat(num_blocks), absl::StrCat("0 to ", rest));
  }
  if (num_blocks == 0) num_blocks = rest;
  return absl::OkStatus();
}

// -----------------------------------------------------------------------------------------------------
// Until it is queued

void InverseOperation::StartInverse(ContextPtr context, const SelectedInverseParams& params,
                                    CostDone done) {
  Start(std::move(context), Method::kSelectedInverse, params.handle, std::move(done),
        [&](InverseTask& task) {
          task.inverse = params;
          return PrepareInverse(task);
        });
}

void InverseOperation::StartSample(ContextPtr context, const SampleParams& params, CostDone done) {
  Start(std::move(context), Method::kSample, params.handle, std::move(done),
        [&](InverseTask& task) {
          task.samples = true;
          task.sample = params;
          return PrepareSample(task);
        });
}

void InverseOperation::Start(ContextPtr context, Method method, const Handle& handle, CostDone done,
                             absl::FunctionRef<absl::Status(InverseTask&)> prepare) {
  absl::StatusOr<Permit> permit = admission_->Admit(*context);
  if (!permit.ok()) return done(permit.status());
  auto task = std::make_unique<InverseTask>(this, method, std::move(context), *std::move(permit),
                                            shard_->Now(), std::move(done));
  absl::StatusOr<FactorizationPin> pin =
      shard_->cache().Lookup<FactorizationPin>(task->context->caller, handle);
  absl::Status status = pin.status();
  if (status.ok()) {
    task->pin = *std::move(pin);
    status = prepare(*task);
  }
  if (status.ok()) {
    const std::vector<int64_t> pieces = Pieces(*task);
    status = shard_->device().Extend(task->permit.tenant,
                                     std::accumulate(pieces.begin(), pieces.end(), int64_t{0}),
                                     &task->permit.device);
  }
  if (!status.ok()) return Fail(std::move(task), status);
  Ticket ticket;
  ticket.key = {WorkKind::kInverse, task->pin->shared_plan()};
  ticket.seconds = ticket.marginal_seconds = PredictedSeconds(*task);
  ticket.items = shard_->limits().max_batch_rhs;  // it runs alone
  task->set_ticket(std::move(ticket));
  shard_->Submit(std::move(task));
}

absl::Status InverseOperation::PrepareInverse(InverseTask& task) const {
  SelectedInverseParams& params = task.inverse;
  const Shape& shape = task.pin->shape();
  absl::Status status = params.Resolve(shape);
  if (!status.ok()) return status;
  status = CheckBytes("diagonal", std::ssize(params.diagonal),
                      InverseDiagonalBytes(shape, params.parts, params.num_blocks));
  status.Update(CheckBytes("coupling", std::ssize(params.coupling),
                           InverseCouplingBytes(shape, params.parts, params.num_blocks)));
  const int64_t p = task.pin->border().rows(), scalar = ScalarBytes(shape.scalar);
  if (!params.border.empty()) {
    status.Update(CheckBytes("border", std::ssize(params.border),
                             params.num_blocks * shape.block_size * p * scalar));
  }
  if (!params.corner.empty()) {
    status.Update(CheckBytes("corner", std::ssize(params.corner), p * p * scalar));
  }
  return status;
}

absl::Status InverseOperation::PrepareSample(InverseTask& task) const {
  const SampleParams& params = task.sample;
  const Shape& shape = task.pin->shape();
  if (params.num_samples < 1 || params.num_samples > shard_->limits().max_rhs) {
    return InvalidFieldError("num_samples", absl::StrCat(params.num_samples),
                             absl::StrCat("1 to ", shard_->limits().max_rhs));
  }
  const int64_t column = task.pin->rows() * ScalarBytes(shape.scalar);
  const absl::StatusOr<int64_t> expected = CheckedProduct(column, params.num_samples);
  if (!expected.ok()) return expected.status();
  return CheckBytes("samples", std::ssize(params.samples), *expected);
}

InverseItem InverseOperation::ItemOf(const InverseTask& task) {
  return {.factorization = task.pin.factorization(),
          .parts = task.inverse.parts,
          .first_block = task.inverse.first_block,
          .num_blocks = task.inverse.num_blocks,
          .cancelled = &task.context->cancelled};
}

std::vector<int64_t> InverseOperation::Pieces(const InverseTask& task) const {
  if (!task.samples) return InversePieces(*shard_, ItemOf(task));
  return SamplePieces(*shard_, task.pin->plan(), task.sample.num_samples,
                      task.pin->border().rows());
}

double InverseOperation::PredictedSeconds(const InverseTask& task) const {
  const EliminationPlan& plan = task.pin->plan();
  const CostModel costs = shard_->solver().backend().costs(plan.shape());
  if (task.samples) return PredictedSampleSeconds(plan, costs, task.sample.num_samples);
  return PredictedInverseSeconds(plan, costs) +
         PredictedBorderSeconds(plan, task.pin->border().rows(), costs, 1);
}

// -----------------------------------------------------------------------------------------------------
// On the device

Operation::Completion InverseOperation::Run(const std::vector<TaskPtr>& batch) {
  for (InverseTask* const task : TasksOf<InverseTask>(batch)) {
    if (!shard_->in_service()) {
      const Handle& handle = task->samples ? task->sample.handle : task->inverse.handle;
      Answer(*task, shard_->cache().Get(task->context->caller, handle).status(), Cost());
      continue;
    }
    RanBatch ran;
    ran.started = shard_->Now();
    ran.requests = 1;
    ran.items = task->samples ? task->sample.num_samples : task->inverse.num_blocks;
    shard_->BeginWork();
    absl::Status status = Compute(*task, ran);
    shard_->EndWork();
    Answer(*task, std::move(status), shard_->MakeCost(*task, ran));
  }
  return nullptr;
}

absl::Status InverseOperation::Compute(InverseTask& task, RanBatch& ran) {
  absl::Status status = task.samples ? Sample(task) : Invert(task, &ran.phases);
  const EliminationPlan& plan = task.pin->plan();
  shard_->metrics().RecordBatch(
      WorkKind::kInverse, 1, ran.items,
      task.samples ? SampleFlops(plan, task.sample.num_samples) : InverseFlops(plan));
  return status;
}

absl::Status InverseOperation::Invert(InverseTask& task, Phases* phases) {
  const SelectedInverseParams& params = task.inverse;
  const auto place = [](std::span<std::byte> wanted) {
    return wanted.empty() ? nullptr : wanted.data();
  };
  const InverseOutput output{place(params.diagonal), place(params.coupling), place(params.border),
                             place(params.corner)};
  return InvertWithRetry(*shard_, ItemOf(task), output, phases);
}

absl::Status InverseOperation::Sample(InverseTask& task) {
  const SampleParams& params = task.sample;
  return SampleWithRetry(*shard_,
                         {.factorization = task.pin.factorization(),
                          .seed = params.seed,
                          .first_sample = params.first_sample,
                          .num_samples = params.num_samples,
                          .cancelled = &task.context->cancelled},
                         params.samples);
}

// -----------------------------------------------------------------------------------------------------
// The end

void InverseOperation::Fail(TaskPtr task, const absl::Status& status) {
  Answer(static_cast<InverseTask&>(*task), status, Cost());
}

void InverseOperation::Answer(InverseTask& task, absl::Status status, const Cost& cost) {
  shard_->Note(status);
  if (absl::IsCancelled(status)) status = task.EndStatus(shard_->Now());
  // Gives everything back before the caller learns of the answer.
  task.pin.Reset();
  task.permit.GiveBack();
  if (!status.ok()) return task.done(std::move(status));
  task.done(CostReply{cost});
}

}  // namespace blockd::server
