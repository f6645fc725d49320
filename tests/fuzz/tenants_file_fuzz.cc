// A tenants file of any text: it is refused in words that name it, or it is within what the file
// may say.
#include <string>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/match.h"
#include "absl/strings/string_view.h"
#include "server/identity/tenants_file.h"
#include "tests/fuzz/check.h"

namespace blockd::server {
namespace {

bool IsWithin(const std::optional<int64_t>& value) { return !value || *value >= 0; }
bool IsWithin(const std::optional<double>& value) { return !value || *value >= 0; }

void CheckTenant(const TenantConfig& tenant) {
  FUZZ_CHECK(tenant.weight >= 0.01 && tenant.weight <= 100);
  const TenantQuotas& quotas = tenant.quotas;
  FUZZ_CHECK(IsWithin(quotas.device_bytes) && IsWithin(quotas.pinned_bytes) &&
             IsWithin(quotas.handles) && IsWithin(quotas.host_bytes) &&
             IsWithin(quotas.queue_slots) && IsWithin(quotas.requests_per_second) &&
             IsWithin(quotas.upload_bytes_per_second));
}

}  // namespace
}  // namespace blockd::server

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace blockd::server;
  const absl::string_view text(reinterpret_cast<const char*>(data), size);
  const absl::StatusOr<ListedTenants> tenants = ParseTenants(text, "tenants");
  if (!tenants.ok()) {
    FUZZ_CHECK(absl::IsInvalidArgument(tenants.status()));
    FUZZ_CHECK(absl::StartsWith(tenants.status().message(), "tenants:"));
    return 0;
  }
  CheckTenant(tenants->config.default_tenant);
  absl::flat_hash_set<std::string> names;
  for (const TenantConfig& tenant : tenants->config.tenants) {
    CheckTenant(tenant);
    FUZZ_CHECK(!tenant.name.empty() && names.insert(tenant.name).second);
  }
  return 0;
}
