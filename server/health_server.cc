#include "server/health_server.h"

#include <grpc/grpc.h>
#include <grpcpp/health_check_service_interface.h>
#include <grpcpp/resource_quota.h>
#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server_builder.h>

#include <cstdint>
#include <utility>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "server/net/hand_over.h"

namespace blockd::server {
namespace {

constexpr size_t kHealthMemoryBytes = size_t{16} << 20;
constexpr int kHealthStreams = 16, kHealthMessageBytes = 4096, kSilenceMilliseconds = 5000;

}  // namespace

absl::StatusOr<std::unique_ptr<HealthServer>> HealthServer::Start(Listener listener,
                                                                  const ConnectionLimits& limits) {
  auto health = std::unique_ptr<HealthServer>(new HealthServer());
  grpc::EnableDefaultHealthCheckService(true);
  grpc::ServerBuilder builder;
  KeepFaultsToTheirCalls(&builder);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, kHealthStreams);
  builder.AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, kSilenceMilliseconds);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_IDLE_MS, kSilenceMilliseconds);
  builder.SetMaxReceiveMessageSize(kHealthMessageBytes);
  grpc::ResourceQuota quota("blockd-health");
  quota.Resize(kHealthMemoryBytes);
  builder.SetResourceQuota(quota);
  builder.RegisterCallbackGenericService(&health->nothing_else_);
  ConnectionAcceptor::HandOver hand_over =
      ServeAccepted(&builder, grpc::InsecureServerCredentials());
  health->server_ = builder.BuildAndStart();
  if (health->server_ == nullptr) return absl::InternalError("gRPC does not start");
  health->SetServing("", false);
  health->connections_ = std::make_unique<ConnectionAcceptor>(
      std::move(listener), limits, std::move(hand_over), [](bool /*full*/) {});
  health->connections_->Start();
  return health;
}

HealthServer::~HealthServer() {
  if (connections_ != nullptr) connections_->Stop();
  // Nobody is waited for: who watches learns it from the connection.
  if (server_ != nullptr) server_->Shutdown(absl::ToChronoTime(absl::Now()));
}

void HealthServer::SetServing(const std::string& service, bool serving) {
  server_->GetHealthCheckService()->SetServingStatus(service, serving);
}

}  // namespace blockd::server
