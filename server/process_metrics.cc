#include "server/process_metrics.h"

#include "absl/strings/str_cat.h"
#include "server/base/descriptors.h"
#include "server/log/logging.h"

namespace blockd::server {

std::string ProcessMetricsText(const ProcessSample& sample) {
  std::string text;
  const auto add = [&text](const char* name, const char* type, const char* help, int64_t value) {
    absl::StrAppend(&text, "# HELP ", name, " ", help, "\n# TYPE ", name, " ", type, "\n", name,
                    " ", value, "\n");
  };
  add("blockd_connections", "gauge", "Connections of gRPC now.", sample.connections);
  add("blockd_max_connections", "gauge", "The most that there may be.", sample.max_connections);
  add("blockd_connections_refused_total", "counter",
      "Connections closed as soon as they were made, since there were too many.",
      sample.connections_refused);
  add("blockd_connections_ended_total", "counter",
      "Connections ended since they reset calls faster than --max_resets_per_second, or sent "
      "frames without end that belong to no call.",
      sample.connections_ended);
  add("blockd_shared_memory_sessions", "gauge", "Shared-memory sessions now.",
      sample.shared_memory.sessions);
  add("blockd_shared_memory_bytes", "gauge", "Memory of these sessions.",
      sample.shared_memory.bytes);
  add("blockd_max_shared_memory_bytes", "gauge", "The most that it may be.",
      sample.shared_memory.max_bytes);
  add("blockd_shared_memory_refused_total", "counter", "Sessions asked for and refused.",
      sample.shared_memory.refused);
  add("blockd_open_file_descriptors", "gauge", "File descriptors open now.", OpenDescriptors());
  add("blockd_max_file_descriptors", "gauge", "The most that there may be.", DescriptorLimit());
  const LogCounts log = CountsOfLog();
  add("blockd_log_lines_dropped_total", "counter",
      "Lines of the log lost, since nobody read those before them.", log.lines_dropped);
  add("blockd_log_requests_not_logged_total", "counter",
      "Requests without a line of the log, beyond --log_requests_per_second.",
      log.requests_not_logged);
  if (sample.certificate_time.has_value()) {
    add("blockd_tls_certificate_expiry_seconds", "gauge",
        "Until the first certificate of the server's chain ends; negative once it has.",
        absl::ToInt64Seconds(*sample.certificate_time));
  }
  return text;
}

}  // namespace blockd::server
