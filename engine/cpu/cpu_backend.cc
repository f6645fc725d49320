#include "engine/cpu/cpu_backend.h"

#include <cblas.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "engine/cpu/border.h"
#include "engine/cpu/columns.h"
#include "engine/cpu/eliminate_segment.h"
#include "engine/cpu/information.h"
#include "engine/cpu/inverse/inverse_levels.h"
#include "engine/cpu/kernels/kernels.h"
#include "engine/cpu/kernels/slab.h"
#include "engine/cpu/kernels/triangles.h"
#include "engine/cpu/log_determinant.h"
#include "engine/cpu/residual.h"
#include "engine/cpu/threads/processor.h"
#include "engine/cpu/threads/thread_pool.h"

namespace blockd {
namespace {

using cpu::EliminateTask;
using cpu::SegmentReport;
using cpu::Slab;
using cpu::SubstituteTask;

// Right-hand sides that one task takes through a segment: its vectors stay in cache beside a block.
constexpr int64_t kColumnsATask = 32;

constexpr double kAloneFlops = 2e5;  // what has fewer ends before another thread would have woken

// Factors that will not be found in a cache when they are read.
constexpr int64_t kLargerThanCaches = int64_t{32} << 20;

// Where one segment of one system stands in a batch's tasks.
struct Place {
  int64_t system = 0;
  int64_t segment = 0;
};

class CpuBackend : public Backend {
 public:
  CpuBackend(std::unique_ptr<Slab> slab, int64_t memory_bytes, int32_t threads, int32_t lanes)
      : slab_(std::move(slab)),
        pool_(slab_->base(), memory_bytes),
        factor_threads_(threads),
        solve_threads_(threads),
        pending_solves_(threads, factor_threads_.working()) {
    device_.backend = "cpu";
    device_.name =
        absl::StrCat(cpu::ProcessorName(), " (", cpu::SelectKernels<double>().instruction_set, ")");
    device_.memory_bytes = cpu::PhysicalMemory();
    device_.parallelism = threads;
    costs_.lanes = costs_.solve_lanes = lanes;
  }

  const DeviceInfo& device() const override { return device_; }
  CostModel costs(const Shape& shape) const override {
    CostModel costs = costs_;
    if (shape.scalar == Scalar::kFloat32) costs.lane_flops_per_second *= 2;
    costs.device_flops_per_second = costs.lane_flops_per_second * costs.lanes;
    return costs;
  }
  MemoryPool& pool() override { return pool_; }
  bool reads_host_memory() const override { return true; }

  absl::Status Write(void* device, std::span<const HostPiece> pieces) override {
    auto* to = static_cast<std::byte*>(device);
    for (const HostPiece piece : pieces) to = std::copy(piece.begin(), piece.end(), to);
    return absl::OkStatus();
  }
  absl::Status AwaitWrites() override { return absl::OkStatus(); }
  absl::Status Upload(Track, void* device, const void* host, int64_t bytes) override {
    std::memcpy(device, host, bytes);
    return absl::OkStatus();
  }
  absl::Status Download(Track, void* host, const void* device, int64_t bytes) override {
    std::memcpy(host, device, bytes);
    return absl::OkStatus();
  }
  absl::Status Synchronize(Track) override { return absl::OkStatus(); }

  // Done when the calls return.
  absl::StatusOr<int64_t> Mark(Track) override { return 0; }
  absl::StatusOr<std::optional<TrackTimes>> Await(Track, int64_t) override { return std::nullopt; }
  std::shared_ptr<MemoryPool> host_memory() override { return nullptr; }

  absl::Status PackColumns(Track track, const Shape& shape,
                           std::span<const HostColumns> columns) override {
    cpu::PackColumns(ThreadsOf(track), shape, columns);
    return absl::OkStatus();
  }
  absl::Status UnpackColumns(Track track, const Shape& shape,
                             std::span<const HostColumns> columns) override {
    cpu::UnpackColumns(ThreadsOf(track), shape, columns);
    return absl::OkStatus();
  }

  absl::Status FormInformation(const InformationSteps& steps) override {
    cpu::FormInformation(factor_threads_, steps);
    return absl::OkStatus();
  }

  int64_t FactorScratchBytes(const EliminationPlan& plan, int64_t) const override {
    return factor_threads_.threads() * cpu::SegmentScratchBytes(plan.shape(), HasFill(plan));
  }

  absl::StatusOr<std::vector<FactorReport>> Factor(const FactorBatch& batch,
                                                   absl::FunctionRef<bool()> wanted) override {
    return batch.plan->shape().scalar == Scalar::kFloat64 ? FactorLevels<double>(batch, wanted)
                                                          : FactorLevels<float>(batch, wanted);
  }

  void CountPendingSolves(int32_t change) override { pending_solves_.Count(change); }
  absl::Status Solve(Track track, const SolveBatch& batch,
                     absl::FunctionRef<bool()> wanted) override {
    return batch.plan->shape().scalar == Scalar::kFloat64
               ? SolveLevels<double>(track, batch, wanted)
               : SolveLevels<float>(track, batch, wanted);
  }

  absl::Status InvertTriangles(Track track, const EliminationPlan& plan, const void* factor,
                               void* out) override {
    cpu::InvertTriangles(ThreadsOf(track), plan, factor, out);
    return absl::OkStatus();
  }
  int64_t InverseScratchBytes(const EliminationPlan& plan, int64_t first_block,
                              int64_t num_blocks) const override {
    return cpu::InverseScratchBytes(plan, first_block, num_blocks, solve_threads_.threads());
  }
  absl::Status SelectedInverse(Track track, const InverseRequest& request,
                               absl::FunctionRef<bool()> wanted) override {
    if (track == Track::kSolve) {
      const cpu::PendingSolves::Running running(&pending_solves_, solve_threads_.threads());
      return cpu::InvertLevels(solve_threads_, nullptr, request, wanted);
    }
    return cpu::InvertLevels(factor_threads_, &pending_solves_, request, wanted);
  }

  absl::StatusOr<double> LogDeterminant(Track, const EliminationPlan& plan,
                                        const void* factor) override {
    return cpu::LogDeterminant(plan, factor);
  }

  absl::StatusOr<std::vector<ResidualNorms>> Residual(Track track,
                                                      const BlockTridiagonalView& matrix,
                                                      const void* x, const void* b, void* r,
                                                      int64_t num_rhs) override {
    ThreadPool& threads = ThreadsOf(track);
    const cpu::PendingSolves::Running running(
        SolvesOf(track), std::min<int64_t>(threads.threads(), matrix.shape().num_blocks));
    return cpu::Residual(threads, matrix, x, b, r, num_rhs);
  }

  absl::Status CopyColumns(Track track, const Shape& shape, void* to, const void* from,
                           const std::vector<bool>& columns) override {
    cpu::CopyColumns(ThreadsOf(track), shape, to, from, columns);
    return absl::OkStatus();
  }
  absl::Status Add(Track, Scalar scalar, void* y, const void* x, int64_t scalars) override {
    scalar == Scalar::kFloat64
        ? AddTo(static_cast<double*>(y), static_cast<const double*>(x), scalars)
        : AddTo(static_cast<float*>(y), static_cast<const float*>(x), scalars);
    return absl::OkStatus();
  }

  absl::Status MultiplyBorder(Track track, const BorderColumns& y, const void* v, int64_t columns,
                              double* products) override {
    const cpu::PendingSolves::Running running(SolvesOf(track), BorderTasks(track, y));
    cpu::MultiplyBorder(ThreadsOf(track), y, v, columns, products);
    return absl::OkStatus();
  }
  absl::Status AddBorder(Track track, const BorderColumns& y, const double* x, void* v,
                         int64_t columns, bool add) override {
    const cpu::PendingSolves::Running running(SolvesOf(track), BorderTasks(track, y));
    cpu::AddBorder(ThreadsOf(track), y, x, v, columns, add);
    return absl::OkStatus();
  }
  absl::Status AddBorderSquares(Track track, const BorderColumns& h, InverseParts parts,
                                void* diagonal, void* coupling) override {
    const cpu::PendingSolves::Running running(SolvesOf(track), BorderTasks(track, h));
    cpu::AddBorderSquares(ThreadsOf(track), h, parts, diagonal, coupling);
    return absl::OkStatus();
  }

 private:
  template <typename T>
  static void AddTo(T* y, const T* x, int64_t scalars) {
    for (int64_t i = 0; i < scalars; ++i) y[i] += x[i];
  }

  ThreadPool& ThreadsOf(Track track) {
    return track == Track::kSolve ? solve_threads_ : factor_threads_;
  }

  int64_t BorderTasks(Track track, const BorderColumns& y) {
    return std::min<int64_t>(ThreadsOf(track).threads(), y.shape.num_blocks);
  }

  // The solves that factorizations make way for; null: none.
  cpu::PendingSolves* SolvesOf(Track track) {
    return track == Track::kSolve ? &pending_solves_ : nullptr;
  }

  static bool HasFill(const EliminationPlan& plan) {
    return std::any_of(plan.levels().begin(), plan.levels().end(),
                       [](const Level& level) { return level.fills > 0; });
  }

  // The chains of the level above `level`, in a system's chain memory; null for the base.
  template <typename T>
  static T* NextChains(const EliminationPlan& plan, int64_t level, void* chains) {
    const int64_t n = plan.shape().block_size;
    T* at = static_cast<T*>(chains);
    for (int64_t l = 0; l < level; ++l) {
      at += static_cast<int64_t>(plan.levels()[l].separators.size()) * 3 * n * n;
    }
    return at;
  }

  template <typename T>
  EliminateTask<T> MakeEliminateTask(const FactorBatch& batch, int64_t level_index,
                                     const Place& place) {
    const EliminationPlan& plan = *batch.plan;
    const FactorSystem& system = batch.systems[place.system];
    const Level& level = plan.levels()[level_index];
    const Segment& segment = level.segments[place.segment];
    EliminateTask<T> task;
    task.n = plan.shape().block_size;
    const int64_t square = task.n * task.n;
    if (level_index == 0) {
      task.chain.matrix = &system.matrix;
    } else {
      task.chain.chains = NextChains<T>(plan, level_index - 1, system.chains);
    }
    task.segment = &segment;
    T* factor = static_cast<T*>(system.factor);
    task.inverse = factor + level.inverse_offset + segment.slot * TriangleScalars(task.n);
    task.next = factor + level.next_offset + segment.slot * square;
    if (segment.has_fill()) task.fill = factor + level.fill_offset + segment.fill_slot * square;
    T* next = NextChains<T>(plan, level_index, system.chains);
    if (segment.left_separator >= 0) {
      task.left_from_right = next + (segment.left_separator * 3 + 1) * square;
    }
    if (segment.right_separator >= 0) {
      task.right_from_left = next + segment.right_separator * 3 * square;
    }
    if (segment.has_fill()) task.coupling = next + (segment.left_separator * 3 + 2) * square;
    task.stream =
        plan.factor_bytes() * static_cast<int64_t>(batch.systems.size()) > kLargerThanCaches;
    task.stop = batch.stop;
    task.solves = &pending_solves_;
    return task;
  }

  // Down the levels: eliminate the interiors of each, base last.
  template <typename T>
  absl::StatusOr<std::vector<FactorReport>> FactorLevels(const FactorBatch& batch,
                                                         absl::FunctionRef<bool()> wanted) {
    std::vector<FactorReport> reports(batch.systems.size());
    for (size_t level = 0; level < batch.plan->levels().size(); ++level) {
      if (!wanted()) return absl::CancelledError("cancelled while factoring");
      EliminateLevel<T>(batch, static_cast<int64_t>(level), reports);
    }
    return reports;
  }

  template <typename T>
  void EliminateLevel(const FactorBatch& batch, int64_t level_index,
                      std::vector<FactorReport>& reports) {
    const EliminationPlan& plan = *batch.plan;
    const Level& level = plan.levels()[level_index];
    const int64_t segments = static_cast<int64_t>(level.segments.size());
    const int64_t tasks = segments * static_cast<int64_t>(batch.systems.size());
    const int64_t scratch = FactorScratchBytes(plan, 1) / factor_threads_.threads();
    std::vector<SegmentReport> found(tasks);
    const double flops = plan.factor_flops() * static_cast<double>(batch.systems.size());
    ThreadPool& threads = flops < kAloneFlops ? alone_ : factor_threads_;
    threads.Run(tasks, [&](int64_t i, int32_t thread) {
      const Place place{i / segments, i % segments};
      if (reports[place.system].failure) return;
      EliminateTask<T> task = MakeEliminateTask<T>(batch, level_index, place);
      task.scratch = reinterpret_cast<T*>(static_cast<char*>(batch.scratch) + thread * scratch);
      task.thread = thread;
      found[i] = cpu::EliminateSegment(task);
    });
    for (int64_t i = tasks - 1; i >= 0; --i) {
      FactorReport& report = reports[i / segments];
      report.growth = LargerOrNaN(report.growth, std::sqrt(found[i].growth_square));
      if (found[i].interior < 0) continue;
      const int64_t block = level.segments[i % segments].block(found[i].interior);
      report.failure = {plan.OriginalBlock(level_index, block), found[i].row};
    }
  }

  // Forward down the levels, base last; then backward, base first.
  template <typename T>
  absl::Status SolveLevels(Track track, const SolveBatch& batch, absl::FunctionRef<bool()> wanted) {
    const int64_t levels = static_cast<int64_t>(batch.plan->levels().size());
    const bool alone = batch.plan->solve_flops(Columns(batch)) < kAloneFlops;
    ThreadPool& threads = alone ? alone_ : ThreadsOf(track);
    const cpu::PendingSolves::Running running(SolvesOf(track), MostTasks(batch, threads));
    if (batch.part == SolvePart::kBackward) MoveBetweenLevels<T>(batch);
    const int64_t first = batch.part == SolvePart::kBackward ? levels : 0;
    const int64_t end = batch.part == SolvePart::kForward ? levels : 2 * levels;
    for (int64_t pass = first; pass < end; ++pass) {
      if (!wanted()) return absl::CancelledError("cancelled while solving");
      const bool forward = pass < levels;
      Substitute<T>(threads, batch, forward ? pass : 2 * levels - 1 - pass,
                    forward ? cpu::SelectKernels<T>().forward : cpu::SelectKernels<T>().backward,
                    forward);
    }
    if (batch.part == SolvePart::kForward) MoveBetweenLevels<T>(batch);
    return absl::OkStatus();
  }

  // In half a solve, copies y from the chains above the first level to its place in x, or back from
  // x before the backward half. A block is eliminated on the last level that has it.
  template <typename T>
  static void MoveBetweenLevels(const SolveBatch& batch) {
    const EliminationPlan& plan = *batch.plan;
    for (const SolveSystem& system : batch.systems) {
      const int64_t part = plan.shape().block_size * system.num_rhs;
      for (size_t level = 1; level < plan.levels().size(); ++level) {
        T* chain = LevelVectors<T>(plan, level, system);
        for (int64_t b = 0; b < plan.levels()[level].chain_length; ++b, chain += 2 * part) {
          T* const x = static_cast<T*>(system.x) + plan.OriginalBlock(level, b) * part;
          batch.part == SolvePart::kForward ? std::copy_n(chain, part, x)
                                            : std::copy_n(x, part, chain);
        }
      }
    }
  }

  static int64_t Columns(const SolveBatch& batch) {
    int64_t columns = 0;
    for (const SolveSystem& system : batch.systems) columns += system.num_rhs;
    return columns;
  }

  // Tasks of the first level, which has most.
  static int64_t MostTasks(const SolveBatch& batch, const ThreadPool& threads) {
    int64_t panels = 0;
    for (const SolveSystem& system : batch.systems) {
      panels += (system.num_rhs + kColumnsATask - 1) / kColumnsATask;
    }
    return std::min<int64_t>(panels * static_cast<int64_t>(batch.plan->levels()[0].segments.size()),
                             threads.threads());
  }

  template <typename T>
  void Substitute(ThreadPool& threads, const SolveBatch& batch, int64_t level_index,
                  void (*kernel)(const SubstituteTask<T>&), bool forward) {
    const EliminationPlan& plan = *batch.plan;
    const int64_t segments = static_cast<int64_t>(plan.levels()[level_index].segments.size());
    struct Panel {
      Place place;
      int64_t first_column;
    };
    std::vector<Panel>& panels = Panels<Panel>();
    panels.clear();
    for (int64_t s = 0; s < static_cast<int64_t>(batch.systems.size()); ++s) {
      for (int64_t c = 0; c < batch.systems[s].num_rhs; c += kColumnsATask) {
        for (int64_t i = 0; i < segments; ++i) panels.push_back({{s, i}, c});
      }
    }
    const int64_t n = plan.shape().block_size;
    threads.Run(static_cast<int64_t>(panels.size()), [&](int64_t i, int32_t) {
      const Panel& panel = panels[i];
      SubstituteTask<T> task =
          MakeSubstituteTask<T>(batch, level_index, panel.place, panel.first_column, forward);
      // Small, and needed by one thread for one task: kept from task to task.
      thread_local std::vector<T> scratch;
      if (static_cast<int64_t>(scratch.size()) < 2 * n * task.columns) {
        scratch.resize(2 * n * task.columns);
      }
      task.scratch = scratch.data();
      kernel(task);
    });
  }

  template <typename Panel>
  static std::vector<Panel>& Panels() {
    thread_local std::vector<Panel> panels;
    return panels;
  }

  // Where the vectors of a level above the first lie: by block, [from_left | from_right], all
  // columns.
  template <typename T>
  static T* LevelVectors(const EliminationPlan& plan, int64_t level, const SolveSystem& system) {
    int64_t before = 0;
    for (int64_t l = 0; l + 1 < level; ++l) {
      before += static_cast<int64_t>(plan.levels()[l].separators.size());
    }
    return static_cast<T*>(system.chains) + before * 2 * plan.shape().block_size * system.num_rhs;
  }

  template <typename T>
  static SubstituteTask<T> MakeSubstituteTask(const SolveBatch& batch, int64_t level_index,
                                              const Place& place, int64_t first_column,
                                              bool forward) {
    const EliminationPlan& plan = *batch.plan;
    const SolveSystem& system = batch.systems[place.system];
    const Level& level = plan.levels()[level_index];
    const Segment& segment = level.segments[place.segment];
    SubstituteTask<T> task;
    task.n = plan.shape().block_size;
    task.columns = std::min(kColumnsATask, system.num_rhs - first_column);
    task.segment = &segment;
    const T* factor = static_cast<const T*>(system.factor);
    task.inverse = factor + level.inverse_offset + segment.slot * TriangleScalars(task.n);
    task.next = factor + level.next_offset + segment.slot * task.n * task.n;
    task.fill = factor + level.fill_offset + segment.fill_slot * task.n * task.n;
    const int64_t part = task.n * system.num_rhs;
    const int64_t skip = first_column * task.n;
    if (level_index == 0) {
      task.x = {static_cast<T*>(system.x) + skip, part};
    } else {
      T* vectors = LevelVectors<T>(plan, level_index, system);
      task.x = {vectors + skip, 2 * part};
      if (forward) task.x_right = {vectors + part + skip, 2 * part};
    }
    T* next = LevelVectors<T>(plan, level_index + 1, system);
    task.from_left = {next + skip, 2 * part};
    task.from_right = {next + part + skip, 2 * part};
    task.stop = batch.stop;
    return task;
  }

  const std::unique_ptr<Slab> slab_;
  MemoryPool pool_;
  ThreadPool factor_threads_, solve_threads_, alone_{1};
  cpu::PendingSolves pending_solves_;
  DeviceInfo device_;
  CostModel costs_;  // FP64
};

}  // namespace

absl::StatusOr<std::unique_ptr<Backend>> CreateCpuBackend(const BackendOptions& options) {
  const int32_t processors = cpu::AllowedProcessors();
  const int64_t memory = options.memory_bytes > 0
                             ? options.memory_bytes
                             : cpu::AvailableMemory() / 4 * 3 / options.memory_parts;
  if (memory > cpu::PhysicalMemory()) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "asked for a pool of ", memory, " bytes, this machine has ", cpu::PhysicalMemory()));
  }
  absl::StatusOr<std::unique_ptr<Slab>> slab = Slab::Map(memory);
  if (!slab.ok()) return slab.status();
  openblas_set_num_threads(1);
  return std::make_unique<CpuBackend>(*std::move(slab), memory,
                                      options.cpu_threads > 0 ? options.cpu_threads : processors,
                                      options.cpu_lanes > 0 ? options.cpu_lanes : processors);
}

}  // namespace blockd
