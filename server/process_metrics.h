// Metrics of the process itself, beside those of the core.
#ifndef BLOCKD_SERVER_PROCESS_METRICS_H_
#define BLOCKD_SERVER_PROCESS_METRICS_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/time/time.h"
#include "server/transport/shm/shm_port.h"

namespace blockd::server {

struct ProcessSample {
  int64_t connections = 0;
  int64_t max_connections = 0;
  int64_t connections_refused = 0;
  int64_t connections_ended = 0;
  ShmStats shared_memory{};
  std::optional<absl::Duration> certificate_time;  // until it ends; none without TLS
};

// Prometheus text: these, the file descriptors, and what the log has left out.
std::string ProcessMetricsText(const ProcessSample& sample);

}  // namespace blockd::server

#endif  // BLOCKD_SERVER_PROCESS_METRICS_H_
