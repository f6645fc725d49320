// Lists of tasks that the host has made for plans: where they are in the device's memory, those
// that were last used.
#ifndef BLOCKD_ENGINE_GPU_TASK_LIST_TASK_LISTS_H_
#define BLOCKD_ENGINE_GPU_TASK_LIST_TASK_LISTS_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/gpu/runtime/recently_used.h"
#include "engine/gpu/runtime/workspace.h"

namespace blockd::gpu {

struct TaskList {
  void* tasks = nullptr;  // on the device, workspace::kListBytes
  int64_t count = 0;
  int64_t counted = 0;  // what a launch needs for a system: counters, or vectors
};

// From one thread at a time.
class TaskLists {
 public:
  // memory: workspace::kMostLists * kListBytes of the device.
  explicit TaskLists(std::byte* memory) : memory_(memory) {}

  // The list of a key, which has all that it depends on; `make` puts it where list.tasks says, in
  // the order of the stream that uses it, and sets the rest. It is called only if the key is new.
  absl::StatusOr<TaskList> Find(std::span<const std::byte> key,
                                absl::FunctionRef<absl::Status(TaskList& list)> make) {
    if (const TaskList* const found = lists_.Find(key)) return *found;
    TaskList list;
    if (!spare_.empty()) {
      list.tasks = spare_.back();
      spare_.pop_back();
    } else if (lists_.size() < static_cast<size_t>(workspace::kMostLists)) {
      list.tasks = memory_ + static_cast<int64_t>(lists_.size()) * workspace::kListBytes;
    } else {
      list.tasks = lists_.TakeOldest().tasks;
    }
    absl::Status status = make(list);
    if (!status.ok()) {
      spare_.push_back(list.tasks);
      return status;
    }
    return *lists_.Add(key, list);
  }

 private:
  std::byte* const memory_;
  RecentlyUsed<TaskList> lists_;
  std::vector<void*> spare_;  // memory of lists that could not be made
};

}  // namespace blockd::gpu

#endif  // BLOCKD_ENGINE_GPU_TASK_LIST_TASK_LISTS_H_
