// The limits of each tenant: quotas, weight, highest class. Plain data, from the operator's tenants
// file or by default.
//
// Values; shared as const once they are made.
#ifndef BLOCKD_SERVER_CORE_COMMON_TENANT_CONFIG_H_
#define BLOCKD_SERVER_CORE_COMMON_TENANT_CONFIG_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace blockd::server {

// The more urgent, the smaller.
enum class PriorityClass : uint8_t { kRealtime, kInteractive, kBulk };

// Absent: the fair share. Zero: none at all.
struct TenantQuotas {
  std::optional<int64_t> device_bytes{};
  std::optional<int64_t> pinned_bytes{};  // of factorizations that are pinned or leased
  std::optional<int64_t> handles{};
  std::optional<int64_t> host_bytes{};
  std::optional<int64_t> queue_slots{};
  std::optional<double> requests_per_second{};
  std::optional<double> upload_bytes_per_second{};
  friend bool operator==(const TenantQuotas&, const TenantQuotas&) = default;
};

struct TenantConfig {
  std::string name{};
  TenantQuotas quotas{};
  double weight = 1;  // of its share of the device, beside others of its class
  PriorityClass highest_class = PriorityClass::kInteractive;
  friend bool operator==(const TenantConfig&, const TenantConfig&) = default;
};

struct TenantsConfig {
  TenantConfig default_tenant;        // of each one that is not among `tenants`; its name is empty
  std::vector<TenantConfig> tenants;  // in the file's order, each name once
  friend bool operator==(const TenantsConfig&, const TenantsConfig&) = default;
};

}  // namespace blockd::server

#endif  // BLOCKD_SERVER_CORE_COMMON_TENANT_CONFIG_H_
