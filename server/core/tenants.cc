#include "server/core/tenants.h"

#include <algorithm>
#include <limits>
#include <memory>

#include "absl/strings/str_cat.h"

namespace blockd::server {

std::string_view QuotaName(Resource resource) {
  switch (resource) {
    case Resource::kDeviceBytes:
      return "device_bytes";
    case Resource::kPinnedBytes:
      return "pinned_bytes";
    case Resource::kHandles:
      return "handles";
    case Resource::kHostBytes:
      return "host_bytes";
    case Resource::kQueueSlots:
      return "queue_slots";
  }
  return "";
}

void Tenants::Apply(const TenantConfig& config, Tenant& tenant) const {
  const TenantQuotas& quotas = config.quotas;
  const std::optional<int64_t> by_resource[kResources] = {quotas.device_bytes, quotas.pinned_bytes,
                                                          quotas.handles, quotas.host_bytes,
                                                          quotas.queue_slots};
  for (size_t i = 0; i < kResources; ++i) tenant.quotas_[i] = by_resource[i].value_or(-1);
  constexpr double kNoLimit = std::numeric_limits<double>::infinity();
  tenant.requests_.SetRate(quotas.requests_per_second.value_or(kNoLimit));
  tenant.upload_bytes_.SetRate(quotas.upload_bytes_per_second.value_or(kNoLimit));
  tenant.weight_ = config.weight;
  tenant.highest_class_ = config.highest_class;
}

void Tenants::Configure(const TenantsConfig& config) {
  absl::MutexLock lock(&mutex_);
  default_ = config.default_tenant;
  listed_.clear();
  for (const TenantConfig& tenant : config.tenants) listed_[tenant.name] = tenant;
  for (auto& [name, tenant] : tenants_) {
    const auto listed = listed_.find(name);
    Apply(listed != listed_.end() ? listed->second : default_, *tenant);
  }
}

absl::StatusOr<TenantPtr> Tenants::Get(std::string_view name) {
  const absl::string_view key(name.data(), name.size());
  absl::MutexLock lock(&mutex_);
  if (const auto found = tenants_.find(key); found != tenants_.end()) return found->second;
  const auto listed = listed_.find(key);
  if (listed == listed_.end() && CountOthers() >= max_others_) {
    ForgetIdle();
    if (CountOthers() >= max_others_) {
      return absl::ResourceExhaustedError(
          absl::StrCat("there are ", max_others_, " callers that are not in the tenants file"));
    }
  }
  auto tenant = std::make_shared<Tenant>(std::string(name));
  Apply(listed != listed_.end() ? listed->second : default_, *tenant);
  tenants_.emplace(name, tenant);
  return tenant;
}

int64_t Tenants::CountOthers() const {
  return std::count_if(tenants_.begin(), tenants_.end(),
                       [this](const auto& entry) ABSL_NO_THREAD_SAFETY_ANALYSIS {
                         return !listed_.contains(entry.first);
                       });
}

void Tenants::ForgetIdle() {
  absl::erase_if(tenants_, [](const auto& entry) {
    // Nobody else can refer to it from now on: references are made under this lock.
    return entry.second.use_count() == 1 && !entry.second->has_anything();
  });
}

std::vector<TenantPtr> Tenants::List() const {
  std::vector<TenantPtr> list;
  {
    absl::MutexLock lock(&mutex_);
    for (const auto& [name, tenant] : tenants_) list.push_back(tenant);
  }
  std::sort(list.begin(), list.end(),
            [](const TenantPtr& a, const TenantPtr& b) { return a->name() < b->name(); });
  return list;
}

bool Tenants::IsListed(std::string_view name) const {
  absl::MutexLock lock(&mutex_);
  return listed_.contains(absl::string_view(name.data(), name.size()));
}

}  // namespace blockd::server
