// Handles, and the factorizations that the server holds, for people and for scripts.
#ifndef BLOCKD_CLIENT_BLOCKCTL_HANDLE_TABLE_H_
#define BLOCKD_CLIENT_BLOCKCTL_HANDLE_TABLE_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "blockd/v1/blockd.pb.h"
#include "client/blockctl/json.h"

namespace blockd::blockctl {

// Handles are written in hexadecimal. A usage error for what is none.
std::string HandleText(const std::string& handle);
absl::StatusOr<std::string> ParseHandle(const std::string& text);

// A line each under a heading; empty if there are none.
std::string HandleTable(const std::vector<v1::FactorizationInfo>& infos);
void WriteHandle(const v1::FactorizationInfo& info, JsonWriter& json);

}  // namespace blockd::blockctl

#endif  // BLOCKD_CLIENT_BLOCKCTL_HANDLE_TABLE_H_
