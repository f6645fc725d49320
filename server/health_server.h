// A second gRPC server, without TLS, that answers health checks and nothing else: for probes that
// have no certificate.
//
// Thread-safe. What may be asked of it costs next to nothing, and its own quota bounds its memory.
#ifndef BLOCKD_SERVER_HEALTH_SERVER_H_
#define BLOCKD_SERVER_HEALTH_SERVER_H_

#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/server.h>

#include <memory>
#include <string>
#include <utility>

#include "absl/status/statusor.h"

namespace blockd::server {

class HealthServer {
 public:
  // On `host_and_port`; ALREADY_EXISTS if it is taken. Says NOT_SERVING until it is told otherwise.
  static absl::StatusOr<std::unique_ptr<HealthServer>> Start(const std::string& host_and_port,
                                                             std::string service);
  ~HealthServer();

  // Of the whole server, and of the service.
  void SetServing(bool serving);
  int port() const { return port_; }

 private:
  explicit HealthServer(std::string service) : service_(std::move(service)) {}

  const std::string service_;
  // Answers all else with UNIMPLEMENTED. gRPC starts no server that has health checks alone.
  grpc::CallbackGenericService nothing_else_;
  std::unique_ptr<grpc::Server> server_;
  int port_ = 0;
};

}  // namespace blockd::server

#endif  // BLOCKD_SERVER_HEALTH_SERVER_H_
