#include "server/identity/identities.h"

#include "absl/strings/str_cat.h"

namespace blockd::server {

absl::StatusOr<std::unique_ptr<Identities>> Identities::Load(
    std::string path, IdentityRules rules, std::optional<IdentityRules> unix_rules) {
  auto identities = std::unique_ptr<Identities>(
      new Identities(std::move(path), std::move(rules), std::move(unix_rules)));
  if (const absl::Status status = identities->Reload().status(); !status.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("--tenants_file: ", status.message()));
  }
  return identities;
}

std::shared_ptr<const ListedTenants> Identities::tenants() const {
  absl::MutexLock lock(&mutex_);
  return tenants_;
}

absl::StatusOr<bool> Identities::Reload() {
  if (path_.empty()) return false;
  absl::StatusOr<ListedTenants> read = ReadTenantsFile(path_);
  if (!read.ok()) return read.status();
  auto tenants = std::make_shared<const ListedTenants>(*std::move(read));
  absl::MutexLock lock(&mutex_);
  tenants_.swap(tenants);
  return !(*tenants == *tenants_);
}

}  // namespace blockd::server
