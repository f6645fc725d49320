// Factorizations that the server holds, for people and for scripts.
#ifndef BLOCKD_CLIENT_BLOCKCTL_HANDLE_TABLE_H_
#define BLOCKD_CLIENT_BLOCKCTL_HANDLE_TABLE_H_

#include <string>
#include <vector>

#include "blockd/v1/blockd.pb.h"
#include "client/blockctl/json.h"

namespace blockd::blockctl {

// A line each under a heading; empty if there are none.
std::string HandleTable(const std::vector<v1::FactorizationInfo>& infos);
void WriteHandle(const v1::FactorizationInfo& info, JsonWriter& json);

}  // namespace blockd::blockctl

#endif  // BLOCKD_CLIENT_BLOCKCTL_HANDLE_TABLE_H_
