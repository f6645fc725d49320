// The identity of a caller as gRPC knows it, which server/identity decides on.
#ifndef BLOCKD_SERVER_NET_PEER_H_
#define BLOCKD_SERVER_NET_PEER_H_

#include <grpcpp/server_context.h>

#include "server/identity/identities.h"

namespace blockd::server {

// Views of what `rpc` holds. Looks only at what `who` makes a difference of, as it costs something
// to look. gRPC 1.51 does not say which process is at the other end of a Unix socket: all of them
// are "unix:".
Peer PeerOf(const grpc::ServerContextBase& rpc, const Identities& who);

}  // namespace blockd::server

#endif  // BLOCKD_SERVER_NET_PEER_H_
