// The output of `blockctl admin`, for people and for scripts.
#ifndef BLOCKD_CLIENT_BLOCKCTL_TEXT_ADMIN_TEXT_H_
#define BLOCKD_CLIENT_BLOCKCTL_TEXT_ADMIN_TEXT_H_

#include <string>
#include <vector>

#include "blockd/v1/admin.pb.h"
#include "client/blockctl/text/json.h"

namespace blockd::blockctl {

// A line each under a heading, as `blockctl list` has it, with the tenant before the handle; empty
// if there are none.
std::string TenantHandleTable(const std::vector<v1::TenantFactorization>& held);
void WriteTenantHandle(const v1::TenantFactorization& held, JsonWriter& json);

// A line a tenant, and one for each of its quotas below it: "device_bytes  1.5 GiB of 4.0 GiB".
std::string TenantTable(const std::vector<v1::Tenant>& tenants);
void WriteTenant(const v1::Tenant& tenant, JsonWriter& json);

}  // namespace blockd::blockctl

#endif  // BLOCKD_CLIENT_BLOCKCTL_TEXT_ADMIN_TEXT_H_
