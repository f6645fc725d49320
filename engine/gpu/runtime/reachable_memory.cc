#include "engine/gpu/runtime/reachable_memory.h"

#include <atomic>
#include <iterator>
#include <utility>

#include "engine/gpu/arch/vendor.h"
#include "engine/gpu/runtime/pinned_ring.h"

namespace blockd::gpu {
namespace {

// That of the last pool: one that the process uses anyway.
std::atomic<int> registering_device = 0;

// Pinned, and reachable for as long as it is.
class PinnedSlab {
 public:
  static absl::StatusOr<std::unique_ptr<PinnedSlab>> Make(int64_t bytes) {
    void* data = nullptr;
    absl::Status status =
        ToStatus(AllocatePinned(&data, static_cast<size_t>(bytes)), "pinned memory");
    if (!status.ok()) return status;
    return std::unique_ptr<PinnedSlab>(new PinnedSlab(data, bytes));
  }
  ~PinnedSlab() {
    ReachableMemory::Process().Remove(data_);
    (void)FreePinned(data_);  // an error here has nobody to hear it
  }
  void* data() const { return data_; }

 private:
  PinnedSlab(void* data, int64_t bytes) : data_(data) {
    ReachableMemory::Process().Add(data, bytes);
  }
  void* const data_;
};

struct PinnedPool {
  PinnedPool(std::unique_ptr<PinnedSlab> taken, int64_t bytes)
      : slab(std::move(taken)), pool(slab->data(), bytes) {}
  const std::unique_ptr<PinnedSlab> slab;
  MemoryPool pool;
};

}  // namespace

ReachableMemory& ReachableMemory::Process() {
  static ReachableMemory& memory = *new ReachableMemory;
  return memory;
}

void ReachableMemory::Add(const void* begin, int64_t bytes) {
  absl::MutexLock lock(&mutex_);
  bytes_[reinterpret_cast<uintptr_t>(begin)] = bytes;
}

void ReachableMemory::Remove(const void* begin) {
  absl::MutexLock lock(&mutex_);
  bytes_.erase(reinterpret_cast<uintptr_t>(begin));
}

bool ReachableMemory::Look::Has(const void* begin, int64_t bytes) const {
  Process().mutex_.AssertReaderHeld();
  const auto& all = Process().bytes_;
  const auto at = reinterpret_cast<uintptr_t>(begin);
  auto after = all.upper_bound(at);
  if (after == all.begin()) return false;
  const auto& [first, size] = *std::prev(after);
  return at - first <= static_cast<uintptr_t>(size) &&
         bytes <= size - static_cast<int64_t>(at - first);
}

absl::Status RegisterHost(void* begin, int64_t bytes) {
  const int device = registering_device.load();
  absl::Status status = ToStatus(BLOCKD_GPU(SetDevice)(device), "choosing the device");
  if (status.ok()) {
    status = ToStatus(BLOCKD_GPU(HostRegister)(begin, static_cast<size_t>(bytes),
                                               BLOCKD_GPU(HostRegisterPortable)),
                      "registering host memory");
  }
  if (status.ok()) ReachableMemory::Process().Add(begin, bytes);
  return status;
}

void UnregisterHost(void* begin) {
  ReachableMemory::Process().Remove(begin);
  if (BLOCKD_GPU(SetDevice)(registering_device.load()) != kSuccess) return;
  (void)BLOCKD_GPU(HostUnregister)(begin);  // an error here has nobody to hear it
}

absl::StatusOr<std::shared_ptr<MemoryPool>> MakePinnedPool(int64_t bytes) {
  int device = 0;
  if (BLOCKD_GPU(GetDevice)(&device) == kSuccess) registering_device = device;
  bytes = bytes / MemoryPool::kAlignment * MemoryPool::kAlignment;
  absl::StatusOr<std::unique_ptr<PinnedSlab>> slab = PinnedSlab::Make(bytes);
  if (!slab.ok()) return slab.status();
  auto owner = std::make_shared<PinnedPool>(*std::move(slab), bytes);
  return std::shared_ptr<MemoryPool>(owner, &owner->pool);
}

}  // namespace blockd::gpu
