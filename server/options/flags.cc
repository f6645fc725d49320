#include "server/options/flags.h"

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/time/time.h"
#include "server/base/byte_size.h"
#include "server/options/flag_checks.h"

namespace blockd::server::flags {
namespace {

// A row of the table: an option, and how it is read, checked and shown.
struct Row {
  const char* name;
  const char* help;
  bool is_flag;
  bool is_shown;  // by GetServerInfo
  void (*read)(ServerOptions& options);
  absl::Status (*check)(const ServerOptions& options);
  std::string (*show)(const ServerOptions& options);
};
std::vector<Row>& Rows() {
  static auto& rows = *new std::vector<Row>;
  return rows;
}
bool Add(const Row& row) {
  Rows().push_back(row);
  return true;
}

// One default, in ServerOptions; the flags take theirs from here.
const ServerOptions& Defaults() {
  static const auto& defaults = *new ServerOptions;
  return defaults;
}

// The type of a flag differs from its option's only where that is a number of bytes.
template <typename Flag, typename Option>
Flag AsFlag(const Option& option) {
  return Flag{option};
}
template <typename T>
void Set(const T& flag, T& option) {
  option = flag;
}
void Set(const ByteSize& flag, int64_t& option) { option = flag.bytes; }

std::string Text(const std::string& value) { return value; }
std::string Text(bool value) { return value ? "true" : "false"; }
std::string Text(int32_t value) { return absl::StrCat(value); }
std::string Text(int64_t value) { return absl::StrCat(value); }
std::string Text(double value) { return absl::StrCat(value); }
std::string Text(absl::Duration value) { return absl::FormatDuration(value); }
std::string Text(const ByteSize& value) { return AbslUnparseFlag(value); }

// Ranges. CheckAndComplete checks what depends on other options.
struct Any {
  template <typename T>
  absl::Status Check(const char* /*flag*/, const T& /*value*/) const {
    return absl::OkStatus();
  }
};
struct Between {
  int64_t low, high;
  Between(int64_t low, int64_t high) : low(low), high(high) {}
  absl::Status Check(const char* flag, int64_t value) const {
    return CheckNumber(flag, value, low, high);
  }
};
struct Sizes {
  int64_t low, high;
  Sizes(int64_t low, int64_t high) : low(low), high(high) {}
  absl::Status Check(const char* flag, int64_t value) const {
    return CheckBytes(flag, value, low, high);
  }
};
struct Times {
  absl::Duration low, high;
  Times(absl::Duration low, absl::Duration high) : low(low), high(high) {}
  absl::Status Check(const char* flag, absl::Duration value) const {
    return CheckDuration(flag, value, low, high);
  }
};
struct OneOf {
  std::vector<absl::string_view> words;
  OneOf(std::initializer_list<absl::string_view> words) : words(words) {}
  absl::Status Check(const char* flag, const std::string& value) const {
    return CheckOneOf(flag, value, words);
  }
};
struct Share {
  absl::Status Check(const char* flag, double value) const {
    if (value > 0 && value <= 1) return absl::OkStatus();
    return RefuseFlag(flag, absl::StrCat(value), "a number above 0 and at most 1");
  }
};

constexpr int64_t kMany = int64_t{1} << 30;
constexpr int64_t kKiB = int64_t{1} << 10, kGiB = int64_t{1} << 30, kTiB = int64_t{1} << 40;
constexpr absl::Duration kZero = absl::ZeroDuration(), kMillisecond = absl::Milliseconds(1),
                         kDay = absl::Hours(24), kForever = absl::InfiniteDuration();

}  // namespace
}  // namespace blockd::server::flags

// The table. A row has the type of its flag, its name, its field of ServerOptions, its range and
// its help. GetServerInfo shows LIMITs and CONSTANTs; the latter are no flags. The flags library
// wants its flags outside of namespaces.
// clang-format off
// NOLINTBEGIN(bugprone-macro-parentheses): they name types and members
#define ROW(type, name, field, range, help, is_flag, is_shown, read)                            \
  static const bool row_of_##name = blockd::server::flags::Add(                                 \
      {#name, help, is_flag, is_shown, read,                                                    \
       [](const blockd::server::ServerOptions& o) -> absl::Status {                             \
         using namespace blockd::server::flags;                                                 \
         return (range).Check(#name, o.field);                                                  \
       },                                                                                       \
       [](const blockd::server::ServerOptions& o) {                                             \
         return blockd::server::flags::Text(blockd::server::flags::AsFlag<type>(o.field));      \
       }})
#define FLAG_ROW(type, name, field, range, help, is_shown)                                      \
  ABSL_FLAG(type, name,                                                                         \
            blockd::server::flags::AsFlag<type>(blockd::server::flags::Defaults().field), help); \
  ROW(type, name, field, range, help, true, is_shown, [](blockd::server::ServerOptions& o) {    \
    blockd::server::flags::Set(absl::GetFlag(FLAGS_##name), o.field);                           \
  })
#define FLAG(type, name, field, range, help) FLAG_ROW(type, name, field, range, help, false)
#define LIMIT(type, name, field, range, help) FLAG_ROW(type, name, field, range, help, true)
#define CONSTANT(type, name, field, range, help) \
  ROW(type, name, field, range, help, false, true, nullptr)

using blockd::server::ByteSize;

// Ports and addresses
FLAG(std::string, address, address, Any(),
     "Address to serve gRPC on, IPv4 or IPv6.");
FLAG(int32_t, port, port, Any(),
     "TCP port of gRPC; 0: any free one; -1: none, with --unix_socket.");
FLAG(std::string, metrics_address, metrics_address, Any(),
     "Address to serve /metrics on.");
FLAG(int32_t, metrics_port, metrics_port, Between(-1, 65535),
     "TCP port of /metrics (HTTP, Prometheus text); 0: any free one; -1: no metrics port.");
FLAG(int32_t, health_port, access.health_port, Between(-1, 65535),
     "TCP port of a second server on --address, without TLS, that answers health checks "
     "(grpc.health.v1) and nothing else; 0: any free one; -1: none.");
FLAG(std::string, port_file, port_file, Any(),
     "File that is written once the server serves: lines grpc=PORT and metrics=PORT; -1: "
     "none.");
FLAG(std::string, server_name, server_name, Any(),
     "Name of this server among several, the same after a restart; empty: HOSTNAME:port. "
     "A handle says by it who made it.");

// Who may come in
FLAG(std::string, unix_socket, access.unix_socket, Any(),
     "Path of a Unix domain socket to serve gRPC on too, without TLS, for this machine; "
     "--port=-1 serves on it alone. It replaces a socket that nobody listens on any more.");
FLAG(std::string, unix_socket_mode, access.unix_socket_mode, Any(),
     "Permissions of --unix_socket, octal: who may write may connect.");
FLAG(std::string, tls_cert_file, tls_cert_file, Any(),
     "PEM file with the server's certificate chain; with --tls_key_file it turns TLS on.");
FLAG(std::string, tls_key_file, tls_key_file, Any(),
     "PEM file with the server's private key.");
FLAG(std::string, tls_client_ca_file, tls_client_ca_file, Any(),
     "PEM file with the authorities of client certificates. Clients must then show one, "
     "and handles belong to the identity in it.");
FLAG(std::string, tls_min_version, access.tls_min_version, OneOf({"1.3", "1.2"}),
     "Oldest version of TLS: 1.3 or 1.2.");
FLAG(absl::Duration, tls_watch_interval, access.tls_watch_interval, Times(kMillisecond, kDay),
     "Time between two looks at the TLS files, as 10s; new ones hold for new connections.");
FLAG(std::string, tenants_file, access.tenants_file, Any(),
     "File with the tenants, as deploy/tenants.textproto is one: who each is, its quotas, "
     "its weight. Without it each caller is a tenant of its own.");
FLAG(std::string, certificate_identity, access.certificate_identity, Any(),
     "Kinds of names in a client's certificate, in the order in which they count: some of "
     "uri, dns, email, common_name. The first that the certificate has says who asks.");
FLAG(std::string, trust_caller_metadata, access.trust_caller_metadata,
     OneOf({"auto", "true", "false"}),
     "Whether callers may name themselves, in the metadata blockd-caller: true, false, or "
     "auto: only on a loopback address without client certificates. Whoever reaches a "
     "server that trusts may be anybody.");
FLAG(std::string, reflection, access.reflection, OneOf({"auto", "true", "false"}),
     "Whether the server describes its calls to whoever asks: true, false, or auto: only "
     "on a loopback address.");

// Devices
FLAG(std::string, backend, backend, OneOf({"auto", "cuda", "rocm", "cpu"}),
     "Where to compute: auto, cuda, rocm or cpu, as far as this build has them.");
FLAG(std::string, devices, devices, Any(),
     "Devices of --backend, which share the work: all, or a list as 0,1. A device may "
     "name its own backend, as cuda:1; cpu,cpu are two devices that share the processors.");
FLAG(ByteSize, device_memory, device.memory_bytes, Sizes(0, 1024 * kTiB),
     "Size of the memory pool on each device, for factorizations and work under way, as "
     "8GiB; 0: three quarters of what is free at start, which several on the CPU share.");
LIMIT(ByteSize, pinned_memory, device.host_memory_bytes, Sizes(0, kTiB),
     "Host memory that GPUs read and write where it lies, for right-hand sides and "
     "solutions; what has no room there is copied once more. 0: none.");
FLAG(int32_t, cpu_threads, device.cpu_threads, Between(0, 4096),
     "Threads of the CPU backend, of all its devices together; 0: one a processor that "
     "the server may use, by its affinity and the CPU quota of its control group. Results "
     "do not depend on it.");
FLAG(int32_t, cpu_lanes, device.cpu_lanes, Between(0, 4096),
     "Segments that a plan of the CPU backend may run at once; 0: one a processor of each "
     "device. The last bits of results depend on it.");

// Requests and factorizations
LIMIT(int64_t, max_queued_requests, core.max_queued_requests, Between(1, kMany),
     "Requests that may wait for the device; more are answered UNAVAILABLE with a delay.");
LIMIT(double, tenant_share, core.tenant_share, Share(),
     "What one tenant without a quota may have of queue, handles, memory to pin and "
     "shared memory while nobody else has any, a part of all; 1: all.");
LIMIT(int64_t, max_tenants, core.max_tenants, Between(1, kMany),
     "Callers with work or factorizations at a time, beside those of the tenants file. "
     "All beyond are one tenant.");
LIMIT(int64_t, max_handles, core.max_handles, Between(1, kMany),
     "Factorizations held at a time.");
CONSTANT(ByteSize, solve_reserve, core.solve_reserve_bytes, Sizes(0, kTiB),
     "Part of the memory pool for the workspace of Solves alone, as 64MiB; 0: a sixteenth.");
CONSTANT(absl::Duration, max_shared_batch, core.max_shared_batch, Times(kZero, absl::Seconds(10)),
     "Time that a batch of Solves, or a part of a long one, is predicted to take at most "
     "while several tenants ask, as 1ms; two columns may take longer.");
LIMIT(int64_t, max_batch_requests, core.max_batch_requests, Between(1, kMany),
     "Requests that run together in one batch.");
CONSTANT(ByteSize, max_batch_bytes, core.max_batch_bytes, Sizes(1, kTiB),
     "Bytes of right-hand sides or of matrices that run together in one batch, as 256MiB; "
     "one larger request runs alone.");
CONSTANT(int64_t, max_batch_rhs, core.max_batch_rhs, Between(1, kMany),
     "Right-hand sides that run together in one batch; one larger request runs alone.");
CONSTANT(absl::Duration, max_batch_delay, core.max_batch_delay, Times(kZero, absl::Seconds(10)),
     "Time that a request waits for others to share its batch while the device is free, "
     "as 200us.");
CONSTANT(absl::Duration, max_inline_solve, core.max_inline_solve, Times(kZero, kMillisecond),
     "Predicted time up to which a Solve or a Factor on a CPU is done by the thread that "
     "took it from its caller, as 50us, while few ask; 0: none is.");
LIMIT(absl::Duration, poll, core.poll, Times(kZero, absl::Seconds(1)),
     "How long a thread that waits for requests, before a device or in shared memory, "
     "goes on looking once nothing comes any more, as 500us, before it sleeps until it is "
     "woken, and an eighth of that where a third came later; 0: not at all. Negative: "
     "500us, or 0 on fewer than 4 processors, where it would take one from the work.");
LIMIT(absl::Duration, default_lease, core.default_lease, Any(),
     "Time after its last use during which a factorization is not evicted, where the "
     "caller asks for none, as 10s.");
LIMIT(absl::Duration, max_lease, core.max_lease, Times(kZero, kForever),
     "The longest lease that a caller may ask for, as 1h.");
LIMIT(absl::Duration, idle_expiry, core.idle_expiry, Times(kMillisecond, kForever),
     "Time without use after which a factorization that is not pinned is released, as 1h; "
     "inf: never.");
CONSTANT(absl::Duration, retry_delay, core.retry_delay, Times(kMillisecond, absl::Minutes(10)),
     "Delay that is said with UNAVAILABLE, as 50ms.");
LIMIT(int64_t, tombstones, core.tombstones, Between(0, kMany),
     "Handles whose end is remembered, so that NOT_FOUND can say why.");
LIMIT(int64_t, max_systems, core.max_systems, Between(1, kMany),
     "Systems of one Factor request (K).");
LIMIT(int64_t, max_rhs, core.max_rhs, Between(1, kMany),
     "Right-hand sides of one Solve request (d).");
LIMIT(int32_t, model_threads, core.model_threads, Between(0, 256),
     "Threads that assemble the models of Smooths; 0: one for two processors, from 1 to "
     "16.");

// Messages, connections, streams
LIMIT(ByteSize, max_message_bytes, max_message_bytes, Sizes(4 * kKiB, 2 * kGiB - 1),
     "Size of one message, as 64MiB; larger matrices and right-hand sides come as "
     "streams. At most 2GiB.");
LIMIT(ByteSize, max_inflight_request_bytes, core.max_inflight_request_bytes,
      Sizes(kKiB, 1024 * kTiB),
     "Bytes of requests and solutions that are held in host memory at once; beyond it "
     "requests are answered UNAVAILABLE with a delay. 0: an eighth of the machine's "
     "memory.");
LIMIT(int64_t, max_connections, max_connections, Between(0, kMany),
     "Connections at once; one more is closed as soon as it is made. 0: as many as there "
     "are file descriptors, less those kept for everything else, and at most one for each "
     "64KiB of --grpc_memory_bytes.");
CONSTANT(int64_t, max_connection_streams, max_connection_streams, Between(1, kMany),
     "Calls under way on one connection; more wait in the client.");
LIMIT(int64_t, max_resets_per_second, max_resets_per_second, Between(0, kMany),
     "Calls that one connection may reset a second before their message has come; one "
     "more ends the connection. 0: no limit.");
LIMIT(ByteSize, grpc_memory_bytes, grpc_memory_bytes, Sizes(1024 * kKiB, 1024 * kTiB),
     "Memory that gRPC aims to stay below for its own buffers; 0: an eighth of the "
     "machine's memory.");
LIMIT(int32_t, serving_threads, serving_threads, Between(0, 256),
     "Threads that take calls, and as many that answer them; 0: one for four processors "
     "and two more, from 4 to 18.");
LIMIT(int32_t, copy_threads, copy_threads, Between(0, 512),
     "Threads that copy uploads to the device, and as many for what else takes long; 0: "
     "one for two processors, from 4 to 32.");
LIMIT(int32_t, serving_queues, serving_queues, Between(1, 256),
     "Queues that share the connections and these threads, at most as many: 1 is best for "
     "few callers; of many, 3 threads with a queue each carry most.");
LIMIT(absl::Duration, stream_idle_timeout, stream_idle_timeout, Times(kMillisecond, kDay),
     "Time without a byte after which an upload that is not complete ends with "
     "DEADLINE_EXCEEDED, as 30s. A call's message has the time that --max_message_bytes "
     "take at --min_upload_bytes_per_second beside it.");
LIMIT(ByteSize, min_upload_bytes_per_second, min_upload_bytes_per_second, Sizes(0, kTiB),
     "Least rate of an upload, on average, beyond a grace of 5 s, as 1MiB; a slower one "
     "ends with DEADLINE_EXCEEDED. Only the time counts in which the server waits for the "
     "client. 0: none.");
LIMIT(absl::Duration, max_upload_duration, max_upload_duration, Times(kMillisecond, kDay),
     "Time after which an upload that is not complete ends with DEADLINE_EXCEEDED however "
     "fast it is, as 10m.");
LIMIT(absl::Duration, reply_timeout, reply_timeout, Times(kMillisecond, kDay),
     "Time that a client may leave a reply, or a piece of one, unread; then its call is "
     "cancelled, as 30s.");
LIMIT(ByteSize, stream_chunk_bytes, stream_chunk_bytes, Sizes(kKiB, kGiB),
     "Largest piece of a solution in a SolveStream, as 1MiB; larger solutions come in "
     "chunks.");
CONSTANT(int64_t, max_stream_requests, max_stream_requests, Between(1, kMany),
     "Unanswered requests of one SolveStream; then the server reads no more until one is "
     "answered.");
CONSTANT(ByteSize, max_stream_bytes, max_stream_bytes, Sizes(kKiB, kTiB),
     "Bytes of right-hand sides and solutions that one SolveStream holds in host memory; "
     "a larger request in it is refused.");
LIMIT(absl::Duration, keepalive_time, keepalive_time, Times(absl::Seconds(1), kDay),
     "Silence on a connection after which the server pings it, as 1m.");
CONSTANT(absl::Duration, keepalive_timeout, keepalive_timeout, Times(kMillisecond, kDay),
     "Time that such a ping may take before the connection is closed, as 20s.");
LIMIT(absl::Duration, max_connection_age, max_connection_age, Times(kMillisecond, kForever),
     "Age after which a connection is told to go away once its calls are over, as 1h; "
     "inf: never.");
LIMIT(absl::Duration, max_connection_idle, max_connection_idle, Times(kMillisecond, kForever),
     "Time without a call after which a connection is told to go away, as 10m; inf: never.");
CONSTANT(absl::Duration, handshake_timeout, handshake_timeout, Times(kMillisecond, kDay),
     "Time that a new connection has to say that it speaks HTTP/2, with TLS before that, "
     "as 20s.");
CONSTANT(absl::Duration, min_ping_interval, min_ping_interval, Times(kMillisecond, kDay),
     "Shortest time between two pings of a client that is not sending, as 10s.");
CONSTANT(ByteSize, http2_frame_bytes, http2_frame_bytes, Sizes(16 * kKiB, 16383 * kKiB),
     "Largest HTTP/2 frame that clients may send, from 16KiB to 16383KiB.");
CONSTANT(ByteSize, http2_window_bytes, http2_window_bytes, Sizes(64 * kKiB, kGiB),
     "Bytes that a client may send on one stream before the server has read them, from "
     "64KiB to 1GiB.");

// The end, and the log
LIMIT(absl::Duration, drain_grace, drain_grace, Times(kZero, kDay),
     "Time after SIGTERM or SIGINT in which the port stays open and says that the server "
     "drains, so that routers and callers leave before it closes, as 1s.");
LIMIT(absl::Duration, drain_timeout, drain_timeout, Times(kZero, kDay),
     "Time that accepted work has to finish after --drain_grace, as 30s.");
FLAG(std::string, log_level, log_level, OneOf({"debug", "info", "warn", "error", "off"}),
     "What is logged to standard error: debug, info, warn, error or off.");
FLAG(std::string, log_format, log_format, OneOf({"logfmt", "json"}),
     "How a line of the log looks: logfmt or json.");
LIMIT(ByteSize, log_buffer_bytes, log_buffer_bytes, Sizes(64 * kKiB, kGiB),
     "Memory for lines of the log that nobody has read yet, as 1MiB; lines that find no "
     "room are dropped and counted.");
LIMIT(int64_t, log_requests_per_second, log_requests_per_second, Between(0, kMany),
     "Requests that get a line of the log each second, and as many failures beside them; "
     "the others are counted.");

// Shared memory
FLAG(bool, shared_memory, shared_memory.enabled, Any(),
     "Whether callers of this host may share memory with the server, set up through the "
     "Unix socket PATH.shm beside --unix_socket, with the same permissions.");
LIMIT(ByteSize, max_shared_memory_bytes, shared_memory.max_bytes, Sizes(0, 1024 * kTiB),
     "Memory of all shared-memory sessions together, as 8GiB; it counts against "
     "--max_inflight_request_bytes as long as they are open. A tenant may have "
     "--tenant_share of it, unless the tenants file has host_bytes for it. 0: half of "
     "that.");
LIMIT(int64_t, shared_memory_sessions, shared_memory.max_sessions, Between(1, 65536),
     "Shared-memory sessions open at once; a tenant may have --tenant_share of them.");
CONSTANT(int32_t, shared_memory_threads, shared_memory.threads, Between(0, 64),
     "Threads that look for requests in shared memory; 0: one for each 8 processors, at "
     "most 4.");

ABSL_FLAG(bool, hash_token, false,
          "Reads a bearer token from standard input, prints its token_sha256 for the tenants file, "
          "and ends.");
// NOLINTEND(bugprone-macro-parentheses)
// clang-format on

namespace blockd::server {

using flags::Row;
using flags::Rows;

ServerOptions ReadFlags() {
  ServerOptions options;
  for (const Row& row : Rows()) {
    if (row.is_flag) row.read(options);
  }
  return options;
}

absl::Status CheckRanges(const ServerOptions& options) {
  absl::Status status;
  for (const Row& row : Rows()) status.Update(row.check(options));
  return status;
}

std::vector<OptionValue> Limits(const ServerOptions& options) {
  std::vector<OptionValue> limits;
  for (const Row& row : Rows()) {
    if (row.is_shown) limits.push_back({row.name, row.show(options), row.help});
  }
  limits.push_back({"metadata_bytes", flags::Text(ByteSize{kMaxMetadataBytes}),
                    "Bytes of one call's metadata, names and values."});
  return limits;
}

absl::Status RefuseFormerFlags(absl::Span<char* const> arguments) {
  for (const absl::string_view argument : arguments) {
    const absl::string_view name =
        absl::StripPrefix(absl::StripPrefix(argument.substr(0, argument.find('=')), "-"), "-");
    for (const Row& row : Rows()) {
      if (row.is_flag || row.name != name || !absl::StartsWith(argument, "-")) continue;
      return absl::InvalidArgumentError(absl::StrCat("--", name, " is no flag any more: ", name,
                                                     " is always ", row.show(flags::Defaults()),
                                                     ", as GetServerInfo shows"));
    }
  }
  return absl::OkStatus();
}

bool HashTokenAsked() { return absl::GetFlag(FLAGS_hash_token); }

}  // namespace blockd::server
