// The server's metrics, for Prometheus: prefix blockd_, base units, never a label by handle, and by
// tenant only those that the operator has named.
//
// Every label set is resolved when the object is made, so that recording is an atomic addition or
// an observation under a histogram's own lock. Gauges whose truth lies elsewhere (pool, budget,
// cache) are sampled when somebody scrapes. Thread-safe; outlives the core and the handlers.
#ifndef BLOCKD_SERVER_CORE_COMMON_METRICS_H_
#define BLOCKD_SERVER_CORE_COMMON_METRICS_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "server/core/common/tenant.h"

namespace blockd::server {

// The method that a client called: the label `method`.
enum class Method {
  kFactor,
  kFactorStream,
  kSolve,
  kSolveStream,
  kSolveMany,
  kFactorSolve,
  kFactorSolveMany,
  kSelectedInverse,
  kSample,
  kSmooth,
  kRelease,
  kGetFactorization,
  kListFactorizations,
  kGetServerInfo,
  kGetPlan,
  kAdmin,  // every call of blockd.v1.Admin
};
inline constexpr int kMethods = 16;
const char* MethodName(Method method);  // "Factor", ...

// The kind of work in a batch: the label `kind`.
enum class WorkKind { kFactor, kSolve, kFactorSolve, kInverse, kSmooth };
inline constexpr int kWorkKinds = 5;

// Why a factorization is no longer held: the label `reason` of blockd_evictions_total.
enum class EvictionReason {
  kMemory,
  kFragmentation,
  kIdle,
  kReleased,
  kFailedRefactor,
  kAdmin,
  kDeviceFailed
};
inline constexpr int kEvictionReasons = 7;

// Why a handle was not found: the label `reason` of blockd_cache_misses_total, in the order of
// NotFoundReason.
inline constexpr int kMissReasons = 8;

struct PhaseTimes {
  absl::Duration queue, upload, compute, download;
};

// Labels of blockd_build_info.
struct BuildInfo {
  std::string version, backend, device, server;
};

// One device, sampled at a scrape: the label `device` is its place in the list.
struct DeviceSample {
  bool healthy = true;
  int64_t factorizations = 0;
  int64_t budget_bytes = 0;
  int64_t budget_reserved_bytes = 0;
  int64_t budget_evictable_bytes = 0;
  double backlog_seconds = 0;
  double busy_seconds = 0;
};

// Sampled at a scrape: sums over the devices that are in service.
struct GaugeSample {
  int64_t factorizations = 0;
  int64_t factorization_bytes = 0;
  int64_t pinned_factorizations = 0;
  int64_t budget_bytes = 0;  // the most that may be reserved
  int64_t budget_reserved_bytes = 0;
  int64_t budget_peak_reserved_bytes = 0;
  int64_t budget_evictable_bytes = 0;
  int64_t solve_reserve_bytes = 0;  // for the workspace of Solves, beside the budget
  int64_t host_budget_bytes = 0;
  int64_t host_budget_reserved_bytes = 0;
  int64_t host_budget_peak_reserved_bytes = 0;
  int64_t pool_bytes = 0;
  int64_t pool_used_bytes = 0;
  int64_t pool_peak_used_bytes = 0;
  int64_t pool_free_bytes = 0;
  int64_t pool_largest_free_bytes = 0;
  int64_t device_memory_bytes = 0;
  int64_t queued[kWorkKinds] = {};  // requests in the queue now
  std::vector<TenantUse> tenants;   // each is a label: those of the tenants file, and "other"
  std::vector<DeviceSample> devices;
  bool healthy = true;  // some device is
};

class Metrics {
 public:
  explicit Metrics(const BuildInfo& build);
  ~Metrics();
  Metrics(const Metrics&) = delete;
  Metrics& operator=(const Metrics&) = delete;

  // For the handlers: one call or, in a SolveStream, one request is over. `total` is from its
  // arrival to its answer.
  void RecordRequest(Method method, absl::StatusCode status, absl::Duration total);

  // For the core.
  void RecordPhases(Method method, const PhaseTimes& phases);
  void RecordBatch(WorkKind kind, int64_t requests, int64_t items, double flops);
  void RecordDeviceBusy(absl::Duration busy);
  void RecordEviction(EvictionReason reason);
  void RecordHit(int64_t handles = 1);
  void RecordMiss(int reason);  // a NotFoundReason, as a number
  void RecordNotPositiveDefinite();
  // NaN or infinity counts as 1, the largest that a backward error can be: it would spoil the sum.
  void RecordBackwardError(double error);

  // Called at each scrape, from the scraper's thread. Null removes it; returns after a call under
  // way.
  void SetSampler(absl::AnyInvocable<GaugeSample()> sampler);

  // The text that a scrape returns. Of blockd_request_seconds it has what somebody called.
  std::string Text() const;

 private:
  class Impl;
  std::shared_ptr<Impl> impl_;
};

}  // namespace blockd::server

#endif  // BLOCKD_SERVER_CORE_COMMON_METRICS_H_
