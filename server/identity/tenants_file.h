// The operator's file of tenants (proto/blockd/v1/tenants.proto) as what the server uses of it.
//
// Pure functions. A wrong file is refused as a whole: INVALID_ARGUMENT with file, line, what came
// and what was expected.
#ifndef BLOCKD_SERVER_IDENTITY_TENANTS_FILE_H_
#define BLOCKD_SERVER_IDENTITY_TENANTS_FILE_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "server/core/common/tenant_config.h"
#include "server/identity/identity_table.h"

namespace blockd::server {

inline constexpr size_t kMaxTenantsFileBytes = size_t{1} << 20;

struct ListedTenants {
  TenantsConfig config;
  IdentityTable identities;
  friend bool operator==(const ListedTenants&, const ListedTenants&) = default;
};

// `name` is what messages call the file.
absl::StatusOr<ListedTenants> ParseTenants(absl::string_view text, absl::string_view name);
absl::StatusOr<ListedTenants> ReadTenantsFile(const std::string& path);

}  // namespace blockd::server

#endif  // BLOCKD_SERVER_IDENTITY_TENANTS_FILE_H_
