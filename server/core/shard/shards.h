// All devices of the server, as one: which of them new work goes to, which holds a handle, and what
// they hold together.
//
// A device that fails takes its shard out of service, and the others go on. The last one stays in
// service whatever it says: there is nowhere else to send anybody, and what it says is the truth.
//
// Thread-safe.
#ifndef BLOCKD_SERVER_CORE_SHARD_SHARDS_H_
#define BLOCKD_SERVER_CORE_SHARD_SHARDS_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "server/base/clock.h"
#include "server/core/cache/cache.h"
#include "server/core/common/handle.h"
#include "server/core/common/metrics.h"
#include "server/core/common/request.h"
#include "server/core/shard/placement.h"
#include "server/core/shard/shard.h"

namespace blockd::server {

struct DeviceFailure {
  size_t device = 0;  // its index
  absl::Status status;
};

class Shards {
 public:
  // One solver a device, 1 to kMaxShards. Clock and metrics outlive it.
  Shards(std::vector<std::unique_ptr<Solver>> solvers, const CoreLimits& limits,
         const ServerIdentity& server, Metrics* metrics, Clock* clock);

  size_t size() const { return shards_.size(); }
  Shard& operator[](size_t index) const { return *shards_[index]; }
  // That holds the handle, if it is held at all.
  Shard& Of(const Handle& handle) const { return *shards_[IndexOf(handle)]; }
  size_t IndexOf(const Handle& handle) const {
    return handle.shard() < shards_.size() ? handle.shard() : 0;
  }
  // The first in service.
  Shard& front() const;

  // Host memory of the first device that has some; all devices reach it (Backend::host_memory).
  // Null if none has.
  std::shared_ptr<MemoryPool> HostMemory() const;

  // `ask` fills in a device's offer for some work, or returns why the device cannot take it.
  using Ask = absl::FunctionRef<absl::Status(Shard& shard, Offer& offer)>;
  // The devices that can take the work, the best first (placement.h); if none can, the error of the
  // first.
  absl::StatusOr<std::vector<Shard*>> Order(Ask ask);

  // Over the caches of all; cache.h has the contracts.
  absl::StatusOr<int64_t> Release(const std::string& caller, std::span<const Handle> handles);
  absl::StatusOr<std::optional<Cache::Found>> FindKey(const std::string& caller,
                                                      const std::string& key,
                                                      const Cache::KeyRequest& request);
  std::vector<KeptStats> List(const std::string& caller, std::optional<Handle> after,
                              int64_t limit) const;
  std::vector<Cache::OwnedStats> ListAll(std::optional<Handle> after, int64_t limit) const;
  Cache::Changed EvictHandles(std::span<const Handle> handles, std::vector<Handle>* missing);
  Cache::Changed UnpinHandles(std::span<const Handle> handles, std::vector<Handle>* missing);

  void Cancel(const RequestContext* context);
  void WakeOverdue();
  void Flush();
  // Until the first of them has done what waits, as predicted.
  absl::Duration ShortestBacklog() const;
  void Sample(GaugeSample& sample) const;

  // Some device has not failed.
  bool healthy() const;
  // Called for each device that fails, one after another, and at once for those that have failed.
  void OnFailure(std::function<void(const DeviceFailure&)> callback);

 private:
  void OnFailureOf(size_t index, const absl::Status& status);
  // The handles that each of them would hold, in order.
  std::vector<std::vector<Handle>> ByShard(std::span<const Handle> handles) const;
  template <auto change>
  Cache::Changed Change(std::span<const Handle> handles, std::vector<Handle>* missing);

  DeviceBudgets budgets_;
  absl::Mutex health_mutex_;  // while it is decided who stays in service
  absl::Mutex callback_mutex_ ABSL_ACQUIRED_AFTER(health_mutex_);
  std::function<void(const DeviceFailure&)> on_failure_ ABSL_GUARDED_BY(callback_mutex_);
  std::vector<DeviceFailure> failures_ ABSL_GUARDED_BY(callback_mutex_);
  std::atomic<uint64_t> turn_{0};
  std::vector<std::unique_ptr<Shard>> shards_;
};

// Gives some work to the first of these that has the memory for it: `take` returns what its budgets
// say. If none has any, the error of the first.
absl::Status FirstWithRoom(std::span<Shard* const> order,
                           absl::FunctionRef<absl::Status(Shard& shard)> take);

}  // namespace blockd::server

#endif  // BLOCKD_SERVER_CORE_SHARD_SHARDS_H_
