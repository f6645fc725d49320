#include "server/options/options.h"

#include <unistd.h>

#include <algorithm>
#include <string>

#include "absl/flags/usage.h"
#include "absl/flags/usage_config.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "server/base/descriptors.h"
#include "server/base/machine_limits.h"
#include "server/options/flag_checks.h"
#include "server/options/flags.h"

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

// A little more than a call over TCP takes to come back after its answer, and than a device takes
// for most that is short.
constexpr absl::Duration kPoll = absl::Microseconds(500);
constexpr int32_t kFewProcessors = 4;

// Checks that need several options.
absl::Status CheckTogether(const ServerOptions& o) {
  absl::Status status = CheckNumber("port", o.port, o.access.unix_socket.empty() ? 0 : -1, 65535);
  if (absl::StartsWith(o.address, "unix:")) {
    status.Update(
        RefuseFlag("address", o.address,
                   "an address of IPv4 or IPv6; --unix_socket=PATH is for a Unix socket"));
  }
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
  status.Update(
      CheckDuration("default_lease", o.core.default_lease, absl::ZeroDuration(), o.core.max_lease));
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
  absl::Status status = CheckRanges(*options);
  if (status.ok()) status = CheckDevices(options);
  status.Update(CheckTogether(*options));
  if (status.ok()) {
    options->serving_queues = std::min(options->serving_queues, options->serving_threads);
  }
  return status;
}

absl::StatusOr<ServerOptions> OptionsFromFlags() {
  ServerOptions o = ReadFlags();
  if (absl::Status status = CheckAndComplete(&o); !status.ok()) return status;
  return o;
}

void SetUpFlags() {
  absl::SetProgramUsageMessage(
      "serves factorizations of SPD block-tridiagonal systems over gRPC.\n"
      "With no flag it listens on the loopback address and fits its limits to the machine.\n"
      "Times are written as 200us, 50ms, 30s, 1h or inf; sizes as 65536, 64KiB, 512MiB or 8GiB.");
  absl::FlagsUsageConfig config;
  // Flags are grouped by file.
  config.normalize_filename = [](absl::string_view file) {
    return std::string(absl::EndsWith(file, "server/options/flags.cc") ? "blockd" : file);
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
