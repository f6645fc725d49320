#include "server/core/tenants/tenants.h"

#include <algorithm>
#include <limits>
#include <memory>
#include <utility>

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
  absl::flat_hash_map<absl::string_view, const TenantConfig*> listed;
  for (const TenantConfig& tenant : config.tenants) {
    listed[tenant.name] = &tenant;
    if (tenants_.contains(tenant.name)) continue;
    tenants_.emplace(tenant.name,
                     Entry{.tenant = std::make_shared<Tenant>(tenant.name), .listed = true});
  }
  others_ = 0;
  for (auto& [name, entry] : tenants_) {
    const auto found = listed.find(name);
    const bool now_listed = found != listed.end();
    const TenantCounts counts = entry.tenant->counts();
    if (now_listed && !entry.listed) {
      others_before_ += counts - entry.not_others;
      entry.not_others = {};
    } else if (!now_listed && entry.listed) {
      entry.not_others = counts;
    }
    entry.listed = now_listed;
    others_ += now_listed || name == kOtherTenants ? 0 : 1;
    Apply(now_listed ? *found->second : default_, *entry.tenant);
  }
}

absl::StatusOr<TenantPtr> Tenants::Get(std::string_view name) {
  absl::MutexLock lock(&mutex_);
  const auto find = [&]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
    const auto found = tenants_.find(absl::string_view(name.data(), name.size()));
    return found == tenants_.end() ? nullptr : found->second.tenant;
  };
  if (TenantPtr known = find(); known != nullptr) return known;
  if (others_ >= max_others_) ForgetIdle();
  if (others_ >= max_others_) {
    // Names that callers give themselves cost nothing: they must not lock anybody out.
    name = kOtherTenants;
    if (TenantPtr shared = find(); shared != nullptr) return shared;
  }
  auto tenant = std::make_shared<Tenant>(std::string(name));
  Apply(default_, *tenant);
  tenants_.emplace(name, Entry{.tenant = tenant});
  others_ += name == kOtherTenants ? 0 : 1;
  return tenant;
}

void Tenants::ForgetIdle() {
  absl::erase_if(tenants_, [this](const auto& item) ABSL_NO_THREAD_SAFETY_ANALYSIS {
    const Entry& entry = item.second;
    // Nobody else can refer to it from now on: references are made under this lock.
    if (entry.listed || entry.tenant.use_count() != 1 || entry.tenant->has_anything()) return false;
    if (item.first == kOtherTenants) return false;
    others_before_ += entry.tenant->counts() - entry.not_others;
    --others_;
    return true;
  });
}

std::vector<Tenants::Known> Tenants::List() const {
  std::vector<Known> list;
  {
    absl::MutexLock lock(&mutex_);
    for (const auto& [name, entry] : tenants_) list.push_back({entry.tenant, entry.listed});
  }
  std::sort(list.begin(), list.end(),
            [](const Known& a, const Known& b) { return a.tenant->name() < b.tenant->name(); });
  return list;
}

std::vector<TenantUse> Tenants::Uses() const {
  std::vector<TenantUse> uses;
  TenantUse others{.name = kOtherTenants};
  {
    absl::MutexLock lock(&mutex_);
    others.counts = others_before_;
    for (const auto& [name, entry] : tenants_) {
      TenantUse& use = entry.listed ? uses.emplace_back(TenantUse{.name = name}) : others;
      use.counts += entry.tenant->counts() - entry.not_others;
      for (size_t i = 0; i < kResources; ++i) {
        use.used[i] += entry.tenant->used(static_cast<Resource>(i));
      }
    }
  }
  std::sort(uses.begin(), uses.end(),
            [](const TenantUse& a, const TenantUse& b) { return a.name < b.name; });
  uses.push_back(std::move(others));
  return uses;
}

}  // namespace blockd::server
