// Host memory that GPUs read and write where it lies: pinned, or registered with the driver.
#ifndef BLOCKD_ENGINE_GPU_RUNTIME_REACHABLE_MEMORY_H_
#define BLOCKD_ENGINE_GPU_RUNTIME_REACHABLE_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "blockd/engine/memory_pool.h"

namespace blockd::gpu {

// The process has one set of addresses for all of its devices, and so one of these. Any thread.
class ReachableMemory {
 public:
  static ReachableMemory& Process();

  void Add(const void* begin, int64_t bytes);
  void Remove(const void* begin);

  // A look at it, for many questions.
  class Look {
   public:
    Look() : lock_(&Process().mutex_) {}
    bool Has(const void* begin, int64_t bytes) const;

   private:
    absl::ReaderMutexLock lock_;
  };

 private:
  mutable absl::Mutex mutex_;
  std::map<uintptr_t, int64_t> bytes_ ABSL_GUARDED_BY(mutex_);  // by where they begin
};

// Pinned memory for all devices, as a pool that owns it. The device is chosen.
absl::StatusOr<std::shared_ptr<MemoryPool>> MakePinnedPool(int64_t bytes);

// Pins memory that somebody else owns, for all devices. It may be given back only after
// UnregisterHost.
absl::Status RegisterHost(void* begin, int64_t bytes);
void UnregisterHost(void* begin);

}  // namespace blockd::gpu

#endif  // BLOCKD_ENGINE_GPU_RUNTIME_REACHABLE_MEMORY_H_
