#include "server/options/shared_memory_options.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "proto/blockd/v1/shared_memory.h"
#include "server/base/descriptors.h"
#include "server/base/machine_limits.h"
#include "server/options/flag_checks.h"

namespace blockd::server {
namespace {

constexpr int32_t kProcessorsAThread = 8, kMostThreads = 4;

}  // namespace

void Complete(int64_t max_inflight_request_bytes, SharedMemoryOptions* options) {
  if (options->max_bytes == 0) options->max_bytes = max_inflight_request_bytes / 2;
  if (options->threads == 0) {
    options->threads = std::clamp(MachineProcessors() / kProcessorsAThread, 1, kMostThreads);
  }
}

absl::Status CheckSharedMemory(const SharedMemoryOptions& options, absl::string_view unix_socket) {
  absl::Status status;
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

}  // namespace blockd::server
