#include "server/hand_over.h"

namespace blockd::server {

ConnectionAcceptor::HandOver ServeAccepted(
    grpc::ServerBuilder* builder, const std::shared_ptr<grpc::ServerCredentials>& credentials) {
  using Type = grpc::ServerBuilder::experimental_type::ExternalConnectionType;
  const std::shared_ptr<grpc::experimental::ExternalConnectionAcceptor> acceptor =
      builder->experimental().AddExternalConnectionAcceptor(Type::FROM_FD, credentials);
  return [acceptor](const Accepted& accepted) {
    grpc::experimental::ExternalConnectionAcceptor::NewConnectionParameters connection;
    connection.listener_fd = accepted.listening_fd;
    connection.fd = accepted.fd;
    acceptor->HandleNewConnection(&connection);
  };
}

}  // namespace blockd::server
