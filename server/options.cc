#include "server/options.h"

#include <unistd.h>

#include <algorithm>
#include <string>

#include "absl/flags/flag.h"
#include "absl/flags/usage.h"
#include "absl/flags/usage_config.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "server/core/byte_size.h"
#include "server/descriptors.h"
#include "server/flag_checks.h"
#include "server/machine_limits.h"

using blockd::server::ByteSize;

// One default, in ServerOptions; the flags take theirs from here.
static const blockd::server::ServerOptions& Defaults() {
  static const auto& defaults = *new blockd::server::ServerOptions;
  return defaults;
}

ABSL_FLAG(std::string, address, Defaults().address, "Address to serve gRPC on, IPv4 or IPv6.");
ABSL_FLAG(int32_t, port, Defaults().port,
          "TCP port of gRPC; 0: any free one; -1: none, with --unix_socket.");
ABSL_FLAG(std::string, metrics_address, Defaults().metrics_address,
          "Address to serve /metrics on.");
ABSL_FLAG(int32_t, metrics_port, Defaults().metrics_port,
          "TCP port of /metrics (HTTP, Prometheus text); 0: any free one; -1: no metrics port.");
ABSL_FLAG(
    std::string, port_file, Defaults().port_file,
    "File that is written once the server serves: lines grpc=PORT and metrics=PORT; -1: none.");
ABSL_FLAG(std::string, server_name, Defaults().server_name,
          "Name of this server among several, the same after a restart; empty: HOSTNAME:port. A "
          "handle says by it who made it.");
ABSL_FLAG(std::string, tls_cert_file, Defaults().tls_cert_file,
          "PEM file with the server's certificate chain; with --tls_key_file it turns TLS on.");
ABSL_FLAG(std::string, tls_key_file, Defaults().tls_key_file,
          "PEM file with the server's private key.");
ABSL_FLAG(std::string, tls_client_ca_file, Defaults().tls_client_ca_file,
          "PEM file with the authorities of client certificates. Clients must then show one, and "
          "handles belong to the identity in it.");

ABSL_FLAG(int64_t, max_queued_requests, Defaults().core.max_queued_requests,
          "Requests that may wait for the device; more are answered UNAVAILABLE with a delay.");
ABSL_FLAG(
    double, tenant_share, Defaults().core.tenant_share,
    "What one tenant without a quota may have of queue, handles, memory to pin and shared memory "
    "while nobody else has any, a part of all; 1: all.");
ABSL_FLAG(int64_t, max_tenants, Defaults().core.max_tenants,
          "Callers with work or factorizations at a time, beside those of the tenants file. All "
          "beyond are one tenant.");
ABSL_FLAG(int64_t, max_handles, Defaults().core.max_handles, "Factorizations held at a time.");
ABSL_FLAG(ByteSize, solve_reserve, ByteSize{Defaults().core.solve_reserve_bytes},
          "Part of the memory pool for the workspace of Solves alone, as 64MiB; 0: a sixteenth.");
ABSL_FLAG(
    absl::Duration, max_shared_batch, Defaults().core.max_shared_batch,
    "Time that a batch of Solves, or a part of a long one, is predicted to take at most while "
    "several tenants ask, as 1ms; two columns may take longer.");
ABSL_FLAG(int64_t, max_batch_requests, Defaults().core.max_batch_requests,
          "Requests that run together in one batch.");
ABSL_FLAG(ByteSize, max_batch_bytes, ByteSize{Defaults().core.max_batch_bytes},
          "Bytes of right-hand sides or of matrices that run together in one batch, as 256MiB; one "
          "larger request runs alone.");
ABSL_FLAG(int64_t, max_batch_rhs, Defaults().core.max_batch_rhs,
          "Right-hand sides that run together in one batch; one larger request runs alone.");
ABSL_FLAG(absl::Duration, max_batch_delay, Defaults().core.max_batch_delay,
          "Time that a request waits for others to share its batch while the device is free, as "
          "200us.");
ABSL_FLAG(
    absl::Duration, max_inline_solve, Defaults().core.max_inline_solve,
    "Predicted time up to which a Solve or a Factor on a CPU is done by the thread that took it "
    "from its caller, as 50us, while few ask; 0: none is.");
ABSL_FLAG(absl::Duration, poll, Defaults().core.poll,
          "How long a thread that waits for requests, before a device or in shared memory, goes on "
          "looking once nothing comes any more, as 500us, before it sleeps until it is woken, and "
          "an eighth of that where a third came later; 0: not at all. Negative: 500us, or 0 "
          "on fewer than 4 processors, where it would take one from the work.");
ABSL_FLAG(absl::Duration, default_lease, Defaults().core.default_lease,
          "Time after its last use during which a factorization is not evicted, where the caller "
          "asks for none, as 10s.");
ABSL_FLAG(absl::Duration, max_lease, Defaults().core.max_lease,
          "The longest lease that a caller may ask for, as 1h.");
ABSL_FLAG(
    absl::Duration, idle_expiry, Defaults().core.idle_expiry,
    "Time without use after which a factorization that is not pinned is released, as 1h; inf: "
    "never.");
ABSL_FLAG(absl::Duration, retry_delay, Defaults().core.retry_delay,
          "Delay that is said with UNAVAILABLE, as 50ms.");
ABSL_FLAG(int64_t, tombstones, Defaults().core.tombstones,
          "Handles whose end is remembered, so that NOT_FOUND can say why.");
ABSL_FLAG(int64_t, max_systems, Defaults().core.max_systems, "Systems of one Factor request (K).");
ABSL_FLAG(int64_t, max_rhs, Defaults().core.max_rhs, "Right-hand sides of one Solve request (d).");
ABSL_FLAG(int32_t, model_threads, Defaults().core.model_threads,
          "Threads that assemble the models of Smooths; 0: one for two processors, from 1 to 16.");

ABSL_FLAG(ByteSize, max_message_bytes, ByteSize{Defaults().max_message_bytes},
          "Size of one message, as 64MiB; larger matrices and right-hand sides come as streams. At "
          "most 2GiB.");
ABSL_FLAG(
    ByteSize, max_inflight_request_bytes, ByteSize{Defaults().core.max_inflight_request_bytes},
    "Bytes of requests and solutions that are held in host memory at once; beyond it requests "
    "are answered UNAVAILABLE with a delay. 0: an eighth of the machine's memory.");
ABSL_FLAG(
    int64_t, max_connections, Defaults().max_connections,
    "Connections at once; one more is closed as soon as it is made. 0: as many as there are "
    "file descriptors, less those kept for everything else, and at most one for each 64KiB of "
    "--grpc_memory_bytes.");
ABSL_FLAG(int64_t, max_connection_streams, Defaults().max_connection_streams,
          "Calls under way on one connection; more wait in the client.");
ABSL_FLAG(
    int64_t, max_resets_per_second, Defaults().max_resets_per_second,
    "Calls that one connection may reset a second before their message has come; one more ends "
    "the connection. 0: no limit.");
ABSL_FLAG(ByteSize, grpc_memory_bytes, ByteSize{Defaults().grpc_memory_bytes},
          "Memory that gRPC aims to stay below for its own buffers; 0: an eighth of the machine's "
          "memory.");
ABSL_FLAG(int32_t, serving_threads, Defaults().serving_threads,
          "Threads that take calls, and as many that answer them; 0: one for four processors and "
          "two more, from 4 to 18.");
ABSL_FLAG(
    int32_t, copy_threads, Defaults().copy_threads,
    "Threads that copy uploads to the device, and as many for what else takes long; 0: one for "
    "two processors, from 4 to 32.");
ABSL_FLAG(int32_t, serving_queues, Defaults().serving_queues,
          "Queues that share the connections and these threads, at most as many: 1 is best for few "
          "callers; of many, 3 threads with a queue each carry most.");
ABSL_FLAG(absl::Duration, stream_idle_timeout, Defaults().stream_idle_timeout,
          "Time without a byte after which an upload that is not complete ends with "
          "DEADLINE_EXCEEDED, as 30s. A call's message has the time that --max_message_bytes take "
          "at --min_upload_bytes_per_second beside it.");
ABSL_FLAG(ByteSize, min_upload_bytes_per_second, ByteSize{Defaults().min_upload_bytes_per_second},
          "Least rate of an upload, on average, beyond a grace of 5 s, as 1MiB; a slower one ends "
          "with DEADLINE_EXCEEDED. Only the time counts in which the server waits for the client. "
          "0: none.");
ABSL_FLAG(absl::Duration, max_upload_duration, Defaults().max_upload_duration,
          "Time after which an upload that is not complete ends with DEADLINE_EXCEEDED however "
          "fast it is, as 10m.");
ABSL_FLAG(absl::Duration, reply_timeout, Defaults().reply_timeout,
          "Time that a client may leave a reply, or a piece of one, unread; then its call is "
          "cancelled, as 30s.");
ABSL_FLAG(
    ByteSize, stream_chunk_bytes, ByteSize{Defaults().stream_chunk_bytes},
    "Largest piece of a solution in a SolveStream, as 1MiB; larger solutions come in chunks.");
ABSL_FLAG(int64_t, max_stream_requests, Defaults().max_stream_requests,
          "Unanswered requests of one SolveStream; then the server reads no more until one is "
          "answered.");
ABSL_FLAG(ByteSize, max_stream_bytes, ByteSize{Defaults().max_stream_bytes},
          "Bytes of right-hand sides and solutions that one SolveStream holds in host memory; a "
          "larger request in it is refused.");
ABSL_FLAG(absl::Duration, keepalive_time, Defaults().keepalive_time,
          "Silence on a connection after which the server pings it, as 1m.");
ABSL_FLAG(absl::Duration, keepalive_timeout, Defaults().keepalive_timeout,
          "Time that such a ping may take before the connection is closed, as 20s.");
ABSL_FLAG(absl::Duration, max_connection_age, Defaults().max_connection_age,
          "Age after which a connection is told to go away once its calls are over, as 1h; inf: "
          "never.");
ABSL_FLAG(absl::Duration, max_connection_idle, Defaults().max_connection_idle,
          "Time without a call after which a connection is told to go away, as 10m; inf: never.");
ABSL_FLAG(absl::Duration, handshake_timeout, Defaults().handshake_timeout,
          "Time that a new connection has to say that it speaks HTTP/2, with TLS before that, as "
          "20s.");
ABSL_FLAG(absl::Duration, min_ping_interval, Defaults().min_ping_interval,
          "Shortest time between two pings of a client that is not sending, as 10s.");
ABSL_FLAG(ByteSize, http2_frame_bytes, ByteSize{Defaults().http2_frame_bytes},
          "Largest HTTP/2 frame that clients may send, from 16KiB to 16383KiB.");
ABSL_FLAG(ByteSize, http2_window_bytes, ByteSize{Defaults().http2_window_bytes},
          "Bytes that a client may send on one stream before the server has read them, from 64KiB "
          "to 1GiB.");
ABSL_FLAG(absl::Duration, drain_grace, Defaults().drain_grace,
          "Time after SIGTERM or SIGINT in which the port stays open and says that the server "
          "drains, so that routers and callers leave before it closes, as 1s.");
ABSL_FLAG(absl::Duration, drain_timeout, Defaults().drain_timeout,
          "Time that accepted work has to finish after --drain_grace, as 30s.");
ABSL_FLAG(std::string, log_level, Defaults().log_level,
          "What is logged to standard error: debug, info, warn, error or off.");
ABSL_FLAG(std::string, log_format, Defaults().log_format,
          "How a line of the log looks: logfmt or json.");
ABSL_FLAG(ByteSize, log_buffer_bytes, ByteSize{Defaults().log_buffer_bytes},
          "Memory for lines of the log that nobody has read yet, as 1MiB; lines that find no room "
          "are dropped and counted.");
ABSL_FLAG(int64_t, log_requests_per_second, Defaults().log_requests_per_second,
          "Requests that get a line of the log each second, and as many failures beside them; the "
          "others are counted.");

namespace blockd::server {
namespace {

// Bytes that a connection without a call takes; measured: 16 KiB, without TLS.
constexpr int64_t kConnectionBytes = int64_t{64} << 10;

constexpr size_t kMaxNameBytes = 256;
bool IsOneWord(absl::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return c > ' ' && c < 0x7f; });
}

// A port that is any free one names nobody: such a server is another one each time.
std::string DefaultName(int port) {
  char host[256] = "localhost";
  gethostname(host, sizeof(host) - 1);
  return port > 0 ? absl::StrCat(host, ":", port) : absl::StrCat(host, ":pid-", getpid());
}

constexpr int64_t kMany = int64_t{1} << 30;
// A little more than a call over TCP takes to come back after its answer, and than a device takes
// for most that is short.
constexpr absl::Duration kPoll = absl::Microseconds(500);
constexpr int32_t kFewProcessors = 4;
constexpr int64_t kKiB = int64_t{1} << 10, kGiB = int64_t{1} << 30, kTiB = int64_t{1} << 40;

absl::Status CheckCore(const CoreLimits& core) {
  const absl::Duration inf = absl::InfiniteDuration(), zero = absl::ZeroDuration();
  absl::Status status;
  status.Update(CheckNumber("max_queued_requests", core.max_queued_requests, 1, kMany));
  if (!(core.tenant_share > 0 && core.tenant_share <= 1)) {
    status.Update(RefuseFlag("tenant_share", absl::StrCat(core.tenant_share),
                             "a number above 0 and at most 1"));
  }
  status.Update(CheckNumber("max_tenants", core.max_tenants, 1, kMany));
  status.Update(CheckNumber("max_handles", core.max_handles, 1, kMany));
  status.Update(CheckBytes("solve_reserve", core.solve_reserve_bytes, 0, kTiB));
  status.Update(CheckDuration("max_shared_batch", core.max_shared_batch, zero, absl::Seconds(10)));
  status.Update(CheckNumber("max_batch_requests", core.max_batch_requests, 1, kMany));
  status.Update(CheckBytes("max_batch_bytes", core.max_batch_bytes, 1, kTiB));
  status.Update(CheckNumber("max_batch_rhs", core.max_batch_rhs, 1, kMany));
  status.Update(CheckDuration("max_batch_delay", core.max_batch_delay, zero, absl::Seconds(10)));
  status.Update(
      CheckDuration("max_inline_solve", core.max_inline_solve, zero, absl::Milliseconds(1)));
  status.Update(CheckDuration("poll", core.poll, zero, absl::Seconds(1)));
  status.Update(CheckDuration("max_lease", core.max_lease, zero, inf));
  status.Update(CheckDuration("default_lease", core.default_lease, zero, core.max_lease));
  status.Update(CheckDuration("idle_expiry", core.idle_expiry, absl::Milliseconds(1), inf));
  status.Update(
      CheckDuration("retry_delay", core.retry_delay, absl::Milliseconds(1), absl::Minutes(10)));
  status.Update(CheckNumber("tombstones", core.tombstones, 0, kMany));
  status.Update(CheckNumber("max_systems", core.max_systems, 1, kMany));
  status.Update(CheckNumber("max_rhs", core.max_rhs, 1, kMany));
  status.Update(CheckNumber("model_threads", core.model_threads, 0, 256));
  return status;
}

absl::Status CheckTransport(const ServerOptions& o) {
  const absl::Duration ms = absl::Milliseconds(1), day = absl::Hours(24),
                       inf = absl::InfiniteDuration();
  absl::Status status;
  status.Update(CheckNumber("port", o.port, o.access.unix_socket.empty() ? 0 : -1, 65535));
  if (absl::StartsWith(o.address, "unix:")) {
    status.Update(
        RefuseFlag("address", o.address,
                   "an address of IPv4 or IPv6; --unix_socket=PATH is for a Unix socket"));
  }
  status.Update(CheckNumber("metrics_port", o.metrics_port, -1, 65535));
  status.Update(CheckBytes("max_message_bytes", o.max_message_bytes, 4 * kKiB, 2 * kGiB - 1));
  status.Update(CheckNumber("max_connections", o.max_connections, 0, kMany));
  status.Update(CheckNumber("max_connection_streams", o.max_connection_streams, 1, kMany));
  status.Update(CheckNumber("max_resets_per_second", o.max_resets_per_second, 0, kMany));
  status.Update(CheckNumber("serving_threads", o.serving_threads, 0, 256));
  status.Update(CheckNumber("serving_queues", o.serving_queues, 1, 256));
  status.Update(CheckNumber("copy_threads", o.copy_threads, 0, 512));
  status.Update(CheckDuration("stream_idle_timeout", o.stream_idle_timeout, ms, day));
  status.Update(CheckBytes("min_upload_bytes_per_second", o.min_upload_bytes_per_second, 0, kTiB));
  status.Update(CheckDuration("max_upload_duration", o.max_upload_duration, ms, day));
  status.Update(CheckDuration("reply_timeout", o.reply_timeout, ms, day));
  status.Update(CheckBytes("stream_chunk_bytes", o.stream_chunk_bytes, kKiB, kGiB));
  status.Update(CheckNumber("max_stream_requests", o.max_stream_requests, 1, kMany));
  status.Update(CheckBytes("max_stream_bytes", o.max_stream_bytes, kKiB, kTiB));
  status.Update(CheckDuration("keepalive_time", o.keepalive_time, absl::Seconds(1), day));
  status.Update(CheckDuration("keepalive_timeout", o.keepalive_timeout, ms, day));
  status.Update(CheckDuration("max_connection_age", o.max_connection_age, ms, inf));
  status.Update(CheckDuration("max_connection_idle", o.max_connection_idle, ms, inf));
  status.Update(CheckDuration("handshake_timeout", o.handshake_timeout, ms, day));
  status.Update(CheckDuration("min_ping_interval", o.min_ping_interval, ms, day));
  status.Update(CheckBytes("http2_frame_bytes", o.http2_frame_bytes, 16 * kKiB, 16383 * kKiB));
  status.Update(CheckBytes("http2_window_bytes", o.http2_window_bytes, 64 * kKiB, kGiB));
  status.Update(CheckDuration("drain_grace", o.drain_grace, absl::ZeroDuration(), day));
  status.Update(CheckDuration("drain_timeout", o.drain_timeout, absl::ZeroDuration(), day));
  if (o.server_name.size() > kMaxNameBytes || !IsOneWord(o.server_name)) {
    status.Update(
        RefuseFlag("server_name", absl::CHexEscape(o.server_name),
                   absl::StrCat("at most ", kMaxNameBytes, " characters, none of them blank")));
  }
  if (o.tls_cert_file.empty() != o.tls_key_file.empty()) {
    status.Update(
        RefuseFlag(o.tls_cert_file.empty() ? "tls_cert_file" : "tls_key_file", "",
                   "a file, since the other of --tls_cert_file and --tls_key_file is set"));
  }
  if (!o.tls_client_ca_file.empty() && o.tls_cert_file.empty()) {
    status.Update(RefuseFlag("tls_cert_file", "", "a file, since --tls_client_ca_file is set"));
  }
  status.Update(CheckAccess(o.access, o.entrances()));
  status.Update(CheckSharedMemory(o.shared_memory, o.access.unix_socket));
  return status;
}

}  // namespace

std::vector<Entrance> ServerOptions::entrances() const {
  std::vector<Entrance> open;
  if (port >= 0) open.push_back(network_entrance());
  if (!access.unix_socket.empty()) open.push_back(unix_entrance());
  return open;
}

absl::Status CheckAndComplete(ServerOptions* options) {
  const int64_t memory = MachineMemoryBytes();
  if (options->core.max_inflight_request_bytes == 0)
    options->core.max_inflight_request_bytes = memory / 8;
  if (options->grpc_memory_bytes == 0) options->grpc_memory_bytes = memory / 8;
  Complete(options->core.max_inflight_request_bytes, &options->shared_memory);
  if (options->core.poll < absl::ZeroDuration()) {
    options->core.poll = MachineProcessors() < kFewProcessors ? absl::ZeroDuration() : kPoll;
  }
  if (options->core.model_threads == 0) {
    options->core.model_threads = std::clamp(MachineProcessors() / 2, 1, 16);
  }
  if (options->max_connections == 0) {
    const int64_t limit = DescriptorLimit();
    options->max_connections =
        std::min(limit - ReservedDescriptors(limit), options->grpc_memory_bytes / kConnectionBytes);
  }
  if (options->serving_threads == 0) {
    options->serving_threads = std::clamp(MachineProcessors() / 4 + 2, 4, 18);
  }
  if (options->copy_threads == 0) {
    options->copy_threads = std::clamp(MachineProcessors() / 2, 4, 32);
  }
  if (options->server_name.empty()) {
    options->server_name = DefaultName(options->port);
  }
  absl::Status status = CheckTransport(*options);
  status.Update(CheckCore(options->core));
  status.Update(CheckDevices(options));
  status.Update(CheckBytes("max_inflight_request_bytes", options->core.max_inflight_request_bytes,
                           kKiB, 1024 * kTiB));
  status.Update(
      CheckBytes("grpc_memory_bytes", options->grpc_memory_bytes, 1024 * kKiB, 1024 * kTiB));
  status.Update(
      CheckOneOf("log_level", options->log_level, {"debug", "info", "warn", "error", "off"}));
  status.Update(CheckOneOf("log_format", options->log_format, {"logfmt", "json"}));
  status.Update(CheckBytes("log_buffer_bytes", options->log_buffer_bytes, 64 * kKiB, kGiB));
  status.Update(CheckNumber("log_requests_per_second", options->log_requests_per_second, 0, kMany));
  if (status.ok()) {
    options->serving_queues = std::min(options->serving_queues, options->serving_threads);
  }
  return status;
}

absl::StatusOr<ServerOptions> OptionsFromFlags() {
  ServerOptions o;
  o.address = absl::GetFlag(FLAGS_address);
  o.port = absl::GetFlag(FLAGS_port);
  o.metrics_address = absl::GetFlag(FLAGS_metrics_address);
  o.metrics_port = absl::GetFlag(FLAGS_metrics_port);
  o.server_name = absl::GetFlag(FLAGS_server_name);
  o.port_file = absl::GetFlag(FLAGS_port_file);
  o.tls_cert_file = absl::GetFlag(FLAGS_tls_cert_file);
  o.tls_key_file = absl::GetFlag(FLAGS_tls_key_file);
  o.tls_client_ca_file = absl::GetFlag(FLAGS_tls_client_ca_file);
  o.access = AccessFromFlags();
  static_cast<DeviceOptions&>(o) = DevicesFromFlags();
  o.shared_memory = SharedMemoryFromFlags();
  o.core.max_queued_requests = absl::GetFlag(FLAGS_max_queued_requests);
  o.core.tenant_share = absl::GetFlag(FLAGS_tenant_share);
  o.core.max_tenants = absl::GetFlag(FLAGS_max_tenants);
  o.core.max_handles = absl::GetFlag(FLAGS_max_handles);
  o.core.solve_reserve_bytes = absl::GetFlag(FLAGS_solve_reserve).bytes;
  o.core.max_shared_batch = absl::GetFlag(FLAGS_max_shared_batch);
  o.core.max_batch_requests = absl::GetFlag(FLAGS_max_batch_requests);
  o.core.max_batch_bytes = absl::GetFlag(FLAGS_max_batch_bytes).bytes;
  o.core.max_batch_rhs = absl::GetFlag(FLAGS_max_batch_rhs);
  o.core.max_batch_delay = absl::GetFlag(FLAGS_max_batch_delay);
  o.core.max_inline_solve = absl::GetFlag(FLAGS_max_inline_solve);
  o.core.poll = absl::GetFlag(FLAGS_poll);
  o.core.default_lease = absl::GetFlag(FLAGS_default_lease);
  o.core.max_lease = absl::GetFlag(FLAGS_max_lease);
  o.core.idle_expiry = absl::GetFlag(FLAGS_idle_expiry);
  o.core.retry_delay = absl::GetFlag(FLAGS_retry_delay);
  o.core.tombstones = absl::GetFlag(FLAGS_tombstones);
  o.core.max_systems = absl::GetFlag(FLAGS_max_systems);
  o.core.max_rhs = absl::GetFlag(FLAGS_max_rhs);
  o.core.model_threads = absl::GetFlag(FLAGS_model_threads);
  o.max_message_bytes = absl::GetFlag(FLAGS_max_message_bytes).bytes;
  o.core.max_inflight_request_bytes = absl::GetFlag(FLAGS_max_inflight_request_bytes).bytes;
  o.max_connections = absl::GetFlag(FLAGS_max_connections);
  o.max_connection_streams = absl::GetFlag(FLAGS_max_connection_streams);
  o.max_resets_per_second = absl::GetFlag(FLAGS_max_resets_per_second);
  o.grpc_memory_bytes = absl::GetFlag(FLAGS_grpc_memory_bytes).bytes;
  o.serving_threads = absl::GetFlag(FLAGS_serving_threads);
  o.serving_queues = absl::GetFlag(FLAGS_serving_queues);
  o.copy_threads = absl::GetFlag(FLAGS_copy_threads);
  o.stream_idle_timeout = absl::GetFlag(FLAGS_stream_idle_timeout);
  o.min_upload_bytes_per_second = absl::GetFlag(FLAGS_min_upload_bytes_per_second).bytes;
  o.max_upload_duration = absl::GetFlag(FLAGS_max_upload_duration);
  o.reply_timeout = absl::GetFlag(FLAGS_reply_timeout);
  o.stream_chunk_bytes = absl::GetFlag(FLAGS_stream_chunk_bytes).bytes;
  o.max_stream_requests = absl::GetFlag(FLAGS_max_stream_requests);
  o.max_stream_bytes = absl::GetFlag(FLAGS_max_stream_bytes).bytes;
  o.keepalive_time = absl::GetFlag(FLAGS_keepalive_time);
  o.keepalive_timeout = absl::GetFlag(FLAGS_keepalive_timeout);
  o.max_connection_age = absl::GetFlag(FLAGS_max_connection_age);
  o.max_connection_idle = absl::GetFlag(FLAGS_max_connection_idle);
  o.handshake_timeout = absl::GetFlag(FLAGS_handshake_timeout);
  o.min_ping_interval = absl::GetFlag(FLAGS_min_ping_interval);
  o.http2_frame_bytes = absl::GetFlag(FLAGS_http2_frame_bytes).bytes;
  o.http2_window_bytes = absl::GetFlag(FLAGS_http2_window_bytes).bytes;
  o.drain_grace = absl::GetFlag(FLAGS_drain_grace);
  o.drain_timeout = absl::GetFlag(FLAGS_drain_timeout);
  o.log_level = absl::GetFlag(FLAGS_log_level);
  o.log_format = absl::GetFlag(FLAGS_log_format);
  o.log_buffer_bytes = absl::GetFlag(FLAGS_log_buffer_bytes).bytes;
  o.log_requests_per_second = absl::GetFlag(FLAGS_log_requests_per_second);
  if (absl::Status status = CheckAndComplete(&o); !status.ok()) return status;
  return o;
}

void SetUpFlags() {
  absl::SetProgramUsageMessage(
      "serves factorizations of SPD block-tridiagonal systems over gRPC.\n"
      "With no flag it listens on the loopback address and fits its limits to the machine.\n"
      "Times are written as 200us, 50ms, 30s, 1h or inf; sizes as 65536, 64KiB, 512MiB or 8GiB.");
  absl::FlagsUsageConfig config;
  // Flags are grouped by file; ours are in three.
  config.normalize_filename = [](absl::string_view file) {
    return std::string(absl::EndsWith(file, "options.cc") ? "blockd" : file);
  };
  const auto ours = [](absl::string_view file) { return file == "blockd"; };
  config.contains_help_flags = ours;
  config.contains_helpshort_flags = ours;
  config.contains_helppackage_flags = ours;
  config.version_string = [] { return absl::StrCat("blockd ", Version(), "\n"); };
  absl::SetFlagsUsageConfig(config);
}

std::string Version() { return BLOCKD_VERSION; }

}  // namespace blockd::server
