// Connections that were accepted here, served by gRPC.
#ifndef BLOCKD_SERVER_NET_HAND_OVER_H_
#define BLOCKD_SERVER_NET_HAND_OVER_H_

#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server_builder.h>

#include <memory>

#include "server/net/connection_acceptor.h"
#include "server/options/options.h"

namespace blockd::server {

// Returns a function that gives a connection to the server that `builder` will start, which serves
// it with `credentials`. Call that function only once the server has started.
ConnectionAcceptor::HandOver ServeAccepted(
    grpc::ServerBuilder* builder, const std::shared_ptr<grpc::ServerCredentials>& credentials);

// The limits of the port that serves calls.
ConnectionLimits LimitsOf(const ServerOptions& options);

// An error of one call must not end its connection, which behind a router carries the calls of
// many. gRPC 1.51 ends a connection whose metadata exceeds gRPC's limit, so that limit is above
// what a router passes. Compressed messages are answered with UNIMPLEMENTED before they are
// inflated: their size, and who sends them, would be known only after that.
void KeepFaultsToTheirCalls(grpc::ServerBuilder* builder);

}  // namespace blockd::server

#endif  // BLOCKD_SERVER_NET_HAND_OVER_H_
