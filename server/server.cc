#include "server/server.h"

#include <grpc/grpc.h>
#include <grpcpp/resource_quota.h>
#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>
#include <malloc.h>

#include <algorithm>
#include <functional>
#include <optional>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "blockd/engine/backend_registry.h"
#include "blockd/engine/solver.h"
#include "server/base/clock.h"
#include "server/base/thread_name.h"
#include "server/health_server.h"
#include "server/identity/identities.h"
#include "server/log/logging.h"
#include "server/metrics_port.h"
#include "server/net/connection_acceptor.h"
#include "server/net/hand_over.h"
#include "server/net/listener.h"
#include "server/net/ports.h"
#include "server/net/transport_security.h"
#include "server/net/watched_reads.h"
#include "server/process_metrics.h"
#include "server/transport/calls/admin_service.h"
#include "server/transport/calls/reflection.h"
#include "server/transport/rpc/call.h"
#include "server/transport/rpc/call_limits.h"
#include "server/transport/rpc/call_queue.h"
#include "server/transport/rpc/reset_limit.h"
#include "server/transport/shm/shm_port.h"
#include "server/transport/solver_service.h"

namespace blockd::server {
namespace {

constexpr char kServiceName[] = "blockd.v1.Solver", kAdminName[] = "blockd.v1.Admin";
constexpr char kConnectionsHealth[] = "connections";      // whether new ones are accepted
constexpr char kDevicesHealth[] = "devices";              // whether all of them are in service
constexpr absl::Duration kCancelTime = absl::Seconds(5);  // in which what was cancelled ends

absl::StatusOr<std::unique_ptr<Identities>> LoadIdentities(const ServerOptions& options) {
  const AccessOptions& access = options.access;
  absl::StatusOr<std::vector<NameKind>> kinds = ParseCertificateKinds(access.certificate_identity);
  if (!kinds.ok()) return kinds.status();
  const auto rules = [&](const Entrance& entrance) {
    return IdentityRules{.certificate_kinds = *kinds,
                         .trust_caller_metadata = TrustsCallerMetadata(access, entrance),
                         .accept_tokens = AcceptsTokens(entrance),
                         .client_certificates = entrance.client_certificates};
  };
  std::optional<IdentityRules> unix_rules;
  if (!access.unix_socket.empty()) unix_rules = rules(options.unix_entrance());
  return Identities::Load(access.tenants_file, rules(options.network_entrance()), unix_rules);
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
  builder->AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS,
                              ClampedInt(options.max_connection_streams));
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, Milliseconds(options.keepalive_time));
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS,
                              Milliseconds(options.keepalive_timeout));
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  builder->AddChannelArgument(GRPC_ARG_MAX_CONNECTION_AGE_MS,
                              Milliseconds(options.max_connection_age));
  builder->AddChannelArgument(GRPC_ARG_MAX_CONNECTION_IDLE_MS,
                              Milliseconds(options.max_connection_idle));
  builder->AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS,
                              Milliseconds(options.handshake_timeout));
  builder->AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS,
                              Milliseconds(options.min_ping_interval));
  KeepFaultsToTheirCalls(builder);
  builder->AddChannelArgument(GRPC_ARG_HTTP2_MAX_FRAME_SIZE, ClampedInt(options.http2_frame_bytes));
  // A reply of some hundred KiB goes to the socket at once.
  builder->AddChannelArgument(GRPC_ARG_HTTP2_WRITE_BUFFER_SIZE, 1 << 20);
  builder->AddChannelArgument(GRPC_ARG_TCP_MAX_READ_CHUNK_SIZE, 1 << 20);  // what a cache holds
  builder->AddChannelArgument(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES,
                              ClampedInt(options.http2_window_bytes));
  grpc::ResourceQuota quota("blockd");
  quota.Resize(static_cast<size_t>(options.grpc_memory_bytes));
  builder->SetResourceQuota(quota);
}

// The outcome of reading a file again, for the log.
std::string ComeOf(bool is_set, const absl::Status& status) {
  if (!is_set) return "none";
  return status.ok() ? "read"
                     : absl::StrCat("refused, the old ones are in force: ", status.message());
}

}  // namespace

// Members are destroyed in reverse order: first gRPC, then the core, last what they use.
class Server::Impl {
 public:
  explicit Impl(const ServerOptions& options) : options(options) {}

  // `devices`: empty for those that the options name.
  absl::Status Start(std::vector<std::unique_ptr<Backend>> devices) {
    absl::StatusOr<std::unique_ptr<Identities>> loaded = LoadIdentities(options);
    if (!loaded.ok()) return loaded.status();
    identities = *std::move(loaded);
    if (absl::Status status = StartCore(std::move(devices)); !status.ok()) return status;
    if (absl::Status status = StartTls(); !status.ok()) return status;
    // Nothing is served before all ports are there.
    absl::StatusOr<Ports> ports = ListenOnPorts(options);
    if (!ports.ok()) return ports.status();
    if (absl::Status status = CheckDescriptors(); !status.ok()) return status;
    SayWhoIsTrusted();
    if (absl::Status status = StartHealth(std::move(ports->probes)); !status.ok()) return status;
    if (absl::Status status = StartGrpc(std::move(ports->calls)); !status.ok()) return status;
    if (options.shared_memory.enabled) {
      shared_memory = std::make_unique<ShmPort>(state.get(), std::move(ports->shared_memory));
    }
    if (absl::Status status = StartMetrics(std::move(ports->scrapes)); !status.ok()) return status;
    SetServing(true);
    core->OnDeviceFailure([this](const DeviceFailure& failure) { OnDeviceFailure(failure); });
    if (absl::Status status = WritePortFile(options, grpc_port, metrics_port); !status.ok()) {
      return status;
    }
    LogServing();
    return absl::OkStatus();
  }

  // False if it had begun.
  bool StartDrain() {
    absl::MutexLock lock(&begin_mutex);
    if (draining || grpc == nullptr) return false;
    draining = true;
    LogLine(LogLevel::kInfo, "draining").Write();
    SetServing(false);
    state->tracker.StartDrain();
    return true;
  }

  absl::StatusOr<AdminActions::Reloaded> Reload() {
    absl::MutexLock lock(&reload_mutex);
    const absl::StatusOr<bool> changed = identities->Reload();
    const std::shared_ptr<const ListedTenants> tenants = identities->tenants();
    if (changed.ok()) core->tenants().Configure(tenants->config);
    const absl::Status files = tls == nullptr ? absl::OkStatus() : tls->Refresh();
    LogLine(changed.ok() && files.ok() ? LogLevel::kInfo : LogLevel::kError, "reload")
        .Add("tenants_file", ComeOf(!options.access.tenants_file.empty(), changed.status()))
        .Add("tls_files", ComeOf(tls != nullptr, files))
        .Write();
    if (!changed.ok()) return changed.status();
    if (!files.ok()) return files;
    return AdminActions::Reloaded{static_cast<int64_t>(tenants->config.tenants.size()), *changed};
  }

  void OnDrainAsked(std::function<void()> callback) {
    {
      absl::MutexLock lock(&begin_mutex);
      if (!drain_asked) {
        on_drain_asked = std::move(callback);
        return;
      }
    }
    callback();
  }

  bool Drain() {
    absl::MutexLock lock(&drain_mutex);
    if (drained) return in_time;
    drained = true;
    if (grpc == nullptr) return in_time;  // never served
    StartDrain();
    connections->Stop();
    if (shared_memory != nullptr) shared_memory->StopAccepting();
    // Tells every connection to go away, and waits for its calls. Without a deadline of its own,
    // which could cancel what then looks as if it had ended in time.
    std::thread going_away([this] {
      NameThread("going away");
      grpc->Shutdown();
    });
    in_time = state->tracker.WaitUntilIdle(options.drain_timeout);
    // Cancels calls under way, which end between two steps, and calls that watch.
    grpc_server_cancel_all_calls(grpc->c_server());
    if (shared_memory != nullptr) shared_memory->CancelAll();
    going_away.join();
    calls->WaitForLastCall();
    core->Drain();
    state->tracker.WaitUntilIdle(kCancelTime);
    state->health.AwaitCalls(kCancelTime);
    if (reflection) reflection->AwaitCalls(kCancelTime);
    if (shared_memory != nullptr) shared_memory->EndAll();
    calls->Stop();
    LogLine(LogLevel::kInfo, "stopped").Add("cancelled_work", in_time ? "no" : "yes").Write();
    return in_time;
  }

  const ServerOptions options;
  RealClock clock;
  std::unique_ptr<Identities> identities;
  std::unique_ptr<TransportSecurity> tls;
  std::unique_ptr<Metrics> metrics;
  std::unique_ptr<SolverCore> core;
  std::unique_ptr<ServiceState> state;
  std::unique_ptr<AdminService> admin;
  std::unique_ptr<HealthServer> health;
  std::optional<Reflection> reflection;
  std::unique_ptr<CallQueue> calls;
  std::unique_ptr<grpc::Server> grpc;
  std::unique_ptr<ConnectionAcceptor> connections;
  ResetLimit resets{options.max_resets_per_second, [this](const std::string& peer) {
                      connections->End(PeerName(peer), absl::StrCat("--max_resets_per_second=",
                                                                    options.max_resets_per_second));
                    }};
  std::unique_ptr<ShmPort> shared_memory;  // null: none
  std::unique_ptr<MetricsPort> metrics_server;
  int grpc_port = 0;
  int metrics_port = -1;
  absl::Mutex reload_mutex;
  absl::Mutex begin_mutex;
  bool draining ABSL_GUARDED_BY(begin_mutex) = false;
  bool drain_asked ABSL_GUARDED_BY(begin_mutex) = false;  // by a call
  std::function<void()> on_drain_asked ABSL_GUARDED_BY(begin_mutex);
  absl::Mutex drain_mutex ABSL_ACQUIRED_BEFORE(begin_mutex);
  bool drained ABSL_GUARDED_BY(drain_mutex) = false;
  bool in_time ABSL_GUARDED_BY(drain_mutex) = true;  // nothing had to be cancelled

 private:
  AdminActions Actions() {
    return {.drain = [this] { DrainAsCalled(); }, .reload = [this] { return Reload(); }};
  }

  // Then ends the server as SIGTERM does, unless that is under way already.
  void DrainAsCalled() {
    if (!StartDrain()) return;
    std::function<void()> callback;
    {
      absl::MutexLock lock(&begin_mutex);
      drain_asked = true;
      callback = std::move(on_drain_asked);
    }
    if (callback) callback();
  }

  absl::Status StartCore(std::vector<std::unique_ptr<Backend>> devices) {
    if (devices.empty()) {
      absl::StatusOr<OpenedDevices> opened = OpenDevices(options);
      if (!opened.ok()) return opened.status();
      devices = std::move(opened->backends);
      for (size_t i = 0; i < devices.size(); ++i) LogDevice(i, *devices[i], opened->passed_over);
    }
    const DeviceInfo device = devices[0]->device();
    std::vector<std::unique_ptr<Solver>> solvers;
    for (auto& backend : devices) solvers.push_back(std::make_unique<Solver>(std::move(backend)));
    const ServerIdentity identity{options.server_name, Epoch::Start(options.server_name)};
    metrics =
        std::make_unique<Metrics>(BuildInfo{Version(), device.backend, device.name, identity.name});
    core = std::make_unique<SolverCore>(std::move(solvers), options.core, identity, metrics.get(),
                                        &clock);
    core->tenants().Configure(identities->tenants()->config);
    state = std::make_unique<ServiceState>(core.get(), metrics.get(), options, identity,
                                           identities.get());
    admin = std::make_unique<AdminService>(state.get(), Actions());
    state->admin = admin.get();
    if (ServesReflection(options.access, options.entrances())) {
      reflection.emplace(std::vector<std::string>{kServiceName, kAdminName, kHealthServiceName,
                                                  "grpc.reflection.v1.ServerReflection"},
                         &state->work);
      state->reflection = &*reflection;
    }
    return absl::OkStatus();
  }

  absl::Status StartMetrics(Listener listener) {
    if (listener.sockets.empty()) return absl::OkStatus();
    absl::StatusOr<std::unique_ptr<MetricsPort>> started =
        MetricsPort::Start(std::move(listener), SideConnections(DescriptorLimit()),
                           [this] { return metrics->Text() + ProcessMetricsText(Sample()); });
    if (!started.ok()) return started.status();
    metrics_server = *std::move(started);
    metrics_port = metrics_server->port();
    return absl::OkStatus();
  }

  ProcessSample Sample() {
    return {.connections = connections->open(),
            .max_connections = options.max_connections,
            .connections_refused = connections->refused(),
            .connections_ended = connections->ended() + EndedReads(),
            .shared_memory = shared_memory == nullptr ? ShmStats() : shared_memory->stats(),
            .certificate_time = tls == nullptr ? std::nullopt : std::optional(tls->TimeToExpiry())};
  }

  absl::Status StartTls() {
    if (options.tls_cert_file.empty()) return absl::OkStatus();
    absl::StatusOr<std::unique_ptr<TransportSecurity>> started = TransportSecurity::Start(
        {.paths = {options.tls_cert_file, options.tls_key_file, options.tls_client_ca_file},
         .min_version = options.access.tls_min_version,
         .watch_interval = options.access.tls_watch_interval});
    if (!started.ok()) return started.status();
    tls = *std::move(started);
    return absl::OkStatus();
  }

  absl::Status StartHealth(Listener listener) {
    if (listener.sockets.empty()) return absl::OkStatus();
    const int64_t limit = DescriptorLimit();
    absl::StatusOr<std::unique_ptr<HealthServer>> started =
        HealthServer::Start(std::move(listener), {.name = "health checks at once",
                                                  .connections = SideConnections(limit),
                                                  .descriptors = limit,
                                                  .ends_oldest = true});
    if (!started.ok()) return started.status();
    health = *std::move(started);
    return absl::OkStatus();
  }

  absl::Status StartGrpc(Listener listener) {
    grpc::EnableDefaultHealthCheckService(false);
    grpc::ServerBuilder builder;
    SetLimits(options, &builder);
    const auto local = ServeAccepted(&builder, grpc::InsecureServerCredentials());
    const auto network = tls == nullptr ? local : ServeAccepted(&builder, tls->credentials());
    calls = std::make_unique<CallQueue>(CallQueue::Options{
        .threads = options.serving_threads,
        .queues = options.serving_queues,
        .poll = options.core.poll,
        .limits = CallLimitsOf(options),
        .look_every = LookEvery(options),
        .make_call =
            [this](auto incoming) { return MakeSolverCall(state.get(), std::move(incoming)); },
        .on_reset = [this](const std::string& peer) { resets.OnReset(peer, clock.Now()); },
        .is_identified =
            [this](const ServerCall& call) { return state->IsIdentified(call.context()); },
        .also = [this] { core->shards().WakeOverdue(); }});
    calls->AddTo(&builder);
    grpc = builder.BuildAndStart();
    if (grpc == nullptr) return absl::InternalError("gRPC does not start");
    SetHealth(kConnectionsHealth, true);
    SetHealth(kDevicesHealth, true);
    connections = std::make_unique<ConnectionAcceptor>(
        std::move(listener), LimitsOf(options),
        [=](const Accepted& accepted) { (accepted.is_unix ? local : network)(accepted); },
        [this](bool full) { SetHealth(kConnectionsHealth, !full); });
    calls->Start();
    connections->Start();
    grpc_port = connections->port();
    return absl::OkStatus();
  }

  void SetServing(bool serving) {
    SetHealth("", serving);
    SetHealth(kServiceName, serving);
  }

  // On both ports. The empty name is the whole server's.
  void SetHealth(const std::string& service_name, bool serving) {
    state->health.Set(service_name, serving);
    if (health != nullptr) health->SetServing(service_name, serving);
  }

  void SayWhoIsTrusted() {
    for (const Entrance& entrance : options.entrances()) {
      const AccessOptions& access = options.access;
      if (!TrustsCallerMetadata(access, entrance)) continue;
      LogLine(entrance.IsLocal() ? LogLevel::kInfo : LogLevel::kWarn, "trusts_callers")
          .Add("flag", absl::StrCat("--trust_caller_metadata=", access.trust_caller_metadata))
          .Add("address", std::string(entrance.address))
          .Add("message", "callers name themselves: whoever reaches this server may be anybody")
          .Write();
    }
  }

  // A failed device may have lost its data and answer wrongly. Without another device the server is
  // not healthy, so that nobody is sent here any more.
  void OnDeviceFailure(const DeviceFailure& failure) {
    SetHealth(kDevicesHealth, false);
    const bool serves = core->healthy();
    if (!serves) SetServing(false);
    const Shard::State device = core->shards()[failure.device].state();
    LogLine(LogLevel::kError, "device_failed")
        .Add("backend", device.backend)
        .Add("device", device.name)
        .Add("index", static_cast<int64_t>(failure.device))
        .Add("health", serves ? "DEGRADED" : "NOT_SERVING")
        .Add("message", std::string(failure.status.message()))
        .Write();
  }

  // Says which device computes, and why. Warns if "auto" would have preferred another.
  void LogDevice(size_t index, Backend& backend, const std::string& passed_over) {
    const DeviceInfo& device = backend.device();
    std::string why = absl::StrCat("--backend=", options.backend);
    if (options.devices != DeviceOptions().devices) {
      absl::StrAppend(&why, " --devices=", options.devices);
    }
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
        .Add("index", static_cast<int64_t>(index))
        .Add("memory_bytes", device.memory_bytes)
        .Add("pool_bytes", backend.pool().stats().capacity_bytes)
        .Add("why", why)
        .Write();
  }

  void LogServing() {
    LogLine(LogLevel::kInfo, "serving")
        .Add("version", Version())
        .Add("name", options.server_name)
        .Add("grpc", grpc_port < 0 ? "off" : HostPort(options.address, grpc_port))
        .Add("unix_socket", options.access.unix_socket.empty() ? "off" : options.access.unix_socket)
        .Add("shared_memory", shared_memory == nullptr ? "off" : "on")
        .Add("metrics", metrics_port < 0 ? "off" : HostPort(options.metrics_address, metrics_port))
        .Add("tls", options.tls_cert_file.empty() ? "off" : "on")
        .Add("health", health == nullptr ? "off" : HostPort(options.address, health->port()))
        .Write();
  }
};

absl::StatusOr<std::unique_ptr<Server>> Server::Start(const ServerOptions& options) {
  return Start(options, {});
}

absl::StatusOr<std::unique_ptr<Server>> Server::Start(
    const ServerOptions& options, std::vector<std::unique_ptr<Backend>> devices) {
  ServerOptions complete = options;
  if (absl::Status status = CheckAndComplete(&complete); !status.ok()) return status;
  auto server = std::unique_ptr<Server>(new Server(std::make_unique<Impl>(complete)));
  if (absl::Status status = server->impl_->Start(std::move(devices)); !status.ok()) return status;
  return server;
}

Server::Server(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Server::~Server() { impl_->Drain(); }

int Server::grpc_port() const { return impl_->grpc_port; }
int Server::metrics_port() const { return impl_->metrics_port; }
int Server::health_port() const { return impl_->health == nullptr ? -1 : impl_->health->port(); }
absl::Status Server::Reload() { return impl_->Reload().status(); }
void Server::OnDrainAsked(std::function<void()> callback) {
  impl_->OnDrainAsked(std::move(callback));
}
std::string Server::grpc_target() const {
  if (impl_->grpc_port < 0) return absl::StrCat("unix:", impl_->options.access.unix_socket);
  return HostPort(impl_->options.address, impl_->grpc_port);
}
void Server::StartDrain() { impl_->StartDrain(); }
bool Server::Drain() { return impl_->Drain(); }
SolverCore& Server::core() { return *impl_->core; }
Metrics& Server::metrics() { return *impl_->metrics; }

}  // namespace blockd::server
