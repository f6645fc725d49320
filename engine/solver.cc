#include "blockd/engine/solver.h"

#include <algorithm>
#include <bit>
#include <chrono>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"

namespace blockd {
namespace {

class Stopwatch {
 public:
  // Seconds since the last Lap.
  double Lap() {
    const auto now = std::chrono::steady_clock::now();
    return std::chrono::duration<double>(now - std::exchange(last_, now)).count();
  }

 private:
  std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
};

bool IsCancelled(const std::atomic<bool>* flag) {
  return flag != nullptr && flag->load(std::memory_order_relaxed);
}

// Copies a host matrix into its staged memory, part by part.
absl::Status UploadMatrix(Backend& backend, const BlockTridiagonalView& host,
                          const StagedMatrix& staged) {
  const MatrixForm& form = host.form;
  std::byte* base = staged.data();
  absl::Status status = backend.Upload(base, host.diagonal, form.diagonal_bytes());
  if (status.ok() && form.coupling_bytes() > 0) {
    status = backend.Upload(base + StagedMatrix::CouplingOffset(form), host.coupling,
                            form.coupling_bytes());
  }
  if (status.ok() && host.diagonal_index) {
    status = backend.Upload(base + StagedMatrix::DiagonalIndexOffset(form), host.diagonal_index,
                            form.shape.num_blocks * int64_t{sizeof(uint32_t)});
  }
  if (status.ok() && host.coupling_index) {
    status = backend.Upload(base + StagedMatrix::CouplingIndexOffset(form), host.coupling_index,
                            (form.shape.num_blocks - 1) * int64_t{sizeof(uint32_t)});
  }
  return status;
}

absl::Status CheckRange(const StagedMatrix& staged, int64_t offset, int64_t size) {
  if (offset >= 0 && size <= staged.bytes() && offset <= staged.bytes() - size) {
    return absl::OkStatus();
  }
  return absl::OutOfRangeError(absl::StrCat("bytes ", offset, " to ", offset, "+", size,
                                            " of a staged matrix of ", staged.bytes()));
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
                                     int64_t systems, bool matrices) const {
  const int64_t chain = MemoryPool::Rounded(plan.chain_scalars() * ScalarBytes(form.shape.scalar));
  const int64_t upload =
      backend_->reads_host_memory() || matrices ? 0 : StagedMatrix::BufferBytes(form);
  return systems * (chain + upload) +
         MemoryPool::Rounded(backend_->FactorScratchBytes(plan, systems));
}

int64_t Solver::SolveWorkspaceBytes(const EliminationPlan& plan, int64_t num_rhs,
                                    bool residual) const {
  const int64_t scalar = ScalarBytes(plan.shape().scalar);
  const int64_t vectors = MemoryPool::Rounded(plan.shape().rows() * num_rhs * scalar);
  const int64_t chains = MemoryPool::Rounded(plan.solve_chain_scalars(num_rhs) * scalar);
  return chains + vectors * (residual ? 3 : 1);
}

absl::StatusOr<StagedMatrix> Solver::Stage(const MatrixForm& form) {
  absl::Status status = CheckForm(form);
  if (!status.ok()) return status;
  absl::StatusOr<DeviceBuffer> buffer = backend_->pool().Allocate(StagedMatrix::BufferBytes(form));
  if (!buffer.ok()) return buffer.status();
  return StagedMatrix(form, *std::move(buffer));
}

absl::Status Solver::Write(StagedMatrix& staged, int64_t offset, std::span<const std::byte> bytes) {
  const int64_t size = static_cast<int64_t>(bytes.size());
  absl::Status status = CheckRange(staged, offset, size);
  if (!status.ok()) return status;
  return backend_->Upload(staged.data() + offset, bytes.data(), size);
}

absl::Status Solver::Read(const StagedMatrix& staged, int64_t offset, std::span<std::byte> bytes) {
  const int64_t size = static_cast<int64_t>(bytes.size());
  absl::Status status = CheckRange(staged, offset, size);
  if (!status.ok()) return status;
  absl::MutexLock lock(&run_mutex_);
  status = backend_->Download(bytes.data(), staged.data() + offset, size);
  return status.ok() ? backend_->Synchronize() : status;
}

// -----------------------------------------------------------------------------------------------------
// Factor

// One system under way: its item, its memory, its place in the outcomes.
struct Solver::FactorWork {
  const FactorItem* item = nullptr;
  FactorOutcome* outcome = nullptr;
  BlockTridiagonalView matrix;  // as the device sees it
  DeviceBuffer factor;
  DeviceBuffer chains;
  StagedMatrix uploaded;
};

absl::Status Solver::Prepare(const EliminationPlan& plan, FactorWork& work) {
  const FactorItem& item = *work.item;
  if (item.recycle != nullptr && item.recycle->bytes() == plan.factor_bytes()) {
    work.factor = std::move(*item.recycle);
  } else {
    absl::StatusOr<DeviceBuffer> factor = backend_->pool().Allocate(plan.factor_bytes());
    if (!factor.ok()) return factor.status();
    work.factor = *std::move(factor);
  }
  absl::StatusOr<DeviceBuffer> chains =
      backend_->pool().Allocate(plan.chain_scalars() * ScalarBytes(plan.shape().scalar));
  if (!chains.ok()) return chains.status();
  work.chains = *std::move(chains);
  if (item.staged != nullptr) {
    work.matrix = item.staged->view();
    return absl::OkStatus();
  }
  if (backend_->reads_host_memory() && !item.keep_matrix) {
    work.matrix = item.matrix;
    return absl::OkStatus();
  }
  absl::StatusOr<StagedMatrix> staged = Stage(item.matrix.form);
  if (!staged.ok()) return staged.status();
  work.uploaded = *std::move(staged);
  work.matrix = work.uploaded.view();
  return UploadMatrix(*backend_, item.matrix, work.uploaded);
}

// Where the natural order fails or, if it does not, where the plan's order did.
absl::StatusOr<NotPositiveDefinite> Solver::Locate(const FactorWork& work,
                                                   const PivotFailure& failure, void* scratch) {
  absl::StatusOr<std::optional<PivotFailure>> natural =
      backend_->FactorInNaturalOrder(work.matrix, scratch);
  if (!natural.ok()) return natural.status();
  NotPositiveDefinite where;
  where.natural_order = natural->has_value();
  where.block = natural->value_or(failure).block;
  where.row = natural->value_or(failure).row;
  where.minor = where.block * work.matrix.shape().block_size + where.row + 1;
  return where;
}

void Solver::Finish(const std::shared_ptr<const EliminationPlan>& plan, FactorWork& work,
                    const FactorReport& report, void* scratch) {
  FactorOutcome& outcome = *work.outcome;
  if (IsCancelled(work.item->cancelled)) {
    outcome.status = absl::CancelledError("cancelled while factoring");
    return;
  }
  if (report.failure) {
    absl::StatusOr<NotPositiveDefinite> where = Locate(work, *report.failure, scratch);
    outcome.status = where.ok() ? NotSpdStatus(*where) : where.status();
    if (where.ok()) outcome.not_positive_definite = *where;
    return;
  }
  StagedMatrix kept;
  if (work.item->keep_matrix) {
    kept = work.item->staged ? std::move(*work.item->staged) : std::move(work.uploaded);
  }
  outcome.factorization =
      std::make_shared<Factorization>(plan, std::move(work.factor), std::move(kept));
}

std::vector<FactorOutcome> Solver::Factor(std::shared_ptr<const EliminationPlan> plan,
                                          std::span<const FactorItem> items, Phases* phases) {
  absl::MutexLock lock(&run_mutex_);
  Stopwatch watch;
  Phases spent;
  std::vector<FactorOutcome> outcomes(items.size());
  std::vector<FactorWork> works;
  works.reserve(items.size());
  for (size_t i = 0; i < items.size(); ++i) {
    const Shape& shape =
        items[i].staged ? items[i].staged->view().shape() : items[i].matrix.shape();
    if (!(shape == plan->shape())) {
      outcomes[i].status = absl::InvalidArgumentError(absl::StrCat(
          "a matrix of ", ToString(shape), " for a plan of ", ToString(plan->shape())));
      continue;
    }
    FactorWork work;
    work.item = &items[i];
    work.outcome = &outcomes[i];
    outcomes[i].status = Prepare(*plan, work);
    if (outcomes[i].status.ok()) works.push_back(std::move(work));
  }
  std::vector<FactorSystem> systems;
  for (const FactorWork& work : works) {
    systems.push_back({work.matrix, work.factor.data(), work.chains.data()});
  }
  const auto fail_all = [&works](const absl::Status& status) {
    for (FactorWork& work : works) work.outcome->status = status;
  };
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
      // Nothing may read or write the memory of this batch any more when it goes back to the pool.
      backend_->Synchronize().IgnoreError();
      fail_all(reports.status());
      return outcomes;
    }
    for (size_t i = 0; i < works.size(); ++i) {
      Finish(plan, works[i], (*reports)[i], batch.scratch);
    }
  }
  spent.compute_seconds = watch.Lap();
  if (phases) *phases = spent;
  return outcomes;
}

// -----------------------------------------------------------------------------------------------------
// Solve

// The items of one factorization, solved together: their columns stand side by side in x.
struct Solver::Group {
  const Factorization* factorization = nullptr;
  std::vector<size_t> items;
  int64_t columns = 0;
  DeviceBuffer x;    // packed [block][column][n]; empty if the solution's own memory serves
  DeviceBuffer rhs;  // a copy of B, for residuals
  DeviceBuffer r;
  DeviceBuffer chains;
  void* in_place = nullptr;
  absl::Status status;

  void* data() const { return in_place ? in_place : static_cast<void*>(x.data()); }
  SolveSystem System(void* vectors) const {
    return {factorization->data(), vectors, columns, chains.data()};
  }
};

namespace {

bool NeedsResidual(const SolveItem& item) { return item.residual || item.max_refinements > 0; }

absl::Status CheckSolveItem(const SolveItem& item, const EliminationPlan& plan) {
  if (item.factorization->plan() != plan) {
    return absl::InvalidArgumentError("items of one call have equal plans");
  }
  if (item.num_rhs < 1) {
    return absl::InvalidArgumentError(absl::StrCat("num_rhs is ", item.num_rhs, ", expected >= 1"));
  }
  if (NeedsResidual(item) && !item.factorization->matrix()) {
    return absl::FailedPreconditionError(
        "residuals and refinement need a factorization that kept its matrix (keep_matrix)");
  }
  return absl::OkStatus();
}

}  // namespace

std::vector<Solver::Group> Solver::MakeGroups(std::span<const SolveItem> items,
                                              std::vector<SolveOutcome>& outcomes) {
  std::vector<Group> groups;
  absl::flat_hash_map<const Factorization*, size_t> group_of;
  for (size_t i = 0; i < items.size(); ++i) {
    const SolveItem& item = items[i];
    outcomes[i].status = CheckSolveItem(item, items[0].factorization->plan());
    if (!outcomes[i].status.ok()) continue;
    const Factorization* factorization = item.factorization.get();
    const auto known = group_of.find(factorization);
    // An item with a residual keeps its own steps of refinement, so it is solved by itself.
    if (NeedsResidual(item) || known == group_of.end()) {
      if (!NeedsResidual(item)) group_of[factorization] = groups.size();
      groups.emplace_back();
      groups.back().factorization = factorization;
      groups.back().items.push_back(i);
      groups.back().columns = item.num_rhs;
    } else {
      groups[known->second].items.push_back(i);
      groups[known->second].columns += item.num_rhs;
    }
  }
  return groups;
}

absl::Status Solver::Load(std::span<const SolveItem> items, Group& group) {
  const EliminationPlan& plan = group.factorization->plan();
  const Shape& shape = plan.shape();
  const int64_t scalar = ScalarBytes(shape.scalar);
  const int64_t bytes = shape.rows() * group.columns * scalar;
  const bool residual = NeedsResidual(items[group.items[0]]);
  MemoryPool& pool = backend_->pool();
  absl::StatusOr<DeviceBuffer> chains =
      pool.Allocate(plan.solve_chain_scalars(group.columns) * scalar);
  if (!chains.ok()) return chains.status();
  group.chains = *std::move(chains);
  if (group.columns == 1 && backend_->reads_host_memory() && !residual) {
    const SolveItem& item = items[group.items[0]];
    group.in_place = item.solution;
    if (item.solution != item.rhs) std::memcpy(item.solution, item.rhs, bytes);
    return absl::OkStatus();
  }
  std::vector<DeviceBuffer*> buffers = {&group.x};
  if (residual) buffers = {&group.x, &group.rhs, &group.r};
  for (DeviceBuffer* buffer : buffers) {
    absl::StatusOr<DeviceBuffer> piece = pool.Allocate(bytes);
    if (!piece.ok()) return piece.status();
    *buffer = *std::move(piece);
  }
  int64_t first_column = 0;
  for (const size_t i : group.items) {
    absl::Status status =
        backend_->PackColumns(shape.scalar, group.x.data(), items[i].rhs, shape.block_size,
                              shape.rows(), items[i].num_rhs, first_column, group.columns);
    if (status.ok() && residual) {
      status = backend_->PackColumns(shape.scalar, group.rhs.data(), items[i].rhs, shape.block_size,
                                     shape.rows(), items[i].num_rhs, first_column, group.columns);
    }
    if (!status.ok()) return status;
    first_column += items[i].num_rhs;
  }
  return absl::OkStatus();
}

// r = b - A x, and while it helps: solve for r, x += r. Stops when the error no longer halves.
absl::Status Solver::Refine(const SolveItem& item, const Group& group, SolveOutcome& outcome) {
  const EliminationPlan& plan = group.factorization->plan();
  const BlockTridiagonalView& matrix = group.factorization->matrix().view();
  const SolveSystem correction = group.System(group.r.data());
  SolveBatch batch{&plan, {&correction, 1}, item.cancelled};
  double last = 0;
  for (int32_t step = 0;; ++step) {
    absl::StatusOr<std::vector<Backend::ResidualNorms>> norms =
        backend_->Residual(matrix, group.x.data(), group.rhs.data(), group.r.data(), group.columns);
    if (!norms.ok()) return norms.status();
    double error = 0;
    for (const Backend::ResidualNorms& column : *norms) {
      error = std::max(error, column.backward_error());
    }
    outcome.backward_error = error;
    outcome.refinements = step;
    const bool helps = step == 0 || error <= last / 2;
    if (step == item.max_refinements || error == 0 || !helps) return absl::OkStatus();
    last = error;
    absl::Status status = backend_->Solve(batch, [&item] { return !IsCancelled(item.cancelled); });
    if (status.ok()) {
      status = backend_->Add(plan.shape().scalar, group.x.data(), group.r.data(),
                             plan.shape().rows() * group.columns);
    }
    if (!status.ok()) return status;
  }
}

absl::Status Solver::Store(std::span<const SolveItem> items, const Group& group) {
  if (group.in_place) return absl::OkStatus();
  const Shape& shape = group.factorization->shape();
  int64_t first_column = 0;
  for (const size_t i : group.items) {
    absl::Status status =
        backend_->UnpackColumns(shape.scalar, items[i].solution, group.x.data(), shape.block_size,
                                shape.rows(), items[i].num_rhs, first_column, group.columns);
    if (!status.ok()) return status;
    first_column += items[i].num_rhs;
  }
  return absl::OkStatus();
}

std::vector<SolveOutcome> Solver::Solve(std::span<const SolveItem> items, Phases* phases) {
  std::vector<SolveOutcome> outcomes(items.size());
  if (items.empty()) return outcomes;
  absl::MutexLock lock(&run_mutex_);
  Stopwatch watch;
  Phases spent;
  std::vector<Group> groups = MakeGroups(items, outcomes);
  std::vector<SolveSystem> systems;
  for (Group& group : groups) {
    group.status = Load(items, group);
    if (group.status.ok()) systems.push_back(group.System(group.data()));
  }
  spent.upload_seconds = watch.Lap();
  if (!systems.empty()) {
    SolveBatch batch{&items[0].factorization->plan(), systems};
    if (items.size() == 1) batch.stop = items[0].cancelled;
    const absl::Status status = backend_->Solve(batch, [items] {
      return std::any_of(items.begin(), items.end(),
                         [](const SolveItem& item) { return !IsCancelled(item.cancelled); });
    });
    for (Group& group : groups) {
      if (group.status.ok()) group.status = status;
      const size_t first = group.items[0];
      if (group.status.ok() && NeedsResidual(items[first])) {
        group.status = Refine(items[first], group, outcomes[first]);
      }
    }
  }
  absl::Status synchronized = backend_->Synchronize();
  spent.compute_seconds = watch.Lap();
  for (Group& group : groups) {
    if (group.status.ok()) group.status = Store(items, group);
  }
  if (synchronized.ok()) synchronized = backend_->Synchronize();
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

absl::StatusOr<double> Solver::LogDeterminant(const Factorization& factorization) {
  absl::MutexLock lock(&run_mutex_);
  return backend_->LogDeterminant(factorization.plan(), factorization.data());
}

}  // namespace blockd
