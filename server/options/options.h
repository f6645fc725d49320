// Everything that an operator may set, checked once at start.
//
// ServerOptions is plain data with the defaults that serve; the flags of the same names are read
// and checked by OptionsFromFlags. Not thread-safe; read once, then shared as const.
#ifndef BLOCKD_SERVER_OPTIONS_OPTIONS_H_
#define BLOCKD_SERVER_OPTIONS_OPTIONS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/core/solver_core.h"
#include "server/options/access_options.h"
#include "server/options/device_options.h"
#include "server/options/shared_memory_options.h"

namespace blockd::server {

struct ServerOptions : DeviceOptions {
  std::string address = "127.0.0.1";
  int32_t port = 7117;  // 0: any free one; -1: none, where there is a Unix socket
  std::string metrics_address = "127.0.0.1";
  int32_t metrics_port = 7118;  // 0: any free one; -1: none
  std::string port_file;
  std::string server_name;  // empty: HOSTNAME:port

  std::string tls_cert_file, tls_key_file, tls_client_ca_file;
  AccessOptions access;
  SharedMemoryOptions shared_memory;
  // The parts that the access options depend on; views of this object.
  Entrance network_entrance() const {
    return {address, !tls_cert_file.empty(), !tls_client_ca_file.empty()};
  }
  Entrance unix_entrance() const { return {.address = access.unix_socket, .is_unix = true}; }
  std::vector<Entrance> entrances() const;  // those that are open

  CoreLimits core = {.max_inline_solve = absl::Microseconds(50)};

  int64_t max_message_bytes = int64_t{64} << 20;
  int64_t max_connections = 0;  // 0: as many as there are file descriptors, less some
  int64_t max_connection_streams = 1000;
  int64_t max_resets_per_second = 200;  // of a connection; 0: no limit
  int64_t grpc_memory_bytes = 0;        // 0: an eighth of the machine's memory
  int32_t serving_threads = 0;          // 0: one for four processors and 2, 4 to 18
  int32_t serving_queues = 1;           // at most as many as threads
  int32_t copy_threads = 0;             // 0: one for two processors, 4 to 32

  absl::Duration stream_idle_timeout = absl::Seconds(30);
  int64_t min_upload_bytes_per_second = int64_t{1} << 20;
  absl::Duration max_upload_duration = absl::Minutes(10);
  absl::Duration reply_timeout = absl::Seconds(30);
  int64_t stream_chunk_bytes = int64_t{1} << 20;
  int64_t max_stream_requests = 64;
  int64_t max_stream_bytes = int64_t{256} << 20;

  absl::Duration keepalive_time = absl::Minutes(1);
  absl::Duration keepalive_timeout = absl::Seconds(20);
  absl::Duration max_connection_age = absl::InfiniteDuration();
  absl::Duration max_connection_idle = absl::InfiniteDuration();
  absl::Duration handshake_timeout = absl::Seconds(20);
  absl::Duration min_ping_interval = absl::Seconds(10);
  int64_t http2_frame_bytes = int64_t{4} << 20;
  int64_t http2_window_bytes = int64_t{64} << 20;

  absl::Duration drain_grace = absl::Seconds(1);
  absl::Duration drain_timeout = absl::Seconds(30);
  std::string log_level = "info";
  std::string log_format = "logfmt";
  int64_t log_buffer_bytes = int64_t{1} << 20;
  int64_t log_requests_per_second = 100;
};

// The bytes of one call's metadata, names and values. gRPC is told of a larger limit (hand_over.h).
inline constexpr int64_t kMaxMetadataBytes = 8 << 10;

// Puts numbers where 0 means "fit the machine", and refuses values out of range: INVALID_ARGUMENT,
// naming the flag, its value and what was expected.
absl::Status CheckAndComplete(ServerOptions* options);

// The options of the flags, checked and completed.
absl::StatusOr<ServerOptions> OptionsFromFlags();

// Tells absl::flags how --help and --version look. Before absl::ParseCommandLine.
void SetUpFlags();

// Every flag that is a limit or a size, with the value in force and the flag's help.
struct OptionValue {
  std::string name, value, help;
};
std::vector<OptionValue> Limits(const ServerOptions& options);

std::string Version();  // "0.1.0"

}  // namespace blockd::server

#endif  // BLOCKD_SERVER_OPTIONS_OPTIONS_H_
