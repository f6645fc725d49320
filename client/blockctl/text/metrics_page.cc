#include "client/blockctl/text/metrics_page.h"

#include <netdb.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <memory>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace blockd::blockctl {
namespace {

absl::Status Unreachable(const std::string& address, const std::string& why) {
  return absl::UnavailableError(absl::StrCat("no metrics at ", address, ": ", why));
}

absl::StatusOr<int> Dial(const std::string& address) {
  const size_t colon = address.rfind(':');
  if (colon == std::string::npos) return absl::InvalidArgumentError(address + " is no host:port");
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(address.substr(0, colon).c_str(), address.substr(colon + 1).c_str(),
                                &hints, &found);
  if (error != 0) return Unreachable(address, gai_strerror(error));
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> guard(found, freeaddrinfo);
  for (const addrinfo* each = found; each != nullptr; each = each->ai_next) {
    const int fd = socket(each->ai_family, each->ai_socktype | SOCK_CLOEXEC, each->ai_protocol);
    if (fd < 0) continue;
    const timeval limit{5, 0};
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
    if (connect(fd, each->ai_addr, each->ai_addrlen) == 0) return fd;
    close(fd);
  }
  return Unreachable(address, "nobody listens there");
}

}  // namespace

absl::StatusOr<std::string> FetchMetrics(const std::string& address) {
  const absl::StatusOr<int> fd = Dial(address);
  if (!fd.ok()) return fd.status();
  const absl::Cleanup closer = [&] { close(*fd); };
  // HTTP/1.0: the answer comes in one piece and ends with the connection.
  const std::string request = "GET /metrics HTTP/1.0\r\nHost: " + address + "\r\n\r\n";
  if (send(*fd, request.data(), request.size(), MSG_NOSIGNAL) !=
      static_cast<ssize_t>(request.size())) {
    return Unreachable(address, "the connection broke");
  }
  std::string answer;
  char buffer[1 << 14];
  ssize_t got;
  while ((got = recv(*fd, buffer, sizeof(buffer), 0)) > 0) answer.append(buffer, got);
  const size_t body = answer.find("\r\n\r\n");
  const std::string first_line = answer.substr(0, answer.find("\r\n"));
  if (body == std::string::npos || !absl::StrContains(first_line, " 200")) {
    return Unreachable(address, first_line.empty() ? "no answer" : "it answered " + first_line);
  }
  return answer.substr(body + 4);
}

std::string MetricsSummary(const std::string& page) {
  std::string summary;
  for (const absl::string_view line : absl::StrSplit(page, '\n', absl::SkipWhitespace())) {
    const size_t space = line.rfind(' ');
    double value = 0;
    const absl::string_view name = line.substr(0, line.find_first_of("{ "));
    if (!absl::StartsWith(name, "blockd_") || absl::EndsWith(name, "_bucket") ||
        absl::EndsWith(name, "_sum") || absl::EndsWith(name, "_count") ||
        space == absl::string_view::npos || !absl::SimpleAtod(line.substr(space + 1), &value) ||
        value == 0) {
      continue;
    }
    absl::StrAppend(&summary, "  ", line, "\n");
  }
  return summary;
}

}  // namespace blockd::blockctl
