#include "engine/gpu/gpu_backend.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <optional>
#include <span>
#include <type_traits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/gpu/batch_layout.h"
#include "engine/gpu/costs.h"
#include "engine/gpu/launch.h"
#include "engine/gpu/runtime/device.h"
#include "engine/gpu/runtime/launch_graphs.h"
#include "engine/gpu/task_list/solve_tasks.h"
#include "engine/gpu/task_list/task_lists.h"
#include "engine/gpu/vectors/vector_calls.h"

namespace blockd {
namespace {

using gpu::Device;
using gpu::EliminateArgs;
using gpu::EliminateSmallArgs;
using gpu::EntryOf;
using gpu::FactorEntry;
using gpu::FactorScratch;
using gpu::FirstFailure;
using gpu::LaunchResult;
using gpu::LevelShape;
using gpu::SegmentsBefore;
using gpu::SeparatorsBefore;
using gpu::ShapeOf;
using gpu::SolveArgs;
using gpu::SolveEntry;

class GpuBackend : public Backend {
 public:
  GpuBackend(std::unique_ptr<Device> device, const gpu::SolveLimits& solve_limits, bool early)
      : device_(std::move(device)),
        solve_limits_(solve_limits),
        early_(early),
        pool_(device_->pool_base(), device_->pool_bytes()),
        task_lists_(device_->workspace() + gpu::kTasksOffset) {}

  // Nothing may run when the graphs go, which is before the device does.
  ~GpuBackend() override { device_->Synchronize().IgnoreError(); }

  const DeviceInfo& device() const override { return device_->info(); }
  CostModel costs(const Shape& shape) const override { return gpu::CostsOf(shape, solve_limits_); }
  MemoryPool& pool() override { return pool_; }
  bool reads_host_memory() const override { return false; }

  absl::Status Upload(void* device, const void* host, int64_t bytes) override {
    return device_->Upload(device, host, bytes);
  }
  absl::Status Download(void* host, const void* device, int64_t bytes) override {
    return device_->Download(host, device, bytes);
  }
  absl::Status Synchronize() override { return device_->Synchronize(); }

  absl::Status PackColumns(Scalar scalar, void* packed, const void* columns_in, int64_t n,
                           int64_t rows, int64_t columns, int64_t first_column,
                           int64_t total_columns) override {
    return vectors_.Pack(packed, columns_in,
                         {n * ScalarBytes(scalar), rows / n, 0, 0, first_column, total_columns},
                         columns);
  }
  absl::Status UnpackColumns(Scalar scalar, void* columns_out, const void* packed, int64_t n,
                             int64_t rows, int64_t columns, int64_t first_column,
                             int64_t total_columns) override {
    return vectors_.Unpack(columns_out, packed,
                           {n * ScalarBytes(scalar), rows / n, 0, 0, first_column, total_columns},
                           columns);
  }
  absl::StatusOr<double> LogDeterminant(const EliminationPlan& plan, const void* factor) override {
    return vectors_.LogDeterminant(plan, factor);
  }
  absl::StatusOr<std::vector<ResidualNorms>> Residual(const BlockTridiagonalView& matrix,
                                                      const void* x, const void* b, void* r,
                                                      int64_t num_rhs) override {
    return vectors_.Residual(matrix, x, b, r, num_rhs);
  }
  absl::Status CopyColumns(const Shape& shape, void* to, const void* from,
                           const std::vector<bool>& columns) override {
    return vectors_.CopyColumns(shape, to, from, columns);
  }
  absl::Status Add(Scalar scalar, void* y, const void* x, int64_t scalars) override {
    return vectors_.Add(scalar, y, x, scalars);
  }

  int64_t FactorScratchBytes(const EliminationPlan& plan, int64_t systems) const override {
    return ScratchOf(plan, systems).bytes;
  }

  absl::StatusOr<std::vector<FactorReport>> Factor(const FactorBatch& batch,
                                                   absl::FunctionRef<bool()> wanted) override {
    absl::Status status = BeginFactor(batch);
    if (status.ok() && batch.plan->is_open()) status = ClearWhatNobodyWrites(batch);
    const int64_t levels = static_cast<int64_t>(batch.plan->levels().size());
    for (int64_t level = 0; status.ok() && level < levels; ++level) {
      if (!wanted()) return absl::CancelledError("cancelled while factoring");
      status = Eliminate(batch, level);
    }
    if (!status.ok()) return status;
    return FinishFactor(batch);
  }
  absl::Status Solve(const SolveBatch& batch, absl::FunctionRef<bool()> wanted) override {
    return Solve(batch, 0, 2 * static_cast<int32_t>(batch.plan->levels().size()), wanted);
  }

  absl::Status BeginFactor(const FactorBatch& batch) {
    absl::Status status = device_->AwaitUploads();
    if (!status.ok()) return status;
    const FactorScratch scratch =
        ScratchOf(*batch.plan, static_cast<int64_t>(batch.systems.size()));
    if (scratch.found_bytes == 0) {
      // No kernel writes to it now: calls end with the device idle.
      std::memset(device_->results(), 0, batch.systems.size() * sizeof(FirstFailure));
      return status;
    }
    return gpu::ToStatus(
        BLOCKD_GPU(MemsetAsync)(static_cast<std::byte*>(batch.scratch) + scratch.found_offset, 0,
                                static_cast<size_t>(scratch.found_bytes), device_->stream()),
        "clearing the failures");
  }

  // An open plan has segments without interiors, which leave nothing on their separators and have
  // no pivot that could fail.
  absl::Status ClearWhatNobodyWrites(const FactorBatch& batch) {
    const EliminationPlan& plan = *batch.plan;
    const auto systems = static_cast<int64_t>(batch.systems.size());
    const auto clear = [&](void* at, int64_t bytes) {
      return gpu::ToStatus(
          BLOCKD_GPU(MemsetAsync)(at, 0, static_cast<size_t>(bytes), device_->stream()),
          "clearing for an open plan");
    };
    absl::Status status = clear(
        batch.scratch, ScratchOf(plan, systems).info_stride * systems * int64_t{sizeof(int64_t)});
    for (const FactorSystem& system : batch.systems) {
      if (!status.ok() || plan.chain_scalars() == 0) break;
      status = clear(system.chains, plan.chain_scalars() * ScalarBytes(plan.shape().scalar));
    }
    return status;
  }

  // Levels of small blocks go together, with the first of them; of large ones too, as a graph.
  absl::Status Eliminate(const FactorBatch& batch, int64_t level_index) {
    const EliminationPlan& plan = *batch.plan;
    const bool small = IsSmall(plan.shape());
    const int64_t systems = static_cast<int64_t>(batch.systems.size());
    const FactorScratch scratch = ScratchOf(plan, systems);
    if (level_index % scratch.levels_a_launch != 0) return absl::OkStatus();
    absl::Status status = device_->AwaitUploads();
    const bool few = IsFew(plan.shape());
    const int64_t most = few ? gpu::kSystemsALaunch : scratch.systems_a_launch;
    for (int64_t first = 0; status.ok() && first < systems; first += most) {
      const int64_t count = std::min(most, systems - first);
      status = SetFactorTable(batch, scratch, first, count);
      if (!status.ok()) return status;
      status = small               ? EliminateSmall(plan, level_index, scratch, count)
               : few               ? EliminateFew(batch, scratch, first, count)
               : scratch.has_graph ? EliminateInGraph(batch, level_index, scratch, count)
                                   : EliminateLarge(batch, level_index, scratch, count);
    }
    return status;
  }

  absl::StatusOr<std::vector<FactorReport>> FinishFactor(const FactorBatch& batch) {
    const EliminationPlan& plan = *batch.plan;
    const int64_t systems = static_cast<int64_t>(batch.systems.size());
    const FactorScratch scratch = ScratchOf(plan, systems);
    const FirstFailure* found = static_cast<const FirstFailure*>(device_->results());
    std::vector<FirstFailure> downloaded;
    absl::Status status;
    if (scratch.found_bytes == 0) {
      status = device_->AwaitKernels();
    } else {
      downloaded.resize(systems);
      found = downloaded.data();
      status = device_->Download(downloaded.data(),
                                 static_cast<std::byte*>(batch.scratch) + scratch.found_offset,
                                 scratch.found_bytes);
    }
    if (!status.ok()) return status;
    std::vector<FactorReport> reports(systems);
    for (int64_t s = 0; s < systems; ++s) {
      if (found[s].position > 0) reports[s].failure = Locate(plan, found[s]);
    }
    return reports;
  }

 private:
  // Whether one thread block has a segment.
  bool IsSmall(const Shape& shape) const {
    return shape.block_size <= gpu::LargestSmallBlock(shape.scalar == Scalar::kFloat32,
                                                      solve_limits_.block_shared_bytes);
  }
  FactorScratch ScratchOf(const EliminationPlan& plan, int64_t systems) const {
    return {plan, systems, IsSmall(plan.shape()), IsFew(plan.shape())};
  }
  // Whether factorizations consist of tasks.
  bool IsFew(const Shape& shape) const {
    return gpu::HasFactorTasks(shape) && !IsSmall(shape) &&
           gpu::CanEliminateFew(solve_limits_.block_shared_bytes);
  }
  std::byte* CallMemory() const { return device_->workspace() + gpu::kCallOffset; }
  std::byte* SolveMemory(int64_t turn) const {
    return device_->workspace() + gpu::kSolveOffset + turn * gpu::kSolveBytes;
  }
  uint32_t* Ticket() const {
    return reinterpret_cast<uint32_t*>(device_->workspace() + gpu::kTicketOffset);
  }
  uint32_t* Flags() const {
    return reinterpret_cast<uint32_t*>(device_->workspace() + gpu::kFlagsOffset);
  }

  // A table of systems in the workspace.
  struct Table {
    int64_t offset = 0;
    std::vector<std::byte> contents;
  };
  std::byte* AddressOf(const Table& table) const { return device_->workspace() + table.offset; }

  // Puts `bytes` into the table, unless they are there already.
  absl::Status Set(Table& table, std::span<const std::byte> bytes) {
    if (std::equal(bytes.begin(), bytes.end(), table.contents.begin(), table.contents.end())) {
      return absl::OkStatus();
    }
    table.contents.clear();
    absl::Status status =
        device_->UploadInOrder(AddressOf(table), static_cast<int64_t>(bytes.size()),
                               [&](void* to) { std::memcpy(to, bytes.data(), bytes.size()); });
    if (status.ok()) table.contents.assign(bytes.begin(), bytes.end());
    return status;
  }

  const FactorEntry* FactorTable() const {
    return reinterpret_cast<const FactorEntry*>(AddressOf(factor_table_));
  }
  // `count` systems from `first` on.
  absl::Status SetFactorTable(const FactorBatch& batch, const FactorScratch& scratch, int64_t first,
                              int64_t count) {
    std::byte* const base = static_cast<std::byte*>(batch.scratch);
    FirstFailure* const found = scratch.found_bytes == 0
                                    ? static_cast<FirstFailure*>(device_->results())
                                    : reinterpret_cast<FirstFailure*>(base + scratch.found_offset);
    factor_entries_.clear();
    for (int64_t s = first; s < first + count; ++s) {
      const FactorSystem& system = batch.systems[s];
      FactorEntry entry = EntryOf(system.matrix, system.factor, system.chains);
      entry.info = reinterpret_cast<int64_t*>(base) + s * scratch.info_stride;
      entry.found = found + s;
      const int64_t place = (s - first) % scratch.systems_a_launch;
      entry.scratch = base + scratch.blocks_offset + place * scratch.blocks_stride;
      factor_entries_.push_back(entry);
    }
    return Set(factor_table_, std::as_bytes(std::span(factor_entries_)));
  }

  // A number that no flag has.
  absl::StatusOr<uint32_t> NextEpoch() {
    if (++epoch_ != 0) return epoch_;
    absl::Status status = gpu::ToStatus(
        BLOCKD_GPU(MemsetAsync)(Flags(), 0, gpu::kFlags * sizeof(uint32_t), device_->stream()),
        "clearing the flags");
    if (!status.ok()) return status;
    return ++epoch_;
  }

  // The first `count` systems of the table.
  absl::Status EliminateSmall(const EliminationPlan& plan, int64_t first_level,
                              const FactorScratch& scratch, int64_t count) {
    absl::StatusOr<uint32_t> epoch = NextEpoch();
    if (!epoch.ok()) return epoch.status();
    EliminateSmallArgs args = gpu::ArgsOfLevels(plan, first_level, scratch.levels_a_launch);
    args.systems = FactorTable();
    args.num_systems = count;
    args.done = Flags();
    args.done_stride = scratch.info_stride;
    args.epoch = *epoch;
    args.ticket = Ticket();
    return Launch(plan.shape().scalar, args);
  }

  // The first `count` systems of the table.
  EliminateArgs LargeArgs(const EliminationPlan& plan, int64_t level_index, int64_t count) const {
    EliminateArgs args = gpu::ArgsOfLevel(plan, level_index);
    args.systems = FactorTable();
    args.num_systems = count;
    return args;
  }

  absl::Status EliminateLarge(const FactorBatch& batch, int64_t level_index,
                              const FactorScratch& scratch, int64_t count) const {
    const EliminationPlan& plan = *batch.plan;
    const LaunchResult result =
        Launch(plan.shape().scalar, LargeArgs(plan, level_index, count), batch.stop);
    const bool last = level_index + 1 == static_cast<int64_t>(plan.levels().size());
    // The stream that failed does not wait for what is beside it.
    if (!result.ok()) (void)BLOCKD_GPU(StreamSynchronize)(device_->side_stream());
    // Of a factorization that was stopped nothing is known.
    const bool stopped = batch.stop && batch.stop->load(std::memory_order_relaxed);
    if (!result.ok() || !last || stopped) return device_->Launched(result);
    return device_->Launched(FindFailures(scratch, count));
  }

  // All levels, of `count` systems from `first` on.
  absl::Status EliminateFew(const FactorBatch& batch, const FactorScratch& scratch, int64_t first,
                            int64_t count) {
    const auto form = [&](int64_t s) { return batch.systems[first + s].matrix.form.coupling; };
    gpu::EliminateFewArgs args;
    const Shape& shape = batch.plan->shape();
    args.n = shape.block_size;
    const auto all = static_cast<int64_t>(batch.systems.size());
    const Company company = all == 1                                               ? Company::kNone
                            : all * gpu::FewTiles(shape) <= gpu::kTilesALaunch / 2 ? Company::kSome
                                                                                   : Company::kMuch;
    const int64_t groups = (count + scratch.systems_a_launch - 1) / scratch.systems_a_launch;
    const int64_t most = (count + groups - 1) / groups;
    for (int64_t group = 0; group < count; group += args.num_systems) {
      // Tasks are for one form of coupling blocks.
      args.systems = FactorTable() + group;
      args.num_systems = 1;
      const int64_t end = std::min(count, group + most);
      while (group + args.num_systems < end && form(group + args.num_systems) == form(group)) {
        ++args.num_systems;
      }
      absl::StatusOr<gpu::TaskList> list =
          FactorTaskList(*batch.plan, form(group) == CouplingForm::kSuperdiagonal, company);
      if (!list.ok()) return list.status();
      args.tasks = static_cast<const gpu::FactorTask*>(list->tasks);
      args.num_tasks = list->count;
      args.num_counters = list->counted;
      const int64_t bytes = args.num_systems * args.num_counters * int64_t{sizeof(unsigned)};
      absl::Status status = LaunchCounted(bytes, [&](const Counted& counted) {
        args.ticket = reinterpret_cast<unsigned*>(counted.tickets);
        args.counters = counted.counters;
        args.stale = counted.stale;
        args.stale_words = counted.stale_words;
        return gpu::EliminateFew(args, device_->stream());
      });
      if (!status.ok()) return status;
    }
    return device_->Launched(FindFailures(scratch, count));
  }
  // How many systems share the multiprocessors.
  enum class Company : uint8_t { kNone, kSome, kMuch };
  absl::StatusOr<gpu::TaskList> FactorTaskList(const EliminationPlan& plan, bool superdiagonal,
                                               Company company) {
    SetLevelArgs(plan, 0, static_cast<int64_t>(plan.levels().size()), 0);
    SetKey(std::span<const EliminateArgs>(level_args_),
           {ListOf::kFactor, superdiagonal, static_cast<uint8_t>(company)});
    return task_lists_.Find(key_, [&](gpu::TaskList& list) {
      const int64_t lanes = 2 * solve_limits_.multiprocessors;
      std::optional<gpu::FactorTasks> made;
      made.emplace(level_args_, superdiagonal, company == Company::kNone ? lanes : lanes / 4,
                   company == Company::kMuch);
      const auto bytes = [&] { return made->num_tasks() * int64_t{sizeof(gpu::FactorTask)}; };
      // Wide tasks are fewer.
      if (bytes() > gpu::TaskLists::kListBytes) {
        made.emplace(level_args_, superdiagonal, lanes, true);
      }
      if (bytes() > gpu::TaskLists::kListBytes ||
          made->num_counters() > gpu::FactorTask::kMostCounters) {
        return absl::InternalError("a plan of too many tasks");
      }
      list.count = made->num_tasks();
      list.counted = made->num_counters();
      return device_->UploadInOrder(const_cast<void*>(list.tasks), bytes(), [&](void* to) {
        made->Write(static_cast<gpu::FactorTask*>(to));
      });
    });
  }

  void SetLevelArgs(const EliminationPlan& plan, int64_t first_level, int64_t end, int64_t count) {
    level_args_.clear();
    for (int64_t l = first_level; l < end; ++l) level_args_.push_back(LargeArgs(plan, l, count));
  }
  // What a key is for.
  enum class ListOf : uint8_t { kGraph, kFactor, kSolve };
  struct KeyKind {
    ListOf list;
    uint8_t first, second;
  };
  // Makes key_ of plain data and its kind.
  template <typename Data>
  void SetKey(std::span<const Data> data, KeyKind kind) {
    static_assert(std::has_unique_object_representations_v<Data> &&
                  std::has_unique_object_representations_v<KeyKind>);
    const std::span<const std::byte> bytes = std::as_bytes(data);
    key_.assign(bytes.begin(), bytes.end());
    const auto of_kind = std::as_bytes(std::span(&kind, 1));
    key_.insert(key_.end(), of_kind.begin(), of_kind.end());
  }

  // Some levels from one on. A graph knows the systems by their places in the table only, so that
  // it serves all factorizations with this plan.
  absl::Status EliminateInGraph(const FactorBatch& batch, int64_t first_level,
                                const FactorScratch& scratch, int64_t count) {
    const Shape& shape = batch.plan->shape();
    const int64_t levels = static_cast<int64_t>(batch.plan->levels().size());
    const int64_t end = std::min(levels, first_level + scratch.levels_a_launch);
    SetLevelArgs(*batch.plan, first_level, end, count);
    // The pinned pieces take turns: this waits for the level before the last one.
    absl::Status status;
    if (scratch.is_long) status = device_->NextPinned().status();
    if (!status.ok()) return status;
    SetKey(std::span<const EliminateArgs>(level_args_),
           {ListOf::kGraph, static_cast<uint8_t>(shape.scalar), 0});
    status = device_->Describe(graphs_.Run(key_, device_->stream(), [&] {
      LaunchResult result;
      for (const EliminateArgs& args : level_args_) {
        if (result.ok()) result = Launch(shape.scalar, args, nullptr);
      }
      return result.ok() && end == levels ? FindFailures(scratch, count) : result;
    }));
    if (status.ok()) status = device_->Launched({gpu::kSuccess, "EliminateLarge in a graph"});
    return status.ok() && scratch.is_long ? device_->MarkPinned() : status;
  }

  LaunchResult FindFailures(const FactorScratch& scratch, int64_t count) const {
    return gpu::FindFailures(FactorTable(), count, scratch.info_stride, device_->stream());
  }

  absl::Status Launch(Scalar scalar, const EliminateSmallArgs& args) const {
    const gpu::Stream stream = device_->stream();
    return device_->Launched(scalar == Scalar::kFloat64 ? gpu::EliminateSmall<double>(args, stream)
                                                        : gpu::EliminateSmall<float>(args, stream));
  }
  LaunchResult Launch(Scalar scalar, const EliminateArgs& args,
                      const std::atomic<bool>* stop) const {
    const gpu::LargeContext context = {solve_limits_.block_shared_bytes,
                                       solve_limits_.multiprocessors,
                                       early_,
                                       device_->stream(),
                                       device_->side_stream(),
                                       device_->fork(),
                                       device_->join(),
                                       stop};
    return scalar == Scalar::kFloat64 ? gpu::EliminateLarge<double>(args, context)
                                      : gpu::EliminateLarge<float>(args, context);
  }

  static PivotFailure Locate(const EliminationPlan& plan, const FirstFailure& failure) {
    int64_t level = 0, segment = failure.position - 1;
    while (segment >= static_cast<int64_t>(plan.levels()[level].segments.size())) {
      segment -= static_cast<int64_t>(plan.levels()[level++].segments.size());
    }
    const int64_t n = plan.shape().block_size, at = failure.value - 1;
    const int64_t block = plan.levels()[level].segments[segment].block(at / n);
    return {plan.OriginalBlock(level, block), at % n};
  }

  static SolveArgs ArgsOf(const EliminationPlan& plan, int32_t first_pass, int32_t end_pass) {
    SolveArgs args;
    args.num_levels = static_cast<int32_t>(plan.levels().size());
    args.first_pass = first_pass;
    args.end_pass = end_pass;
    args.n = plan.shape().block_size;
    args.separators = plan.separators();
    for (int32_t l = 0; l < args.num_levels; ++l) {
      const Level& level = plan.levels()[l];
      gpu::SolveLevel& out = args.levels[l];
      out.shape = ShapeOf(plan, level);
      if (l > 0) out.separators_before = SeparatorsBefore(plan, l - 1);
      out.next_separators_before = SeparatorsBefore(plan, l);
      out.inverse_offset = level.inverse_offset;
      out.next_offset = level.next_offset;
      out.fill_offset = level.fill_offset;
    }
    return args;
  }

  // Some passes, for as many systems and panels of columns at a time as there is room to count for
  // and as take some milliseconds; `wanted` is asked in between.
  absl::Status Solve(const SolveBatch& batch, int32_t first_pass, int32_t end_pass,
                     absl::FunctionRef<bool()> wanted) {
    if (!wanted()) return absl::CancelledError("cancelled while solving");
    absl::Status status = device_->AwaitUploads();
    if (!status.ok()) return status;
    const EliminationPlan& plan = *batch.plan;
    if (static_cast<int64_t>(plan.levels().size()) > gpu::kMostLevels) {
      return absl::InternalError("a plan of too many levels");
    }
    SolveArgs args = ArgsOf(plan, first_pass, end_pass);
    args.systems = reinterpret_cast<const SolveEntry*>(AddressOf(solve_table_));
    int64_t unit_bytes = gpu::SolveCounters(args) * int64_t{sizeof(unsigned)};
    if (first_pass == 0 && end_pass == 2 * args.num_levels && gpu::HasTasks(plan.shape())) {
      int64_t most = 1;
      for (const SolveSystem& s : batch.systems) most = std::max(most, s.num_rhs);
      const int64_t panel = gpu::SolvePanelColumns(solve_limits_, most);
      const bool in_parts = batch.systems.size() == 1 && most > 4 && most <= panel;
      status = SetTasks(args, in_parts);
      if (!status.ok()) return status;
      unit_bytes = args.num_vectors * args.n * std::min(most, panel) * int64_t{sizeof(float)};
    }
    const int64_t units = (gpu::kSolveBytes - gpu::kTicketBytes) / unit_bytes;
    if (units < 1) return absl::InternalError("a plan of too many segments");
    const int64_t systems = static_cast<int64_t>(batch.systems.size());
    const int64_t at_once = std::min(gpu::kSystemsALaunch, units);
    for (int64_t first = 0; status.ok() && first < systems; first += at_once) {
      args.num_systems = std::min(at_once, systems - first);
      int64_t columns = 0;
      std::vector<SolveEntry> entries;
      for (const SolveSystem& s : batch.systems.subspan(first, args.num_systems)) {
        entries.push_back({s.factor, s.x, s.num_rhs, s.chains});
        columns = std::max(columns, s.num_rhs);
      }
      status = Set(solve_table_, std::as_bytes(std::span(entries)));
      args.panel_columns = gpu::SolvePanelColumns(solve_limits_, columns);
      args.most_columns = std::min(columns, args.panel_columns);
      const int64_t panels = (columns + args.panel_columns - 1) / args.panel_columns;
      // Items of work have numbers of 32 bits.
      const int64_t items = gpu::MostSolveItems(args);
      const double flops = plan.solve_flops(args.panel_columns * args.num_systems);
      const int64_t panels_at_once = std::max<int64_t>(
          1, std::min({panels, units / args.num_systems,
                       std::numeric_limits<uint32_t>::max() / (items * args.num_systems),
                       static_cast<int64_t>(gpu::kLongFlops / flops)}));
      const bool is_long = panels_at_once < panels;
      for (int64_t p = 0; status.ok() && p < panels; p += panels_at_once) {
        args.first_panel = p;
        args.num_panels = std::min(panels_at_once, panels - p);
        if (is_long) {
          // The pinned pieces take turns: this waits for the launch before the last one.
          status = device_->NextPinned().status();
          if (!status.ok()) return status;
          if (!wanted()) return absl::CancelledError("cancelled while solving");
        }
        status = LaunchCounted(args.num_systems * args.num_panels * unit_bytes,
                               [&](const Counted& counted) {
                                 args.tickets = counted.tickets;
                                 args.counters = counted.counters;
                                 args.stale = counted.stale;
                                 args.stale_words = counted.stale_words;
                                 return Launch(args, plan.shape().scalar);
                               });
        if (status.ok() && is_long) status = device_->MarkPinned();
      }
    }
    return status;
  }
  // The tasks of the solve.
  absl::Status SetTasks(SolveArgs& args, bool in_parts) {
    level_shapes_.clear();
    for (int32_t l = 0; l < args.num_levels; ++l) level_shapes_.push_back(args.levels[l].shape);
    SetKey(std::span<const LevelShape>(level_shapes_), {ListOf::kSolve, in_parts, 0});
    const absl::StatusOr<gpu::TaskList> list = task_lists_.Find(key_, [&](gpu::TaskList& list) {
      const gpu::FewTasks made(args, in_parts ? 2 * solve_limits_.multiprocessors : 0);
      list.count = static_cast<int64_t>(made.tasks().size());
      list.counted = made.num_vectors();
      const auto bytes = static_cast<int64_t>(made.tasks().size() * sizeof(gpu::SolveTask));
      return device_->UploadInOrder(const_cast<void*>(list.tasks), bytes,
                                    [&](void* to) { std::memcpy(to, made.tasks().data(), bytes); });
    });
    if (!list.ok()) return list.status();
    args.tasks = static_cast<const gpu::SolveTask*>(list->tasks);
    args.num_tasks = list->count;
    args.num_vectors = list->counted;
    return absl::OkStatus();
  }
  // A ticket and counters that are zero, and what the launch before had.
  struct Counted {
    unsigned long long* tickets;
    unsigned* counters;
    unsigned* stale;
    unsigned stale_words;
  };
  // bytes: of counters.
  absl::Status LaunchCounted(int64_t bytes,
                             absl::FunctionRef<LaunchResult(const Counted& counted)> launch) {
    std::byte* const mine = SolveMemory(solve_turn_);
    absl::Status status = device_->Launched(
        launch({reinterpret_cast<unsigned long long*>(mine),
                reinterpret_cast<unsigned*>(mine + gpu::kTicketBytes),
                reinterpret_cast<unsigned*>(SolveMemory(1 - solve_turn_)),
                static_cast<unsigned>(stale_bytes_ / int64_t{sizeof(unsigned)})}));
    if (!status.ok()) return status;
    stale_bytes_ = gpu::kTicketBytes + bytes;
    solve_turn_ = 1 - solve_turn_;
    return status;
  }
  LaunchResult Launch(const SolveArgs& args, Scalar scalar) {
    const gpu::Stream stream = device_->stream();
    if (args.tasks != nullptr) return gpu::SubstituteFew(args, solve_limits_, stream);
    const bool small = args.n <= gpu::kLargestSmallSolve;
    if (scalar == Scalar::kFloat64) {
      return small ? gpu::SubstituteSmall<double>(args, solve_limits_, stream)
                   : gpu::SubstituteLarge<double>(args, solve_limits_, stream);
    }
    return small ? gpu::SubstituteSmall<float>(args, solve_limits_, stream)
                 : gpu::SubstituteLarge<float>(args, solve_limits_, stream);
  }

  const std::unique_ptr<Device> device_;
  gpu::VectorCalls vectors_{*device_};
  gpu::LaunchGraphs graphs_;
  const gpu::SolveLimits solve_limits_;
  const bool early_;  // as LargeContext::early
  MemoryPool pool_;
  Table factor_table_ = {0, {}}, solve_table_ = {gpu::kTableBytes, {}};
  std::vector<FactorEntry> factor_entries_;  // this and the next three are kept for their memory
  std::vector<EliminateArgs> level_args_;
  std::vector<LevelShape> level_shapes_;
  std::vector<std::byte> key_;
  uint32_t epoch_ = 0;  // of the last launch that had flags
  gpu::TaskLists task_lists_;
  int64_t solve_turn_ = 0;   // which SolveMemory is zero
  int64_t stale_bytes_ = 0;  // of the other one, that are not
};

}  // namespace

const char* GpuBackendName() { return gpu::kBackendName; }

absl::StatusOr<std::unique_ptr<Backend>> CreateGpuBackend(const BackendOptions& options) {
  absl::StatusOr<std::unique_ptr<Device>> device =
      Device::Open(options.device, options.memory_bytes);
  if (!device.ok()) return device.status();
  int multiprocessor = 0, block = 0;
  absl::Status status =
      gpu::ToStatus(gpu::QueryShared(options.device, &multiprocessor, &block), "shared memory");
  if (!status.ok()) return status;
  const gpu::SolveLimits limits = {(*device)->info().parallelism, multiprocessor, block};
  bool early = false;
  for (const LaunchResult& result :
       {gpu::PrepareSmall(limits.block_shared_bytes),
        gpu::PrepareLarge(limits.block_shared_bytes, &early), gpu::PrepareVectors(),
        gpu::PrepareSubstituteSmall(limits), gpu::PrepareSubstituteLarge(limits),
        gpu::PrepareSubstituteFew(), gpu::PrepareEliminateFew(limits.block_shared_bytes)}) {
    status = gpu::ToStatus(result.error, result.kernel);
    if (!status.ok()) return status;
  }
  return std::make_unique<GpuBackend>(*std::move(device), limits, early);
}

}  // namespace blockd
