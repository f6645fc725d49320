// Handles, and the factorizations that the server holds, for people and for scripts.
#ifndef BLOCKD_CLIENT_BLOCKCTL_TEXT_HANDLE_TABLE_H_
#define BLOCKD_CLIENT_BLOCKCTL_TEXT_HANDLE_TABLE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "blockd/v1/blockd.pb.h"
#include "client/blockctl/text/json.h"

namespace blockd::blockctl {

// A handle and, behind a router, the route to the server that holds it.
struct RoutedHandle {
  std::string handle;
  std::string route{};
  int64_t padding = 0;  // rows of the last block that the matrix does not have
};

// Written as HEX, or HEX@ROUTE; with padding as HEX+ROWS, or HEX+ROWS@ROUTE. A usage error for what
// is none.
std::string HandleText(const std::string& handle, const std::string& route = {},
                       int64_t padding = 0);
absl::StatusOr<RoutedHandle> ParseHandle(const std::string& text);

// A line each under a heading; empty if there are none. All are held along `route`.
std::string HandleTable(const std::vector<v1::FactorizationInfo>& infos,
                        const std::string& route = {});
// Its pieces.
std::string HandleHeading();
std::string HandleLine(const v1::FactorizationInfo& info, const std::string& route = {});

void WriteHandle(const v1::FactorizationInfo& info, const std::string& route, JsonWriter& json);
// Writes the fields alone, without the braces around them.
void WriteHandleFields(const v1::FactorizationInfo& info, const std::string& route,
                       JsonWriter& json);

}  // namespace blockd::blockctl

#endif  // BLOCKD_CLIENT_BLOCKCTL_TEXT_HANDLE_TABLE_H_
