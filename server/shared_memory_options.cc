#include "server/shared_memory_options.h"

#include <algorithm>
#include <string>

#include "absl/flags/flag.h"
#include "absl/strings/str_cat.h"
#include "proto/blockd/v1/shared_memory.h"
#include "server/core/byte_size.h"
#include "server/flag_checks.h"
#include "server/listener.h"
#include "server/machine_limits.h"

using blockd::server::ByteSize;

// One default, in SharedMemoryOptions; the flags take theirs from here.
static const blockd::server::SharedMemoryOptions& SharedMemoryDefaults() {
  static const auto& defaults = *new blockd::server::SharedMemoryOptions;
  return defaults;
}

ABSL_FLAG(bool, shared_memory, SharedMemoryDefaults().enabled,
          "Whether callers of this host may share memory with the server, set up through the Unix "
          "socket PATH.shm beside --unix_socket, with the same permissions.");
ABSL_FLAG(ByteSize, max_shared_memory_bytes, ByteSize{SharedMemoryDefaults().max_bytes},
          "Memory of all shared-memory sessions together, as 8GiB; it counts against "
          "--max_inflight_request_bytes as long as they are open. A tenant may have --tenant_share "
          "of it, unless the tenants file has host_bytes for it. 0: half of that.");
ABSL_FLAG(int64_t, shared_memory_sessions, SharedMemoryDefaults().max_sessions,
          "Shared-memory sessions open at once; a tenant may have --tenant_share of them.");
ABSL_FLAG(int32_t, shared_memory_threads, SharedMemoryDefaults().threads,
          "Threads that look for requests in shared memory; 0: one for each 8 processors, at most "
          "4.");

namespace blockd::server {
namespace {

constexpr int32_t kProcessorsAThread = 8, kMostThreads = 4;
constexpr int64_t kMaxBytes = int64_t{1} << 50;

}  // namespace

void Complete(int64_t max_inflight_request_bytes, SharedMemoryOptions* options) {
  if (options->max_bytes == 0) options->max_bytes = max_inflight_request_bytes / 2;
  if (options->threads == 0) {
    options->threads = std::clamp(MachineProcessors() / kProcessorsAThread, 1, kMostThreads);
  }
}

absl::Status CheckSharedMemory(const SharedMemoryOptions& options, absl::string_view unix_socket) {
  absl::Status status;
  status.Update(CheckBytes("max_shared_memory_bytes", options.max_bytes, 0, kMaxBytes));
  status.Update(CheckNumber("shared_memory_sessions", options.max_sessions, 1, 65536));
  status.Update(CheckNumber("shared_memory_threads", options.threads, 0, 64));
  if (!options.enabled) return status;
  const size_t most = kMaxSocketPath - (sizeof(v1::kShmSocketSuffix) - 1);
  if (unix_socket.empty()) {
    status.Update(RefuseFlag("shared_memory", "true", "--unix_socket, beside which it is set up"));
  } else if (unix_socket.size() > most) {
    status.Update(
        RefuseFlag("unix_socket", unix_socket,
                   absl::StrCat("a path of at most ", most, " bytes, with ", "--shared_memory")));
  }
  return status;
}

SharedMemoryOptions SharedMemoryFromFlags() {
  SharedMemoryOptions options;
  options.enabled = absl::GetFlag(FLAGS_shared_memory);
  options.max_bytes = absl::GetFlag(FLAGS_max_shared_memory_bytes).bytes;
  options.max_sessions = absl::GetFlag(FLAGS_shared_memory_sessions);
  options.threads = absl::GetFlag(FLAGS_shared_memory_threads);
  return options;
}

}  // namespace blockd::server
