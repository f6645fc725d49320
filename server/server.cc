#include "server/server.h"

#include <grpc/grpc.h>
#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/health_check_service_interface.h>
#include <grpcpp/resource_quota.h>
#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>
#include <grpcpp/support/method_handler.h>
#include <prometheus/exposer.h>

#include <algorithm>
#include <cstdio>
#include <exception>
#include <fstream>
#include <sstream>
#include <thread>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "blockd/engine/backend_registry.h"
#include "blockd/engine/solver.h"
#include "server/core/clock.h"
#include "server/logging.h"
#include "server/thread_stacks.h"
#include "server/transport/call.h"
#include "server/transport/call_queues.h"
#include "server/transport/solver_service.h"

namespace blockd::server {
namespace {

constexpr char kServiceName[] = "blockd.v1.Solver";

std::string HostPort(const std::string& address, int port) {
  const bool ipv6 = absl::StrContains(address, ":") && !absl::StartsWith(address, "[");
  return ipv6 ? absl::StrCat("[", address, "]:", port) : absl::StrCat(address, ":", port);
}

absl::StatusOr<std::string> ReadFile(absl::string_view flag, const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  if (!file || !(text << file.rdbuf())) {
    return absl::InvalidArgumentError(
        absl::StrCat("--", flag, "=", path, ": expected a file that can be read and is not empty"));
  }
  return text.str();
}

absl::StatusOr<std::shared_ptr<grpc::ServerCredentials>> Credentials(const ServerOptions& options) {
  if (options.tls_cert_file.empty()) return grpc::InsecureServerCredentials();
  absl::StatusOr<std::string> cert = ReadFile("tls_cert_file", options.tls_cert_file);
  if (!cert.ok()) return cert.status();
  absl::StatusOr<std::string> key = ReadFile("tls_key_file", options.tls_key_file);
  if (!key.ok()) return key.status();
  grpc::SslServerCredentialsOptions tls;
  tls.pem_key_cert_pairs.push_back({*key, *cert});
  if (!options.tls_client_ca_file.empty()) {
    absl::StatusOr<std::string> ca = ReadFile("tls_client_ca_file", options.tls_client_ca_file);
    if (!ca.ok()) return ca.status();
    tls.pem_root_certs = *std::move(ca);
    tls.client_certificate_request = GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY;
  }
  return grpc::SslServerCredentials(tls);
}

// Channel arguments are ints.
int ClampedInt(int64_t value) { return static_cast<int>(std::min<int64_t>(value, INT32_MAX)); }
int Milliseconds(absl::Duration time) { return ClampedInt(absl::ToInt64Milliseconds(time)); }

void SetLimits(const ServerOptions& options, grpc::ServerBuilder* builder) {
  // --max_message_bytes is checked as a message arrives here, which says so with a typed detail.
  // gRPC has held the message whole before it compares it with a limit of its own, so that would
  // save nothing; what bounds messages on their way in is the quota below.
  builder->SetMaxReceiveMessageSize(-1);
  builder->SetMaxSendMessageSize(-1);
  builder->AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);  // two servers would split the handles
  builder->AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS,
                              ClampedInt(options.max_connection_streams));
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, Milliseconds(options.keepalive_time));
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS,
                              Milliseconds(options.keepalive_timeout));
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  builder->AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS,
                              Milliseconds(options.min_ping_interval));
  builder->AddChannelArgument(GRPC_ARG_MAX_METADATA_SIZE, kMaxMetadataBytes);
  builder->AddChannelArgument(GRPC_ARG_HTTP2_MAX_FRAME_SIZE, ClampedInt(options.http2_frame_bytes));
  builder->AddChannelArgument(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES,
                              ClampedInt(options.http2_window_bytes));
  grpc::ResourceQuota quota("blockd");
  quota.Resize(static_cast<size_t>(options.grpc_memory_bytes));
  if (options.grpc_max_threads > 0) quota.SetMaxThreads(options.grpc_max_threads);
  builder->SetResourceQuota(quota);
}

// Reflection lists the services that gRPC knows by a method: this one is called by its name's path,
// without a method's name, which is no method.
class ReflectedName final : public grpc::Service {
 public:
  explicit ReflectedName(const std::string& service) : path_(absl::StrCat("/", service, "/")) {
    AddMethod(new grpc::internal::RpcServiceMethod(path_.c_str(),
                                                   grpc::internal::RpcMethod::NORMAL_RPC,
                                                   new grpc::internal::UnknownMethodHandler("")));
  }

 private:
  const std::string path_;
};

// A fraction of the shortest time that a call is watched for.
absl::Duration LookEvery(const ServerOptions& options) {
  const absl::Duration shortest =
      std::min({options.stream_idle_timeout, options.max_upload_duration, options.reply_timeout});
  return std::clamp(shortest / 8, absl::Milliseconds(5), absl::Seconds(1));
}

// Written under another name first, so that a script never reads half of it.
absl::Status WritePortFile(const std::string& path, int grpc_port, int metrics_port) {
  if (path.empty()) return absl::OkStatus();
  const std::string draft = path + ".new";
  std::ofstream file(draft);
  file << "grpc=" << grpc_port << "\nmetrics=" << metrics_port << "\n";
  file.close();
  if (!file || std::rename(draft.c_str(), path.c_str()) != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("--port_file=", path, ": expected a path that can be written"));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<prometheus::Exposer>> StartExposer(const ServerOptions& options) {
  if (options.metrics_port < 0) return nullptr;
  UseRoomyStacks();
  const std::string bind = HostPort(options.metrics_address, options.metrics_port);
  try {  // the library throws where it cannot listen
    return std::make_unique<prometheus::Exposer>(bind, 1);
  } catch (const std::exception&) {
    return absl::AlreadyExistsError(
        absl::StrCat("cannot serve metrics on ", bind,
                     ": is the port taken, or the address not of this machine? "
                     "(--metrics_address, --metrics_port; -1 turns metrics off)"));
  }
}

}  // namespace

// Members are destroyed in reverse order: first gRPC, then the core, last what they use.
class Server::Impl {
 public:
  explicit Impl(const ServerOptions& options) : options(options) {}

  // `backend`: null for the one that the options name.
  absl::Status Start(std::unique_ptr<Backend> backend) {
    if (absl::Status status = StartCore(std::move(backend)); !status.ok()) return status;
    absl::StatusOr<std::unique_ptr<prometheus::Exposer>> started = StartExposer(options);
    if (!started.ok()) return started.status();
    exposer = *std::move(started);
    if (exposer != nullptr) {
      metrics_port = exposer->GetListeningPorts().front();
      exposer->RegisterCollectable(metrics->collectable());
    }
    if (absl::Status status = StartGrpc(); !status.ok()) return status;
    SetServing(true);
    core->OnUnhealthy([this](const absl::Status& failure) { OnDeviceFailure(failure); });
    if (absl::Status status = WritePortFile(options.port_file, grpc_port, metrics_port);
        !status.ok()) {
      return status;
    }
    LogServing();
    return absl::OkStatus();
  }

  void StartDrain() {
    absl::MutexLock lock(&drain_mutex);
    BeginDrain();
  }

  bool Drain() {
    absl::MutexLock lock(&drain_mutex);
    if (drained) return in_time;
    drained = true;
    if (grpc == nullptr) return in_time;  // never served
    BeginDrain();
    // Tells every connection to go away, and waits for its calls.
    std::thread going_away(
        [this] { grpc->Shutdown(absl::ToChronoTime(absl::Now() + options.drain_timeout)); });
    in_time = state->tracker.WaitUntilIdle(options.drain_timeout);
    // What is still under way is cancelled, and ends between two steps; so are those who only
    // watch.
    grpc_server_cancel_all_calls(grpc->c_server());
    going_away.join();
    calls->WaitForLastCall();
    core->Drain();
    state->tracker.WaitUntilIdle(absl::InfiniteDuration());
    calls->Stop();
    LogLine(LogLevel::kInfo, "stopped").Add("cancelled_work", in_time ? "no" : "yes").Write();
    return in_time;
  }

  const ServerOptions options;
  RealClock clock;
  std::unique_ptr<Metrics> metrics;
  std::unique_ptr<prometheus::Exposer> exposer;
  std::unique_ptr<SolverCore> core;
  std::unique_ptr<ServiceState> state;
  const std::unique_ptr<grpc::Service> reflected = std::make_unique<ReflectedName>(kServiceName);
  std::unique_ptr<CallQueues> calls;
  std::unique_ptr<grpc::Server> grpc;
  int grpc_port = 0;
  int metrics_port = -1;
  absl::Mutex drain_mutex;
  bool draining ABSL_GUARDED_BY(drain_mutex) = false;
  bool drained ABSL_GUARDED_BY(drain_mutex) = false;
  bool in_time ABSL_GUARDED_BY(drain_mutex) = true;  // nothing had to be cancelled

 private:
  void BeginDrain() ABSL_EXCLUSIVE_LOCKS_REQUIRED(drain_mutex) {
    if (draining || grpc == nullptr) return;
    draining = true;
    LogLine(LogLevel::kInfo, "draining").Write();
    SetServing(false);
    state->tracker.StartDrain();
  }

  absl::Status StartCore(std::unique_ptr<Backend> backend) {
    if (backend == nullptr) {
      std::string passed_over;
      absl::StatusOr<std::unique_ptr<Backend>> named =
          CreateBackend(options.backend, options.device, &passed_over);
      if (absl::IsResourceExhausted(named.status())) {
        return absl::ResourceExhaustedError(absl::StrCat(
            "--device_memory=", options.device.memory_bytes, ": ", named.status().message()));
      }
      if (!named.ok()) return named.status();
      backend = *std::move(named);
      LogDevice(backend->device(), backend->pool().stats().capacity_bytes, passed_over);
    }
    const DeviceInfo device = backend->device();
    const ServerIdentity identity{options.server_name, Epoch::Start(options.server_name)};
    metrics =
        std::make_unique<Metrics>(BuildInfo{Version(), device.backend, device.name, identity.name});
    core = std::make_unique<SolverCore>(std::make_unique<Solver>(std::move(backend)), options.core,
                                        identity, metrics.get(), &clock);
    state = std::make_unique<ServiceState>(core.get(), metrics.get(), options, identity);
    return absl::OkStatus();
  }

  absl::Status StartGrpc() {
    absl::StatusOr<std::shared_ptr<grpc::ServerCredentials>> credentials = Credentials(options);
    if (!credentials.ok()) return credentials.status();
    grpc::EnableDefaultHealthCheckService(true);
    grpc::reflection::InitProtoReflectionServerBuilderPlugin();
    grpc::ServerBuilder builder;
    SetLimits(options, &builder);
    const std::string bind = HostPort(options.address, options.port);
    builder.AddListeningPort(bind, *credentials, &grpc_port);
    calls = std::make_unique<CallQueues>(
        options.serving_threads, options.reply_timeout, LookEvery(options),
        [this](auto incoming) { return MakeSolverCall(state.get(), std::move(incoming)); });
    calls->AddTo(&builder);
    builder.RegisterService(reflected.get());
    grpc = builder.BuildAndStart();
    if (grpc != nullptr && grpc_port != 0) {
      calls->Start();
      return absl::OkStatus();
    }
    return absl::AlreadyExistsError(absl::StrCat(
        "cannot serve gRPC on ", bind,
        ": is the port taken, the address not of this machine, or a TLS file not PEM? (--address, "
        "--port; 0 takes any free port)"));
  }

  void SetServing(bool serving) {
    grpc->GetHealthCheckService()->SetServingStatus(serving);
    grpc->GetHealthCheckService()->SetServingStatus(kServiceName, serving);
  }

  // What it holds may be lost and what it answers wrong: nobody should be sent here any more.
  void OnDeviceFailure(const absl::Status& failure) {
    SetServing(false);
    const DeviceInfo& device = core->backend().device();
    LogLine(LogLevel::kError, "device_failed")
        .Add("backend", device.backend)
        .Add("device", device.name)
        .Add("message", std::string(failure.message()))
        .Write();
  }

  // What computes, and why that. A warning where "auto" would rather have had another.
  void LogDevice(const DeviceInfo& device, int64_t pool_bytes, const std::string& passed_over) {
    std::string why = absl::StrCat("--backend=", options.backend);
    if (!passed_over.empty()) {
      absl::StrAppend(&why, ": ", passed_over);
    } else if (options.backend == "auto") {
      const std::vector<std::string> built = BuiltBackends();
      absl::StrAppend(&why, built.size() == 1
                                ? ": this build has no other"
                                : absl::StrCat(": the first of ", absl::StrJoin(built, ", ")));
    }
    LogLine(passed_over.empty() ? LogLevel::kInfo : LogLevel::kWarn, "device")
        .Add("backend", device.backend)
        .Add("device", device.name)
        .Add("memory_bytes", device.memory_bytes)
        .Add("pool_bytes", pool_bytes)
        .Add("why", why)
        .Write();
  }

  void LogServing() {
    LogLine(LogLevel::kInfo, "serving")
        .Add("version", Version())
        .Add("name", options.server_name)
        .Add("grpc", HostPort(options.address, grpc_port))
        .Add("metrics", metrics_port < 0 ? "off" : HostPort(options.metrics_address, metrics_port))
        .Add("tls", options.tls_cert_file.empty() ? "off" : "on")
        .Write();
  }
};

absl::StatusOr<std::unique_ptr<Server>> Server::Start(const ServerOptions& options) {
  return Start(options, nullptr);
}

absl::StatusOr<std::unique_ptr<Server>> Server::Start(const ServerOptions& options,
                                                      std::unique_ptr<Backend> backend) {
  ServerOptions complete = options;
  if (absl::Status status = CheckAndComplete(&complete); !status.ok()) return status;
  auto server = std::unique_ptr<Server>(new Server(std::make_unique<Impl>(complete)));
  if (absl::Status status = server->impl_->Start(std::move(backend)); !status.ok()) return status;
  return server;
}

Server::Server(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Server::~Server() { impl_->Drain(); }

int Server::grpc_port() const { return impl_->grpc_port; }
int Server::metrics_port() const { return impl_->metrics_port; }
std::string Server::grpc_target() const {
  return HostPort(impl_->options.address, impl_->grpc_port);
}
void Server::StartDrain() { impl_->StartDrain(); }
bool Server::Drain() { return impl_->Drain(); }
SolverCore& Server::core() { return *impl_->core; }
Metrics& Server::metrics() { return *impl_->metrics; }

}  // namespace blockd::server
