// Lists of tasks that the host has made for plans: where they are in the device's memory, those
// that were last used.
#ifndef BLOCKD_ENGINE_GPU_TASK_LIST_TASK_LISTS_H_
#define BLOCKD_ENGINE_GPU_TASK_LIST_TASK_LISTS_H_

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace blockd::gpu {

struct TaskList {
  const void* tasks = nullptr;  // on the device
  int64_t count = 0;
  int64_t counted = 0;  // what a launch needs for a system: counters, or vectors
};

// From one thread at a time.
class TaskLists {
 public:
  static constexpr int64_t kMost = 8, kListBytes = int64_t{2} << 20;

  // memory: kMost * kListBytes of the device.
  explicit TaskLists(std::byte* memory) {
    for (Kept& kept : lists_) {
      kept.list.tasks = memory;
      memory += kListBytes;
    }
  }

  // The list of a key, which has all that it depends on; `make` puts it where list.tasks says, in
  // the order of the stream that uses it, and sets the rest. It is called only if the key is new.
  absl::StatusOr<TaskList> Find(std::span<const std::byte> key,
                                absl::FunctionRef<absl::Status(TaskList& list)> make) {
    Kept* oldest = &lists_[0];
    for (Kept& kept : lists_) {
      if (std::equal(key.begin(), key.end(), kept.key.begin(), kept.key.end())) {
        kept.last_use = ++uses_;
        return kept.list;
      }
      if (kept.last_use < oldest->last_use) oldest = &kept;
    }
    oldest->key.clear();
    absl::Status status = make(oldest->list);
    if (!status.ok()) return status;
    oldest->key.assign(key.begin(), key.end());
    oldest->last_use = ++uses_;
    return oldest->list;
  }

 private:
  struct Kept {
    std::vector<std::byte> key;  // empty: none
    TaskList list;
    uint64_t last_use = 0;
  };

  std::array<Kept, kMost> lists_;
  uint64_t uses_ = 0;
};

}  // namespace blockd::gpu

#endif  // BLOCKD_ENGINE_GPU_TASK_LIST_TASK_LISTS_H_
