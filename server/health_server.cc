#include "server/health_server.h"

#include <grpc/grpc.h>
#include <grpcpp/health_check_service_interface.h>
#include <grpcpp/resource_quota.h>
#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server_builder.h>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "server/reflection.h"

namespace blockd::server {
namespace {

constexpr size_t kHealthMemoryBytes = size_t{16} << 20;
constexpr int kHealthStreams = 16, kHealthMessageBytes = 4096;

}  // namespace

absl::StatusOr<std::unique_ptr<HealthServer>> HealthServer::Start(const std::string& host_and_port,
                                                                  std::string service) {
  auto health = std::unique_ptr<HealthServer>(new HealthServer(std::move(service)));
  grpc::EnableDefaultHealthCheckService(true);
  grpc::ServerBuilder builder;
  SetReflection(false, &builder);
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, kHealthStreams);
  builder.SetMaxReceiveMessageSize(kHealthMessageBytes);
  grpc::ResourceQuota quota("blockd-health");
  quota.Resize(kHealthMemoryBytes);
  builder.SetResourceQuota(quota);
  builder.RegisterCallbackGenericService(&health->nothing_else_);
  builder.AddListeningPort(host_and_port, grpc::InsecureServerCredentials(), &health->port_);
  health->server_ = builder.BuildAndStart();
  if (health->server_ == nullptr || health->port_ == 0) {
    return absl::AlreadyExistsError(
        absl::StrCat("cannot serve health checks on ", host_and_port,
                     ": is the port taken, or the address not of this machine? (--health_port; -1 "
                     "turns it off)"));
  }
  health->SetServing(false);
  return health;
}

HealthServer::~HealthServer() {
  // Nobody is waited for: who watches learns it from the connection.
  if (server_ != nullptr) server_->Shutdown(absl::ToChronoTime(absl::Now()));
}

void HealthServer::SetServing(bool serving) {
  server_->GetHealthCheckService()->SetServingStatus(serving);
  server_->GetHealthCheckService()->SetServingStatus(service_, serving);
}

}  // namespace blockd::server
