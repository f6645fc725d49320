// One device with all that belongs to it: memory, what is kept there, and the lanes that feed it.
//
// Thread-safe. Operations (operations/) use it; it knows none of them.
#ifndef BLOCKD_SERVER_CORE_SHARD_H_
#define BLOCKD_SERVER_CORE_SHARD_H_

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
#include "server/core/budget.h"
#include "server/core/clock.h"
#include "server/core/eviction_plan.h"
#include "server/core/factorization_cache.h"
#include "server/core/lane.h"
#include "server/core/metrics.h"
#include "server/core/permit.h"
#include "server/core/request.h"
#include "server/core/task.h"
#include "server/core/tenants.h"

namespace blockd::server {

class Shard {
 public:
  // All but the solver outlive it.
  Shard(std::unique_ptr<Solver> solver, const CoreLimits& limits, const ServerIdentity& server,
        Tenants* tenants, Metrics* metrics, Clock* clock);
  ~Shard();  // after Close

  const CoreLimits& limits() const { return limits_; }
  Solver& solver() { return *solver_; }
  Metrics& metrics() { return *metrics_; }
  absl::Time Now() const { return clock_->Now(); }
  Budget& device() { return device_; }
  Budget& pinned() { return pinned_; }
  Budget& handles() { return handles_; }
  FactorizationCache& cache() { return cache_; }
  // Where Solves find their workspace, whatever else the memory is full of; null if there is none.
  MemoryPool* solve_reserve() { return solve_reserve_.get(); }

  // Accepts a request that counts for so many: it is not over yet, the server does not drain, the
  // tenant's rate and the queue have room. INVALID_ARGUMENT for REALTIME without a deadline.
  absl::StatusOr<Permit> Admit(RequestContext& context, int64_t requests = 1);
  // Of a request that was accepted: another place in the queue.
  absl::StatusOr<Permit> AdmitAnother(const Permit& permit);
  // The tenant's rate of bytes that it sends.
  absl::Status TakeUpload(const Permit& permit, int64_t bytes);
  // Its class, not above the tenant's highest.
  static PriorityClass ClassOf(const RequestContext& context);

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
  // What one held system, and its kept matrix, is charged; bytes.
  static int64_t FactorCharge(const EliminationPlan& plan);
  static int64_t MatrixCharge(const MatrixForm& form);

  // INTERNAL: the device or a library failed.
  void Note(const absl::Status& status);
  bool healthy() const;
  void OnUnhealthy(absl::AnyInvocable<void(const absl::Status&)> callback);
  // Between the two some lane is at work on the device; the time is counted once for all of them.
  void BeginWork() { CountBusy(1); }
  void EndWork() { CountBusy(-1); }
  // What a task's run cost, which is counted too.
  Cost MakeCost(const Task& task, const RanBatch& batch,
                absl::Duration received = absl::ZeroDuration());

  // Calls `look` with the time when the deadline comes; it returns the next one that it knows of.
  void SetWatch(absl::AnyInvocable<absl::Time(absl::Time)> look);
  void WatchBefore(absl::Time deadline);

  // New work is refused from now on; batches that wait for company close.
  void Close();
  void WaitUntilIdle() { ongoing_.WaitUntilNone(); }

  void Sample(GaugeSample& sample);

 private:
  Lane& LaneOf(WorkKind kind) { return kind == WorkKind::kSolve ? solves_ : factors_; }
  absl::Status TakeSlot(Permit& permit);
  absl::Status TakeRate(const char* quota, TokenBucket& bucket, const Tenant& tenant, double amount,
                        absl::Time now) const;
  absl::Duration RetryDelay() const;
  void WatchLoop();
  void CountBusy(int change);

  const CoreLimits limits_;
  const std::string server_name_;
  Tenants* const tenants_;
  Metrics* const metrics_;
  Clock* const clock_;
  const std::unique_ptr<Solver> solver_;
  DeviceBuffer reserve_;
  const std::unique_ptr<MemoryPool> solve_reserve_;
  Budget device_, pinned_, handles_, slots_;  // outlive the cache, whose entries hold reservations
  FactorizationCache cache_;
  OngoingWork ongoing_;

  absl::Mutex busy_mutex_;
  int busy_lanes_ ABSL_GUARDED_BY(busy_mutex_) = 0;
  absl::Time busy_since_ ABSL_GUARDED_BY(busy_mutex_);  // or counted until

  mutable absl::Mutex health_mutex_;
  absl::Status failure_ ABSL_GUARDED_BY(health_mutex_);  // the first of the device; OK: healthy
  absl::AnyInvocable<void(const absl::Status&)> on_unhealthy_ ABSL_GUARDED_BY(health_mutex_);

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

#endif  // BLOCKD_SERVER_CORE_SHARD_H_
