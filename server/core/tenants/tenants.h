// All tenants: those of the configuration, and one for each other name that asks.
//
// Thread-safe. Outlives its tenants and every Budget.
#ifndef BLOCKD_SERVER_CORE_TENANTS_TENANTS_H_
#define BLOCKD_SERVER_CORE_TENANTS_TENANTS_H_

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "server/core/common/tenant.h"

namespace blockd::server {

// The name of all that the configuration does not name. No tenant of the file has it.
inline constexpr char kOtherTenants[] = "other";

class Tenants {
 public:
  // Beside those of the configuration there are at most `max_others` at a time.
  explicit Tenants(int64_t max_others = 1024) : max_others_(max_others) {}

  // Applies to existing tenants too: what one has above a new quota stays until it is given back.
  void Configure(const TenantsConfig& config);

  // Tenants that hold nothing make room. A name beyond the limit shares the tenant kOtherTenants.
  absl::StatusOr<TenantPtr> Get(std::string_view name);

  // All configured tenants and all others that exist, by name.
  struct Known {
    TenantPtr tenant;
    bool listed = false;  // the configuration names it
  };
  std::vector<Known> List() const;

  // For a scrape: the configured tenants, and last all others as one. No count ever goes down, even
  // if a tenant is forgotten or newly configured: its earlier counts stay among the others. As long
  // as there are `max_others` at most.
  std::vector<TenantUse> Uses() const;

 private:
  struct Entry {
    TenantPtr tenant;
    bool listed = false;
    TenantCounts not_others = {};  // what it had counted when it ceased to be listed
  };

  void Apply(const TenantConfig& config, Tenant& tenant) const;
  void ForgetIdle() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const int64_t max_others_;
  mutable absl::Mutex mutex_;
  TenantConfig default_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<std::string, Entry> tenants_ ABSL_GUARDED_BY(mutex_);
  int64_t others_ ABSL_GUARDED_BY(mutex_) = 0;  // of those, not listed
  // Counted among the others of tenants that are none of them any more.
  TenantCounts others_before_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace blockd::server

#endif  // BLOCKD_SERVER_CORE_TENANTS_TENANTS_H_
