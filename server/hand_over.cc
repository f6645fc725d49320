#include "server/hand_over.h"

#include <grpc/grpc.h>

namespace blockd::server {
namespace {

constexpr int kMostHeaderBytes = 1 << 20;  // as HTTP/2 counts them: 32 more for each entry

}  // namespace

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

void KeepFaultsToTheirCalls(grpc::ServerBuilder* builder) {
  builder->AddChannelArgument(GRPC_ARG_MAX_METADATA_SIZE, kMostHeaderBytes);
  builder->AddChannelArgument(GRPC_ARG_ENABLE_PER_MESSAGE_DECOMPRESSION, 0);
  for (const grpc_compression_algorithm algorithm : {GRPC_COMPRESS_DEFLATE, GRPC_COMPRESS_GZIP}) {
    builder->SetCompressionAlgorithmSupportStatus(algorithm, false);
  }
}

}  // namespace blockd::server
