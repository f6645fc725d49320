// All tenants: those of the configuration, and one for each other name that asks.
//
// Thread-safe. Outlives its tenants and every Budget.
#ifndef BLOCKD_SERVER_CORE_TENANTS_H_
#define BLOCKD_SERVER_CORE_TENANTS_H_

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
#include "server/core/tenant.h"

namespace blockd::server {

class Tenants {
 public:
  // Beside those of the configuration there are at most `max_others` at a time.
  explicit Tenants(int64_t max_others = 1024) : max_others_(max_others) {}

  // Of tenants that are there already, too: what one has beyond a new quota stays until it is given
  // back.
  void Configure(const TenantsConfig& config);

  // RESOURCE_EXHAUSTED if it would be one too many; those who have nothing make room.
  absl::StatusOr<TenantPtr> Get(std::string_view name);

  // In the order of their names.
  std::vector<TenantPtr> List() const;
  // Whether the configuration names it. Those that it does not may be many.
  bool IsListed(std::string_view name) const;

 private:
  void Apply(const TenantConfig& config, Tenant& tenant) const;
  int64_t CountOthers() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ForgetIdle() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const int64_t max_others_;
  mutable absl::Mutex mutex_;
  TenantConfig default_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<std::string, TenantConfig> listed_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<std::string, TenantPtr> tenants_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace blockd::server

#endif  // BLOCKD_SERVER_CORE_TENANTS_H_
