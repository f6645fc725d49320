#include "engine/gpu/task_list/runner.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <span>
#include <vector>

#include "engine/gpu/plan/plan_args.h"
#include "engine/gpu/runtime/workspace.h"
#include "engine/gpu/task_list/factor_tasks.h"
#include "engine/gpu/task_list/launch.h"
#include "engine/gpu/task_list/solve_tasks.h"
#include "engine/gpu/task_list/task_list.h"
#include "engine/gpu/task_list/task_lists.h"
#include "engine/gpu/vectors/launch.h"

namespace blockd::gpu::task_list {
namespace {

// How many systems share the multiprocessors: of many, all tiles are wide.
enum class BatchSize : uint8_t { kOne, kSome, kMany };

BatchSize SizeOf(const FactorBatch& batch) {
  const auto systems = static_cast<int64_t>(batch.systems.size());
  if (systems == 1) return BatchSize::kOne;
  return systems * Tiles(batch.plan->shape()) <= kTilesALaunch / 2 ? BatchSize::kSome
                                                                   : BatchSize::kMany;
}

// The kind of a list, which tells lists of the same levels apart.
struct KeyKind {
  enum class List : uint8_t { kFactor, kSolve } list;
  uint8_t first, second;
};

class TaskListRunner final : public Runner {
 public:
  TaskListRunner(Device& device, const DeviceLimits& limits, Counters& counters)
      : device_(device),
        limits_(limits),
        counters_(counters),
        lists_(device.workspace() + workspace::kLists) {}

  FactorNeeds Needs(const EliminationPlan& plan) const override {
    return {workspace::kSystemsALaunch, kTilesALaunch / Tiles(plan.shape()), ScratchBytes(plan)};
  }

  absl::Status Factor(const FactorGroup& group, absl::FunctionRef<bool()> wanted) override {
    const EliminationPlan& plan = group.plan();
    const auto form = [&](int64_t s) {
      return group.batch.systems[group.first + s].matrix.form.coupling;
    };
    EliminateTasksArgs args;
    args.n = static_cast<int>(plan.shape().block_size);
    const int64_t at_once = group.scratch.needs.systems_at_once;
    const int64_t launches = (group.count + at_once - 1) / at_once;
    const int64_t most = (group.count + launches - 1) / launches;
    for (int64_t first = 0; first < group.count; first += args.num_systems) {
      if (first > 0 && !wanted()) return absl::CancelledError("cancelled while factoring");
      // Tasks are for one form of coupling blocks.
      args.systems = group.systems + first;
      args.num_systems = 1;
      const int64_t end = std::min(group.count, first + most);
      while (first + args.num_systems < end && form(first + args.num_systems) == form(first)) {
        ++args.num_systems;
      }
      const absl::StatusOr<TaskList> list =
          FactorList(plan, form(first) == CouplingForm::kSuperdiagonal, SizeOf(group.batch));
      if (!list.ok()) return list.status();
      args.tasks = static_cast<const FactorTask*>(list->tasks);
      args.num_tasks = static_cast<unsigned>(list->count);
      args.num_counters = static_cast<unsigned>(list->counted);
      const int64_t bytes = args.num_systems * list->counted * int64_t{sizeof(unsigned)};
      absl::Status status = counters_.Launch(bytes, [&](const Counters::Piece& mine) {
        args.ticket = reinterpret_cast<unsigned*>(mine.ticket);
        args.counters = mine.counters;
        args.stale = mine.stale;
        args.stale_words = mine.stale_words;
        return Eliminate(args, device_.stream());
      });
      if (!status.ok()) return status;
    }
    return device_.Launched(
        FindOutcomes(group.systems, group.count, group.scratch.segments, device_.stream()));
  }

  absl::StatusOr<int64_t> PrepareSolve(const SolveBatch& batch, int64_t most_columns,
                                       int64_t panel_columns, SolveArgs& args) override {
    const bool in_parts =
        batch.systems.size() == 1 && most_columns > 4 && most_columns <= panel_columns;
    const absl::StatusOr<TaskList> list = SolveList(args, in_parts);
    if (!list.ok()) return list.status();
    args.tasks = static_cast<const SolveTask*>(list->tasks);
    args.num_tasks = list->count;
    args.num_vectors = list->counted;
    return args.num_vectors * args.n * std::min(most_columns, panel_columns) *
           int64_t{sizeof(float)};
  }
  LaunchResult Solve(Scalar, const SolveArgs& args) override {
    return Substitute(args, limits_, device_.stream());
  }

 private:
  template <typename Data>
  void SetKey(const std::vector<Data>& levels, KeyKind kind) {
    key_.clear();
    AppendToKey(std::span<const Data>(levels), key_);
    AppendToKey(std::span<const KeyKind>(&kind, 1), key_);
  }

  absl::StatusOr<TaskList> FactorList(const EliminationPlan& plan, bool superdiagonal,
                                      BatchSize size) {
    levels_.clear();
    for (size_t l = 0; l < plan.levels().size(); ++l) {
      levels_.push_back(ArgsOfLevel(plan, static_cast<int64_t>(l)));
    }
    SetKey(levels_, {KeyKind::List::kFactor, superdiagonal, static_cast<uint8_t>(size)});
    return lists_.Find(key_, [&](TaskList& list) {
      const int64_t lanes = 2 * limits_.multiprocessors;
      const auto fits = [](const FactorTasks& tasks) {
        return tasks.complete() &&
               tasks.num_tasks() * int64_t{sizeof(FactorTask)} <= workspace::kListBytes;
      };
      std::optional<FactorTasks> made;
      made.emplace(levels_, superdiagonal, size == BatchSize::kOne ? lanes : lanes / 4,
                   size == BatchSize::kMany);
      // Wide tasks are fewer.
      if (!fits(*made)) made.emplace(levels_, superdiagonal, lanes, true);
      if (!fits(*made)) return absl::InternalError("a plan of too many tasks");
      list.count = made->num_tasks();
      list.counted = made->num_counters();
      return device_.UploadInOrder(list.tasks, list.count * int64_t{sizeof(FactorTask)},
                                   [&](void* to) { made->Write(static_cast<FactorTask*>(to)); });
    });
  }

  // in_parts: tasks are for parts of the columns where fewer thread blocks are busy.
  absl::StatusOr<TaskList> SolveList(const SolveArgs& args, bool in_parts) {
    shapes_.clear();
    for (int32_t l = 0; l < args.num_levels; ++l) shapes_.push_back(args.levels[l].shape);
    SetKey(shapes_, {KeyKind::List::kSolve, in_parts, 0});
    return lists_.Find(key_, [&](TaskList& list) {
      const SolveTasks made(args, in_parts ? 2 * limits_.multiprocessors : 0);
      list.count = static_cast<int64_t>(made.tasks().size());
      list.counted = made.num_vectors();
      const auto bytes = list.count * int64_t{sizeof(SolveTask)};
      return device_.UploadInOrder(list.tasks, bytes, [&](void* to) {
        std::memcpy(to, made.tasks().data(), static_cast<size_t>(bytes));
      });
    });
  }

  Device& device_;
  const DeviceLimits& limits_;
  Counters& counters_;
  TaskLists lists_;
  std::vector<EliminateArgs> levels_;  // this and the next two are kept for their memory
  std::vector<LevelShape> shapes_;
  std::vector<std::byte> key_;
};

}  // namespace

std::unique_ptr<Runner> MakeRunner(Device& device, const DeviceLimits& limits, Counters& counters) {
  return std::make_unique<TaskListRunner>(device, limits, counters);
}

}  // namespace blockd::gpu::task_list
