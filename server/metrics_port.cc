#include "server/metrics_port.h"

#include <microhttpd.h>

#include <exception>
#include <string_view>
#include <utility>

#include "absl/status/status.h"

namespace blockd::server {
namespace {

constexpr unsigned kSilenceSeconds = 1;
constexpr size_t kRequestBytes = size_t{16} << 10;  // what a scraper may send

MHD_Result Answer(MHD_Connection* connection, unsigned status, const std::string& text) {
  MHD_Response* response = MHD_create_response_from_buffer(
      text.size(), const_cast<char*>(text.data()), MHD_RESPMEM_MUST_COPY);
  if (response == nullptr) return MHD_NO;
  MHD_add_response_header(response, MHD_HTTP_HEADER_CONTENT_TYPE,
                          "text/plain; version=0.0.4; charset=utf-8");
  if (status == MHD_HTTP_METHOD_NOT_ALLOWED) {
    MHD_add_response_header(response, MHD_HTTP_HEADER_ALLOW, "GET, HEAD");
  }
  MHD_add_response_header(response, MHD_HTTP_HEADER_CONNECTION, "close");
  const MHD_Result result = MHD_queue_response(connection, status, response);
  MHD_destroy_response(response);
  return result;
}

MHD_Result AnswerScrape(void* port, MHD_Connection* connection, const char* url, const char* method,
                        const char* /*version*/, const char* /*upload*/, size_t* /*upload_bytes*/,
                        void** /*state*/) {
  const std::string_view verb = method;
  if (verb != MHD_HTTP_METHOD_GET && verb != MHD_HTTP_METHOD_HEAD) {
    return Answer(connection, MHD_HTTP_METHOD_NOT_ALLOWED, "GET /metrics\n");
  }
  if (std::string_view(url) != "/metrics") {
    return Answer(connection, MHD_HTTP_NOT_FOUND, "the metrics are at /metrics\n");
  }
  try {  // no exception may pass through the library
    return Answer(connection, MHD_HTTP_OK, static_cast<MetricsPort*>(port)->Page());
  } catch (const std::exception&) {
    return MHD_NO;
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<MetricsPort>> MetricsPort::Start(Listener listener,
                                                                int64_t max_connections,
                                                                std::function<std::string()> page) {
  auto port = std::unique_ptr<MetricsPort>(new MetricsPort(listener.port, std::move(page)));
  for (FileDescriptor& socket_fd : listener.sockets) {
    MHD_Daemon* daemon = MHD_start_daemon(
        MHD_USE_EPOLL_INTERNAL_THREAD | MHD_USE_ITC, 0, nullptr, nullptr, AnswerScrape, port.get(),
        MHD_OPTION_LISTEN_SOCKET, socket_fd.get(), MHD_OPTION_CONNECTION_LIMIT,
        static_cast<unsigned>(max_connections), MHD_OPTION_CONNECTION_TIMEOUT, kSilenceSeconds,
        MHD_OPTION_CONNECTION_MEMORY_LIMIT, kRequestBytes, MHD_OPTION_END);
    if (daemon == nullptr) return absl::UnavailableError("cannot start a server for /metrics");
    (void)socket_fd.Release();  // the daemon's now
    port->daemons_.push_back(daemon);
  }
  return port;
}

MetricsPort::~MetricsPort() {
  for (MHD_Daemon* daemon : daemons_) MHD_stop_daemon(daemon);
}

}  // namespace blockd::server
