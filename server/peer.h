// What gRPC knows of who made a call, for server/identity to decide on.
#ifndef BLOCKD_SERVER_PEER_H_
#define BLOCKD_SERVER_PEER_H_

#include <grpcpp/server_context.h>

#include "server/identity/identify.h"

namespace blockd::server {

// Views of what `rpc` holds. `client_certificates`: whether clients had to show one, as it costs
// something to look.
Peer PeerOf(const grpc::ServerContextBase& rpc, bool client_certificates);

}  // namespace blockd::server

#endif  // BLOCKD_SERVER_PEER_H_
