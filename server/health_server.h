// A second gRPC server, without TLS, that answers health checks and nothing else: for probes that
// have no certificate.
//
// Thread-safe. What may be asked of it costs next to nothing, and its own quota bounds its memory.
// A connection that asks nothing is closed soon, and where all places are taken the oldest ends, so
// that nobody takes a probe's place.
#ifndef BLOCKD_SERVER_HEALTH_SERVER_H_
#define BLOCKD_SERVER_HEALTH_SERVER_H_

#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/server.h>

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "server/net/connection_acceptor.h"
#include "server/net/listener.h"

namespace blockd::server {

class HealthServer {
 public:
  // The whole server is NOT_SERVING until it is told otherwise. INTERNAL if gRPC does not start.
  static absl::StatusOr<std::unique_ptr<HealthServer>> Start(Listener listener,
                                                             const ConnectionLimits& limits);
  ~HealthServer();

  void SetServing(const std::string& service, bool serving);  // "": the whole server
  int port() const { return connections_->port(); }

 private:
  HealthServer() = default;

  // Answers all else with UNIMPLEMENTED. gRPC starts no server that has health checks alone.
  grpc::CallbackGenericService nothing_else_;
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<ConnectionAcceptor> connections_;
};

}  // namespace blockd::server

#endif  // BLOCKD_SERVER_HEALTH_SERVER_H_
