// Serves one page, /metrics, over HTTP.
//
// One thread answers and waits for all connections at once, so that a silent one costs a descriptor
// and nothing else; it is closed after a second. Thread-safe.
#ifndef BLOCKD_SERVER_METRICS_PORT_H_
#define BLOCKD_SERVER_METRICS_PORT_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "server/net/listener.h"

struct MHD_Daemon;

namespace blockd::server {

class MetricsPort {
 public:
  // `page` makes the text, on a thread of the port. `max_connections`: at once, on each socket.
  // UNAVAILABLE if the machine has no thread or memory for it.
  static absl::StatusOr<std::unique_ptr<MetricsPort>> Start(Listener listener,
                                                            int64_t max_connections,
                                                            std::function<std::string()> page);
  ~MetricsPort();  // at once, but for a page under way
  MetricsPort(const MetricsPort&) = delete;
  MetricsPort& operator=(const MetricsPort&) = delete;

  int port() const { return port_; }
  std::string Page() const { return page_(); }

 private:
  MetricsPort(int port, std::function<std::string()> page) : port_(port), page_(std::move(page)) {}

  const int port_;
  const std::function<std::string()> page_;
  std::vector<MHD_Daemon*> daemons_;  // one a socket
};

}  // namespace blockd::server

#endif  // BLOCKD_SERVER_METRICS_PORT_H_
