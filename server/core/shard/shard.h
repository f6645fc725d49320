// One device with all that belongs to it: memory, what is kept there, and the lanes that feed it.
//
// Once the device failed, the shard is out of service, unless it is the last one (shards.h): what
// it held is gone, what waits is answered, and nothing new comes.
//
// Thread-safe. Operations (operations/) use it; it knows none of them.
#ifndef BLOCKD_SERVER_CORE_SHARD_SHARD_H_
#define BLOCKD_SERVER_CORE_SHARD_SHARD_H_

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "blockd/engine/solver.h"
#include "server/base/clock.h"
#include "server/core/cache/cache.h"
#include "server/core/cache/eviction_plan.h"
#include "server/core/common/metrics.h"
#include "server/core/common/request.h"
#include "server/core/shard/lane.h"
#include "server/core/shard/task.h"
#include "server/core/tenants/budget.h"

namespace blockd::server {

// Quotas and shares of tenants hold over all shards together. It outlives them.
struct DeviceBudgets {
  BudgetGroup device, pinned;
};

class Shard {
 public:
  // `index` is in every handle that it makes. `on_failure` is called once, with the first failure,
  // from the thread that met it. All but the solver outlive it.
  Shard(uint8_t index, std::unique_ptr<Solver> solver, const CoreLimits& limits,
        const ServerIdentity& server, DeviceBudgets* budgets, Metrics* metrics, Clock* clock,
        absl::AnyInvocable<void(const absl::Status&)> on_failure);
  ~Shard();  // runs what is left

  uint8_t index() const { return index_; }
  const CoreLimits& limits() const { return limits_; }
  Solver& solver() { return *solver_; }
  Metrics& metrics() { return *metrics_; }
  absl::Time Now() const { return clock_->Now(); }
  Budget& device() { return device_; }
  Budget& pinned() { return pinned_; }
  Cache& cache() { return cache_; }
  // Where Solves find their workspace, whatever else the memory is full of; null if there is none.
  MemoryPool* solve_reserve() { return solve_reserve_.get(); }

  // Queues a task, whose ticket has what its kind of work says, or answers it.
  void Submit(TaskPtr task);
  void Cancel(const RequestContext* context);

  // The plan, refused with RESOURCE_EXHAUSTED before it is made if even its blocks exceed the
  // memory.
  absl::StatusOr<std::shared_ptr<const EliminationPlan>> PlanFor(const MatrixForm& form,
                                                                 int64_t systems);
  // Evicts idle entries (PlanEviction says which) so that pieces of so many bytes, taken in this
  // order, fit into the pool. False, and nothing is evicted in vain, if they would not fit even
  // without all that are idle; or if others take what becomes free again and again.
  bool Defragment(std::span<const int64_t> pieces);
  // Bytes charged for one held system with a border of so many rows, and for its kept matrix.
  static int64_t FactorCharge(const EliminationPlan& plan, int64_t border_rows);
  static int64_t MatrixCharge(const MatrixForm& form);

  // INTERNAL: the device or a library failed.
  void Note(const absl::Status& status);
  absl::Status failure() const;  // the first; OK: healthy
  bool in_service() const { return in_service_; }
  // UNAVAILABLE with a RetryAfter for what waited here, where the device has failed meanwhile.
  absl::Status CheckInService() const;
  // Ends all that it holds, and takes nothing new. Once.
  void TakeOutOfService();
  // Between the two some lane is at work on the device; the time is counted once for all of them.
  void BeginWork() { CountBusy(1); }
  void EndWork() { CountBusy(-1); }
  // The cost of a task's run. Counts it in the metrics too.
  Cost MakeCost(const Task& task, const RanBatch& batch,
                absl::Duration received = absl::ZeroDuration());

  // Calls `look` with the time when the deadline comes; it returns the next one that it knows of.
  void SetWatch(absl::AnyInvocable<absl::Time(absl::Time)> look);
  void WatchBefore(absl::Time deadline);

  // Wakes whoever overslept (clock.h).
  void WakeOverdue();
  // Batches that wait for company close, and do not wait any more.
  void Flush();
  // Until what waits and runs now is done, as predicted: of the lane that takes longer; of both
  // together, which share the device.
  absl::Duration LongestBacklog() const { return std::max(solves_.Backlog(), factors_.Backlog()); }
  absl::Duration Backlog() const { return solves_.Backlog() + factors_.Backlog(); }

  struct State {
    std::string backend, name;
    int32_t parallelism = 0;
    int64_t memory_bytes = 0, free_bytes = 0, evictable_bytes = 0, factorizations = 0;
    int64_t solve_reserve_bytes = 0;  // of the pool, beside memory_bytes
    PoolStats pool;
    absl::Duration backlog;
    bool in_service = true;
    absl::Status failure;
  };
  State state();
  // Adds what it has to the sums, and a device to the list.
  void Sample(GaugeSample& sample);

 private:
  Lane& LaneOf(WorkKind kind) { return kind == WorkKind::kSolve ? solves_ : factors_; }
  void WatchLoop();
  void CountBusy(int change);

  const uint8_t index_;
  const CoreLimits limits_;
  Metrics* const metrics_;
  Clock* const clock_;
  absl::AnyInvocable<void(const absl::Status&)> on_failure_;
  const std::unique_ptr<Solver> solver_;
  DeviceBuffer reserve_;
  const std::unique_ptr<MemoryPool> solve_reserve_;
  Budget device_, pinned_;  // outlive the cache, whose entries hold reservations
  Cache cache_;

  absl::Mutex busy_mutex_;
  int busy_lanes_ ABSL_GUARDED_BY(busy_mutex_) = 0;
  absl::Time busy_since_ ABSL_GUARDED_BY(busy_mutex_);  // or counted until
  absl::Duration busy_ ABSL_GUARDED_BY(busy_mutex_);

  mutable absl::Mutex health_mutex_;
  absl::Status failure_ ABSL_GUARDED_BY(health_mutex_);
  std::atomic<bool> in_service_{true};

  absl::Mutex watch_mutex_;
  absl::CondVar watch_;
  absl::Time watched_ ABSL_GUARDED_BY(watch_mutex_) = absl::InfiniteFuture();  // looks next
  bool stop_ ABSL_GUARDED_BY(watch_mutex_) = false;
  absl::Mutex look_mutex_ ABSL_ACQUIRED_BEFORE(watch_mutex_);
  absl::AnyInvocable<absl::Time(absl::Time)> look_ ABSL_GUARDED_BY(look_mutex_);

  Lane solves_, factors_;
  std::thread watch_thread_;
};

}  // namespace blockd::server

#endif  // BLOCKD_SERVER_CORE_SHARD_SHARD_H_
