#include "server/core/operations/inverse.h"

#include <algorithm>
#include <memory>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "server/core/common/checks.h"
#include "server/core/operations/border_costs.h"
#include "server/core/operations/factor_outcome.h"

namespace blockd::server {
namespace {

// More samples at once are no faster.
constexpr int64_t kMostColumns = 256;
// A factorization has 6.33 n^3 flops a block with fill and 2.33 n^3 without, an inverse 12.3 n^3
// and 4.33 n^3.
constexpr double kInverseOverFactor = 1.9;

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
    absl::StatusOr<Reservation> device = shard_->device().Reserve(
        task->permit.tenant, std::accumulate(pieces.begin(), pieces.end(), int64_t{0}));
    status = device.status();
    if (device.ok()) task->permit.device = *std::move(device);
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

std::vector<int64_t> InverseOperation::Pieces(const InverseTask& task) const {
  Solver& solver = shard_->solver();
  const EliminationPlan& plan = task.pin->plan();
  const int64_t p = task.pin->border().rows();
  if (task.samples) {
    std::vector<int64_t> pieces =
        solver.SolvePieces(plan, std::min(task.sample.num_samples, kMostColumns), false, p);
    for (int64_t& bytes : pieces) bytes = MemoryPool::Rounded(bytes);
    return pieces;
  }
  const SelectedInverseParams& params = task.inverse;
  const int64_t scratch = MemoryPool::Rounded(
      solver.backend().InverseScratchBytes(plan, params.first_block, params.num_blocks));
  const auto bytes = [&](int64_t border_rows) {
    return solver.InverseWorkspaceBytes(plan, params.parts, params.first_block, params.num_blocks,
                                        border_rows);
  };
  std::vector<int64_t> pieces = {bytes(0) - scratch, scratch};
  if (task.pin->substitutes()) pieces.push_back(MemoryPool::Rounded(plan.factor_bytes()));
  if (p > 0) pieces.push_back(bytes(p) - bytes(0));
  return pieces;
}

double InverseOperation::PredictedSeconds(const InverseTask& task) const {
  const EliminationPlan& plan = task.pin->plan();
  const CostModel costs = shard_->solver().backend().costs(plan.shape());
  if (task.samples) return PredictedSolveSeconds(plan, task.sample.num_samples, costs) / 2;
  return kInverseOverFactor * PredictedFactorSeconds(plan, costs) +
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
  const auto run = [&] { return task.samples ? Sample(task) : Invert(task, &ran.phases); };
  absl::Status status = run();
  if (absl::IsResourceExhausted(status)) {
    // There is room, as was reserved, but in pieces.
    const std::vector<int64_t> pieces = Pieces(task);
    shard_->Defragment(pieces);
    status = SayInPieces(*shard_, run(), pieces);
  }
  const EliminationPlan& plan = task.pin->plan();
  shard_->metrics().RecordBatch(WorkKind::kInverse, 1, ran.items,
                                task.samples ? plan.solve_flops(task.sample.num_samples) / 2
                                             : kInverseOverFactor * plan.factor_flops());
  return status;
}

absl::Status InverseOperation::Invert(InverseTask& task, Phases* phases) {
  const SelectedInverseParams& params = task.inverse;
  const InverseItem item{.factorization = task.pin.factorization(),
                         .parts = params.parts,
                         .first_block = params.first_block,
                         .num_blocks = params.num_blocks,
                         .cancelled = &task.context->cancelled};
  const auto place = [](std::span<std::byte> wanted) {
    return wanted.empty() ? nullptr : wanted.data();
  };
  const InverseOutput output{place(params.diagonal), place(params.coupling), place(params.border),
                             place(params.corner)};
  return shard_->solver().SelectedInverse(item, output, Track::kFactor, phases);
}

absl::Status InverseOperation::Sample(InverseTask& task) {
  const SampleParams& params = task.sample;
  const int64_t column = task.pin->rows() * ScalarBytes(task.pin->shape().scalar);
  SampleItem item{.factorization = task.pin.factorization(),
                  .seed = params.seed,
                  .cancelled = &task.context->cancelled};
  for (int64_t done = 0; done < params.num_samples; done += item.num_samples) {
    item.first_sample = params.first_sample + static_cast<uint64_t>(done);
    item.num_samples = std::min(params.num_samples - done, kMostColumns);
    absl::Status status =
        shard_->solver().Sample(item, params.samples.data() + done * column, Track::kFactor);
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
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
