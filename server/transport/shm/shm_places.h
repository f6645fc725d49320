// How many sessions of shared memory there are, and how much memory they have: of all, and of each
// tenant its share.
//
// A tenant may have what a budget would leave it (core/budget.h): with --tenant_share s at most
// s / (1 - s) times what would then be left. Of the memory only where the tenants file gives it no
// `host_bytes`. Thread-safe.
#ifndef BLOCKD_SERVER_TRANSPORT_SHM_SHM_PLACES_H_
#define BLOCKD_SERVER_TRANSPORT_SHM_SHM_PLACES_H_

#include <cstdint>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "server/core/common/tenant.h"

namespace blockd::server {

class ShmPlaces : public std::enable_shared_from_this<ShmPlaces> {
 public:
  struct Use {
    int64_t sessions = 0, bytes = 0;
  };
  ShmPlaces(const Use& limits, double tenant_share, absl::Duration retry_delay)
      : limits_(limits), tenant_share_(tenant_share), retry_delay_(retry_delay) {}

  // A session with so much memory, until all of what is returned is gone. RESOURCE_EXHAUSTED with
  // LimitExceeded where it never fits, with QuotaExceeded where it is beyond the tenant's share;
  // UNAVAILABLE with RetryAfter where others have what there is.
  absl::StatusOr<std::shared_ptr<const void>> Take(const TenantPtr& tenant, int64_t bytes);
  Use used() const;

 private:
  absl::Status TakeIfFree(const Tenant& tenant, int64_t bytes) ABSL_LOCKS_EXCLUDED(mutex_);
  void GiveBack(const TenantPtr& tenant, int64_t bytes);
  absl::Status CheckShare(const Tenant& tenant, const char* name, int64_t Use::*what,
                          int64_t asked) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Use limits_;
  const double tenant_share_;
  const absl::Duration retry_delay_;
  mutable absl::Mutex mutex_;
  Use all_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<const Tenant*, Use> of_ ABSL_GUARDED_BY(mutex_);  // who has any
};

}  // namespace blockd::server

#endif  // BLOCKD_SERVER_TRANSPORT_SHM_SHM_PLACES_H_
