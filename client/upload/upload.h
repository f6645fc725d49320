// FactorStream: one header, then the systems in chunks, over one connection or several. Internal to
// the client.
#ifndef BLOCKD_CLIENT_UPLOAD_UPLOAD_H_
#define BLOCKD_CLIENT_UPLOAD_UPLOAD_H_

#include <cstdint>
#include <functional>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "blockd/client/system.h"
#include "blockd/v1/blockd.pb.h"
#include "client/rpc/connection.h"

namespace blockd::client {

// How many connections an upload of so many bytes goes over.
int UploadConnections(const ClientOptions& options, int64_t bytes);

// One attempt, along `sent_route`; `route` is that to the server that answered. Blocks, and returns
// when gRPC holds none of the systems' memory any more. A server that answers early (it refuses the
// header, or knows the key) ends the upload. With several connections the server says when others
// may join; one that never does gets all on the first.
absl::Status UploadAndFactor(const Connection& connection, int connections, absl::Time deadline,
                             const std::string& sent_route, const v1::FactorStreamHeader& header,
                             std::span<const SystemView> systems,
                             const std::function<void(int64_t, int64_t)>& progress,
                             v1::FactorReply* reply, std::string* route);

}  // namespace blockd::client

#endif  // BLOCKD_CLIENT_UPLOAD_UPLOAD_H_
