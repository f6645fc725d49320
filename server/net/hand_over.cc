#include "server/net/hand_over.h"

#include <grpc/grpc.h>

#include "server/base/descriptors.h"
#include "server/net/watched_reads.h"

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
    WatchReads(accepted.fd, accepted.peer);
    grpc::experimental::ExternalConnectionAcceptor::NewConnectionParameters connection;
    connection.listener_fd = accepted.listening_fd;
    connection.fd = accepted.fd;
    acceptor->HandleNewConnection(&connection);
  };
}

ConnectionLimits LimitsOf(const ServerOptions& options) {
  const int64_t limit = DescriptorLimit();
  return {.name = "--max_connections",
          .connections = options.max_connections,
          .descriptors = limit - ReservedDescriptors(limit)};
}

void KeepFaultsToTheirCalls(grpc::ServerBuilder* builder) {
  builder->AddChannelArgument(GRPC_ARG_MAX_METADATA_SIZE, kMostHeaderBytes);
  builder->AddChannelArgument(GRPC_ARG_ENABLE_PER_MESSAGE_DECOMPRESSION, 0);
  for (const grpc_compression_algorithm algorithm : {GRPC_COMPRESS_DEFLATE, GRPC_COMPRESS_GZIP}) {
    builder->SetCompressionAlgorithmSupportStatus(algorithm, false);
  }
}

}  // namespace blockd::server
