#include "blockd/engine/solver.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/solver/condition.h"
#include "engine/solver/factor_work.h"
#include "engine/solver/information.h"
#include "engine/solver/not_positive_definite.h"
#include "engine/solver/stopwatch.h"

namespace blockd {
namespace {

int64_t ChainBytes(const EliminationPlan& plan) {
  return plan.chain_scalars() * ScalarBytes(plan.shape().scalar);
}

const MatrixForm& FormOf(const FactorItem& item) {
  return item.staged ? item.staged->view().form : item.matrix.form;
}

bool MayKeepMatrix(const FactorItem& item) {
  return item.keep_matrix || item.accuracy == Accuracy::kGuaranteed;
}

// The parts of a host matrix, and where in its staged memory, from `base` on, they go.
void AddCopies(const BlockTridiagonalView& host, std::byte* base, std::vector<HostCopy>* copies) {
  const MatrixForm& form = host.form;
  const auto add = [&](int64_t offset, const void* part, int64_t bytes) {
    if (bytes > 0) copies->push_back({base + offset, part, bytes});
  };
  const auto index_bytes = [](const uint32_t* index, int64_t entries) {
    return index != nullptr ? entries * int64_t{sizeof(uint32_t)} : 0;
  };
  add(0, host.diagonal, form.diagonal_bytes());
  add(StagedMatrix::Offset(form, MatrixPart::kCoupling), host.coupling, form.coupling_bytes());
  add(StagedMatrix::DiagonalIndexOffset(form), host.diagonal_index,
      index_bytes(host.diagonal_index, form.shape.num_blocks));
  add(StagedMatrix::CouplingIndexOffset(form), host.coupling_index,
      index_bytes(host.coupling_index, form.shape.num_blocks - 1));
  for (const MatrixPart part : {MatrixPart::kBorder, MatrixPart::kCorner}) {
    add(StagedMatrix::Offset(form, part), host.part(part), form.bytes(part));
  }
}

absl::Status CheckRange(const StagedMatrix& staged, int64_t offset, int64_t size) {
  if (offset >= 0 && size <= staged.bytes() && offset <= staged.bytes() - size) {
    return absl::OkStatus();
  }
  return absl::OutOfRangeError(absl::StrCat("bytes ", offset, " to ", offset, "+", size,
                                            " of a staged matrix of ", staged.bytes()));
}

absl::Status CheckInformation(const FactorItem& item, const MatrixForm& form) {
  if (item.information == nullptr) return absl::OkStatus();
  if (!(form == item.information->matrix())) {
    return absl::InvalidArgumentError("what is made of an information form has its form");
  }
  return CheckInformation(*item.information);
}

absl::Status CheckBorder(const FactorItem& item, const MatrixForm& form) {
  if (form.border_rows == 0 || (!MayKeepMatrix(item) && !item.estimate_condition)) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      "with a border no matrix is kept, no accuracy guaranteed and no condition estimated");
}

absl::Status NotSpdStatus(const NotPositiveDefinite& where) {
  return absl::InvalidArgumentError(absl::StrCat(
      "the matrix is not positive definite: ",
      where.natural_order ? "leading minor of order " : "by rounding, the pivot of order ",
      where.minor, " (block ", where.block, ", row ", where.row, ")"));
}

}  // namespace

Solver::Solver(std::unique_ptr<Backend> backend) : backend_(std::move(backend)) {}

absl::StatusOr<std::shared_ptr<const EliminationPlan>> Solver::Plan(const Shape& shape,
                                                                    int64_t batch) {
  if (batch > 0) {
    batch = static_cast<int64_t>(
        std::bit_ceil(static_cast<uint64_t>(std::min(batch, kMostPlannedBatch))));
  }
  absl::MutexLock lock(&plans_mutex_);
  const auto found = plans_.find({shape, batch});
  if (found != plans_.end()) return found->second;
  absl::StatusOr<EliminationPlan> plan =
      EliminationPlan::Make(shape, batch, backend_->costs(shape));
  if (!plan.ok()) return plan.status();
  // Shapes come from callers: forget them all before they become a leak.
  const int64_t bytes = plan->host_bytes();
  if (plans_.size() >= kMaxCachedPlans || plans_bytes_ + bytes > kMaxCachedPlansBytes) {
    plans_.clear();
    plans_bytes_ = 0;
  }
  plans_bytes_ += bytes;
  auto shared = std::make_shared<const EliminationPlan>(*std::move(plan));
  plans_[{shape, batch}] = shared;
  return shared;
}

int64_t Solver::FactorWorkspaceBytes(const EliminationPlan& plan, const MatrixForm& form,
                                     int64_t systems, bool matrices,
                                     bool estimate_condition) const {
  const int64_t chain = MemoryPool::Rounded(ChainBytes(plan));
  const int64_t upload =
      backend_->reads_host_memory() || matrices ? 0 : StagedMatrix::BufferBytes(form);
  return systems * (chain + upload) +
         MemoryPool::Rounded(backend_->FactorScratchBytes(plan, systems)) +
         BorderWorkspaceBytes(plan, form.border_rows) +
         (estimate_condition ? ConditionWorkspaceBytes(plan) : 0);
}

int64_t Solver::InformationBytes(const InformationForm& information) const {
  const int64_t matrix =
      backend_->reads_host_memory() ? StagedMatrix::BufferBytes(information.matrix()) : 0;
  return matrix + MemoryPool::Rounded(InformationWorkspace(information).bytes());
}

int64_t Solver::SolveWorkspaceBytes(const EliminationPlan& plan, int64_t num_rhs, bool residual,
                                    int64_t border_rows) const {
  int64_t bytes = 0;
  for (const int64_t piece : SolvePieces(plan, num_rhs, residual, border_rows)) {
    bytes += MemoryPool::Rounded(piece);
  }
  return bytes;
}

bool Solver::ReadsMatrix(const FactorItem& item) const {
  return backend_->reads_host_memory() && item.information == nullptr;
}

bool Solver::TakesMatrix(const FactorItem& item) const {
  return item.staged == nullptr && (!ReadsMatrix(item) || MayKeepMatrix(item));
}

std::vector<int64_t> Solver::FactorPieces(const EliminationPlan& plan,
                                          const FactorItem& item) const {
  std::vector<int64_t> pieces = {plan.factor_bytes(), ChainBytes(plan)};
  if (TakesMatrix(item)) pieces.push_back(StagedMatrix::BufferBytes(item.matrix.form));
  if (item.information) pieces.push_back(InformationWorkspace(*item.information).bytes());
  pieces.push_back(backend_->FactorScratchBytes(plan, 1));
  if (const int64_t p = FormOf(item).border_rows; p > 0) {
    pieces.push_back(Border::Bytes(plan.shape(), p));
    pieces.push_back(BorderWorkspaceBytes(plan, p));
  }
  return pieces;
}

std::vector<int64_t> Solver::SolvePieces(const EliminationPlan& plan, int64_t num_rhs,
                                         bool residual, int64_t border_rows) const {
  const int64_t scalar = ScalarBytes(plan.shape().scalar);
  std::vector<int64_t> pieces(residual ? kRefinementVectors : 1,
                              plan.shape().rows() * num_rhs * scalar);
  pieces.insert(pieces.begin(), plan.solve_chain_scalars(num_rhs) * scalar);
  if (border_rows > 0) pieces.push_back(border_rows * num_rhs * int64_t{sizeof(double)});
  return pieces;
}

absl::StatusOr<StagedMatrix> Solver::Stage(const MatrixForm& form) {
  absl::Status status = CheckForm(form);
  if (!status.ok()) return status;
  absl::StatusOr<DeviceBuffer> buffer = backend_->pool().Allocate(StagedMatrix::BufferBytes(form));
  if (!buffer.ok()) return buffer.status();
  return StagedMatrix(form, *std::move(buffer));
}

absl::Status Solver::Write(StagedMatrix& staged, int64_t offset, std::span<const std::byte> bytes) {
  return Write(staged, offset, {&bytes, 1});
}

absl::Status Solver::Write(StagedMatrix& staged, int64_t offset,
                           std::span<const Backend::HostPiece> pieces) {
  int64_t size = 0;
  for (const Backend::HostPiece piece : pieces) size += std::ssize(piece);
  absl::Status status = CheckRange(staged, offset, size);
  if (!status.ok()) return status;
  return backend_->Write(staged.data() + offset, pieces);
}

absl::Status Solver::Read(const StagedMatrix& staged, int64_t offset, std::span<std::byte> bytes) {
  const int64_t size = static_cast<int64_t>(bytes.size());
  absl::Status status = CheckRange(staged, offset, size);
  if (!status.ok()) return status;
  status = AwaitWrites();
  if (!status.ok()) return status;
  constexpr Track kTrack = Track::kSolve;
  absl::MutexLock lock(&TrackMutex(kTrack));
  status = backend_->Download(kTrack, bytes.data(), staged.data() + offset, size);
  return status.ok() ? backend_->Synchronize(kTrack) : status;
}

// -----------------------------------------------------------------------------------------------------
// Factor

// The memory that systems of a batch need until it is over, in one piece: first all chains, then
// all matrices that nobody keeps. So a batch asks the pool once, and uploads and clears one range.
struct Solver::BatchMemory {
  DeviceBuffer buffer;  // empty: each system has pieces of its own
  std::byte* chains = nullptr;
  std::byte* matrices = nullptr;

  static std::byte* Take(std::byte*& next, int64_t bytes) {
    return std::exchange(next, next + MemoryPool::Rounded(bytes));
  }
};

bool Solver::SharesChains(const FactorItem& item) {
  return !item.estimate_condition;  // which needs their memory before the batch is over
}

bool Solver::SharesMatrix(const FactorItem& item) const {
  return SharesChains(item) && TakesMatrix(item) && !MayKeepMatrix(item);
}

Solver::BatchMemory Solver::TakeBatchMemory(const EliminationPlan& plan,
                                            std::span<const FactorWork> works) {
  BatchMemory memory;
  int64_t chains = 0, matrices = 0, systems = 0;
  for (const FactorWork& work : works) {
    if (!SharesChains(*work.item)) continue;
    ++systems;
    chains += MemoryPool::Rounded(ChainBytes(plan));
    if (SharesMatrix(*work.item)) matrices += StagedMatrix::BufferBytes(work.item->matrix.form);
  }
  if (systems < 2) return memory;
  absl::StatusOr<DeviceBuffer> buffer = backend_->pool().Allocate(chains + matrices);
  if (!buffer.ok()) return memory;  // the pool may be in pieces
  memory.buffer = *std::move(buffer);
  memory.chains = memory.buffer.data();
  memory.matrices = memory.chains + chains;
  return memory;
}

absl::Status Solver::Prepare(const EliminationPlan& plan, BatchMemory& memory, FactorWork& work,
                             std::vector<HostCopy>* copies) {
  const FactorItem& item = *work.item;
  if (item.recycle != nullptr && item.recycle->bytes() == plan.factor_bytes()) {
    work.factor = std::move(*item.recycle);
  } else {
    absl::StatusOr<DeviceBuffer> factor = backend_->pool().Allocate(plan.factor_bytes());
    if (!factor.ok()) return factor.status();
    work.factor = *std::move(factor);
  }
  if (memory.buffer && SharesChains(item)) {
    work.chains = memory.Take(memory.chains, ChainBytes(plan));
  } else {
    absl::StatusOr<DeviceBuffer> chains = backend_->pool().Allocate(ChainBytes(plan));
    if (!chains.ok()) return chains.status();
    work.own_chains = *std::move(chains);
    work.chains = work.own_chains.data();
  }
  if (item.staged != nullptr) {
    work.matrix = item.staged->view();
    return AwaitWrites();
  }
  std::byte* base = nullptr;
  if (memory.buffer && SharesMatrix(item)) {
    base = memory.Take(memory.matrices, StagedMatrix::BufferBytes(item.matrix.form));
  } else if (TakesMatrix(item)) {
    absl::StatusOr<StagedMatrix> staged = Stage(item.matrix.form);
    if (!staged.ok()) return staged.status();
    work.uploaded = *std::move(staged);
    base = work.uploaded.data();
  }
  if (ReadsMatrix(item)) {
    work.matrix = item.matrix;
    return absl::OkStatus();
  }
  work.matrix = StagedMatrix::ViewAt(item.matrix.form, base);
  if (item.information == nullptr) {
    AddCopies(item.matrix, base, copies);
    return absl::OkStatus();
  }
  absl::StatusOr<DeviceBuffer> information =
      backend_->pool().Allocate(InformationWorkspace(*item.information).bytes());
  if (!information.ok()) return information.status();
  work.information = *std::move(information);
  return absl::OkStatus();
}

absl::Status Solver::Upload(std::span<const FactorWork> works, std::span<const HostCopy> copies) {
  absl::Status status = backend_->UploadMany(Track::kFactor, copies);
  for (const FactorWork& work : works) {
    if (!status.ok() || work.item->information == nullptr) continue;
    // The view is of memory that this call has taken.
    status = InformationWorkspace(*work.item->information)
                 .Make(*backend_, work.information.data(), const_cast<void*>(work.matrix.diagonal),
                       const_cast<void*>(work.matrix.coupling),
                       [&work] { return !IsCancelled(work.item->cancelled); });
  }
  return status;
}

void Solver::Finish(const std::shared_ptr<const EliminationPlan>& plan, FactorWork& work,
                    const FactorReport& report, const DeviceBuffer& scratch) {
  FactorOutcome& outcome = *work.outcome;
  if (IsCancelled(work.item->cancelled)) {
    outcome.status = absl::CancelledError("cancelled while factoring");
    return;
  }
  if (report.failure) {
    FailedFactorization failed;
    failed.plan = plan.get();
    failed.failure = *report.failure;
    failed.system = {work.matrix, work.factor.data(), work.chains};
    failed.scratch = scratch.data();
    failed.scratch_bytes = scratch.bytes();
    failed.cancelled = work.item->cancelled;
    const absl::StatusOr<NotPositiveDefinite> where = FindFirstBadMinor(*backend_, failed);
    outcome.status = where.ok() ? NotSpdStatus(*where) : where.status();
    if (where.ok()) outcome.not_positive_definite = *where;
    return;
  }
  outcome.status = Keep(plan, work, report);
}

absl::Status Solver::Keep(const std::shared_ptr<const EliminationPlan>& plan, FactorWork& work,
                          const FactorReport& report) {
  const FactorItem& item = *work.item;
  Conditioning conditioning{report.growth, std::nullopt};
  work.substitutes = conditioning.substitutes();
  if (item.estimate_condition) {
    work.own_chains.Reset();  // their memory serves the solves
    absl::StatusOr<double> estimate = EstimateCondition(
        *backend_, *plan, work.matrix,
        {.data = work.factor.data(), .substitutes = work.substitutes}, item.cancelled);
    if (!estimate.ok()) return estimate.status();
    conditioning.condition_estimate = *estimate;
  }
  StagedMatrix matrix;
  if (MayKeepMatrix(item)) {
    matrix = item.staged ? std::move(*item.staged) : std::move(work.uploaded);
  }
  absl::StatusOr<Border> border = FactorBorder(*plan, work);
  if (!border.ok()) return border.status();
  auto factorization = std::make_shared<Factorization>(
      plan, std::move(work.factor), std::move(matrix), conditioning, *std::move(border));
  if (!item.keep_matrix && !factorization->at_risk()) {
    factorization->DropMatrix();
  } else if (MayKeepMatrix(item) && item.staged == nullptr && ReadsMatrix(item)) {
    // Only now is it known to be kept.
    std::vector<HostCopy> copies;
    AddCopies(item.matrix, factorization->matrix().data(), &copies);
    absl::Status status = backend_->UploadMany(Track::kFactor, copies);
    if (!status.ok()) return status;
  }
  work.outcome->factorization = std::move(factorization);
  return absl::OkStatus();
}

std::vector<Solver::FactorWork> Solver::BeginWorks(const EliminationPlan& plan,
                                                   std::span<const FactorItem> items,
                                                   std::vector<FactorOutcome>& outcomes) {
  std::vector<FactorWork> works;
  works.reserve(items.size());
  for (size_t i = 0; i < items.size(); ++i) {
    const MatrixForm& form = FormOf(items[i]);
    absl::Status& status = outcomes[i].status;
    status = CheckForm(form);
    if (status.ok()) status = CheckBorder(items[i], form);
    if (status.ok()) status = CheckInformation(items[i], form);
    if (status.ok() && !(form.shape == plan.shape())) {
      status = absl::InvalidArgumentError(absl::StrCat("a matrix of ", ToString(form.shape),
                                                       " for a plan of ", ToString(plan.shape())));
    }
    if (!status.ok()) continue;
    FactorWork& work = works.emplace_back();
    work.item = &items[i];
    work.outcome = &outcomes[i];
  }
  return works;
}

std::vector<FactorOutcome> Solver::Factor(std::shared_ptr<const EliminationPlan> plan,
                                          std::span<const FactorItem> items, Phases* phases) {
  absl::MutexLock lock(&TrackMutex(Track::kFactor));
  Stopwatch watch;
  Phases spent;
  std::vector<FactorOutcome> outcomes(items.size());
  std::vector<FactorWork> works = BeginWorks(*plan, items, outcomes);
  BatchMemory memory = TakeBatchMemory(*plan, works);
  std::vector<HostCopy> copies;
  for (FactorWork& work : works) {
    work.outcome->status = Prepare(*plan, memory, work, &copies);
    if (!work.outcome->status.ok()) work.GiveBack();
  }
  std::erase_if(works, [](const FactorWork& work) { return !work.outcome->status.ok(); });
  std::vector<FactorSystem> systems;
  for (const FactorWork& work : works) {
    systems.push_back({work.matrix, work.factor.data(), work.chains});
  }
  // Nothing may read or write the memory of this batch any more when it goes back to the pool.
  const auto fail_all = [&](const absl::Status& status) {
    backend_->Synchronize(Track::kFactor).IgnoreError();
    for (FactorWork& work : works) work.outcome->status = status;
  };
  if (const absl::Status status = Upload(works, copies); !status.ok()) {
    fail_all(status);
    return outcomes;
  }
  FactorBatch batch{plan.get(), systems};
  absl::StatusOr<DeviceBuffer> scratch = backend_->pool().Allocate(
      backend_->FactorScratchBytes(*plan, static_cast<int64_t>(systems.size())));
  if (!scratch.ok()) {
    fail_all(scratch.status());
    return outcomes;
  }
  batch.scratch = scratch->data();
  if (works.size() == 1) batch.stop = works[0].item->cancelled;
  spent.upload_seconds = watch.Lap();
  if (!works.empty()) {
    const auto wanted = [&works] {
      return std::any_of(works.begin(), works.end(),
                         [](const FactorWork& work) { return !IsCancelled(work.item->cancelled); });
    };
    absl::StatusOr<std::vector<FactorReport>> reports = backend_->Factor(batch, wanted);
    if (!reports.ok()) {
      fail_all(reports.status());
      return outcomes;
    }
    for (size_t i = 0; i < works.size(); ++i) {
      Finish(plan, works[i], (*reports)[i], *scratch);
    }
  }
  spent.compute_seconds = watch.Lap();
  if (phases) *phases = spent;
  return outcomes;
}

absl::StatusOr<double> Solver::LogDeterminant(const Factorization& factorization) {
  constexpr Track kTrack = Track::kSolve;
  absl::MutexLock lock(&TrackMutex(kTrack));
  absl::StatusOr<double> of_chain =
      backend_->LogDeterminant(kTrack, factorization.plan(), factorization.data());
  if (of_chain.ok()) *of_chain += factorization.border().log_determinant();
  return of_chain;
}

}  // namespace blockd
