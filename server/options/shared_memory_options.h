// The flags of shared-memory sessions (transport/shm_port.h).
//
// Plain data with the defaults that serve, as ServerOptions is, of which it is a part.
#ifndef BLOCKD_SERVER_OPTIONS_SHARED_MEMORY_OPTIONS_H_
#define BLOCKD_SERVER_OPTIONS_SHARED_MEMORY_OPTIONS_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace blockd::server {

struct SharedMemoryOptions {
  bool enabled = false;
  int64_t max_bytes = 0;  // of all sessions; 0: half of --max_inflight_request_bytes
  int64_t max_sessions = 64;
  int32_t threads = 0;  // 0: one for each 8 processors, at most 4
};

// Puts numbers where the options say "fit the machine".
void Complete(int64_t max_inflight_request_bytes, SharedMemoryOptions* options);

// INVALID_ARGUMENT, naming the flag, its value and what was expected.
absl::Status CheckSharedMemory(const SharedMemoryOptions& options, absl::string_view unix_socket);

}  // namespace blockd::server

#endif  // BLOCKD_SERVER_OPTIONS_SHARED_MEMORY_OPTIONS_H_
