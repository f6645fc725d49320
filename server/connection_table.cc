#include "server/connection_table.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstddef>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "server/descriptors.h"
#include "server/listener.h"

namespace blockd::server {
namespace {

ino_t InodeOf(int fd) {
  struct stat file {};
  return fstat(fd, &file) == 0 && S_ISSOCK(file.st_mode) ? file.st_ino : 0;
}

// What the kernel counts of a connection; nothing of one that is not TCP.
struct Traffic {
  int64_t received = 0, sent = 0;
};

Traffic TrafficOf(int fd) {
  tcp_info info{};
  socklen_t size = sizeof(info);
  constexpr size_t kNeeded =
      offsetof(tcp_info, tcpi_bytes_received) + sizeof(info.tcpi_bytes_received);
  if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size) != 0 || size < kNeeded) return {};
  return {static_cast<int64_t>(info.tcpi_bytes_received),
          static_cast<int64_t>(info.tcpi_bytes_acked)};
}

}  // namespace

void ConnectionTable::Add(int fd, std::string peer) {
  Connection& connection = open_[fd];
  connection = Connection();
  connection.inode = InodeOf(fd);
  connection.peer = std::move(peer);
  connection.number = added_++;
}

int64_t ConnectionTable::Count() {
  absl::erase_if(open_,
                 [](const auto& entry) { return InodeOf(entry.first) != entry.second.inode; });
  return AtMost();
}

bool ConnectionTable::End(absl::string_view peer) {
  if (peer.empty()) return false;
  for (const auto& [fd, connection] : open_) {
    if (connection.peer == peer && Shutdown(fd, connection)) return true;
  }
  return false;
}

std::vector<std::string> ConnectionTable::EndUnanswered(const UnansweredLimit& limit) {
  Count();  // forgets those that are closed
  bool some_beyond = false;
  for (auto& [fd, connection] : open_) {
    const Traffic traffic = TrafficOf(fd);
    if (traffic.sent != connection.sent) connection.answered = traffic.received;
    connection.sent = traffic.sent;
    connection.unanswered = traffic.received - connection.answered;
    if (connection.unanswered <= limit.bytes) connection.beyond = 0;
    some_beyond |= connection.unanswered > limit.bytes;
  }
  if (!some_beyond) return {};
  absl::flat_hash_map<std::string, int64_t> open_calls;
  if (limit.open_calls) open_calls = limit.open_calls();
  std::vector<std::string> ended;
  for (auto& [fd, connection] : open_) {
    if (connection.unanswered <= limit.bytes) continue;
    const auto calls = open_calls.find(connection.peer);
    const int64_t most =
        calls == open_calls.end()
            ? limit.bytes
            : std::min(limit.bytes_with_call + calls->second * limit.bytes_per_call,
                       limit.most_bytes);
    connection.beyond = connection.unanswered > most ? connection.beyond + 1 : 0;
    if (connection.beyond == kLooks) ended.push_back(connection.peer);
  }
  ended.erase(std::remove_if(ended.begin(), ended.end(),
                             [this](const std::string& peer) { return !End(peer); }),
              ended.end());
  return ended;
}

bool ConnectionTable::EndOldest() {
  while (!open_.empty()) {
    const auto oldest = std::min_element(
        open_.begin(), open_.end(),
        [](const auto& a, const auto& b) { return a.second.number < b.second.number; });
    const bool ended = Shutdown(oldest->first, oldest->second);
    open_.erase(oldest);
    if (ended) return true;
  }
  return false;
}

bool ConnectionTable::Shutdown(int fd, const Connection& connection) {
  // By a descriptor of our own: after a look at `fd` its owner may close it, and another file get
  // the number.
  const FileDescriptor held(fcntl(fd, F_DUPFD_CLOEXEC, 0));
  return InodeOf(held.get()) == connection.inode && shutdown(held.get(), SHUT_RDWR) == 0;
}

std::string PeerName(const sockaddr_storage& address) {
  char text[INET6_ADDRSTRLEN] = "";
  if (address.ss_family == AF_INET) {
    const auto& v4 = reinterpret_cast<const sockaddr_in&>(address);
    return HostPort(inet_ntop(AF_INET, &v4.sin_addr, text, sizeof(text)), ntohs(v4.sin_port));
  }
  if (address.ss_family != AF_INET6) return "";
  const auto& v6 = reinterpret_cast<const sockaddr_in6&>(address);
  absl::string_view host = inet_ntop(AF_INET6, &v6.sin6_addr, text, sizeof(text));
  if (IN6_IS_ADDR_V4MAPPED(&v6.sin6_addr)) absl::ConsumePrefix(&host, "::ffff:");
  return HostPort(std::string(host), ntohs(v6.sin6_port));
}

std::string PeerName(absl::string_view grpc_peer) {
  if (!absl::ConsumePrefix(&grpc_peer, "ipv4:") && !absl::ConsumePrefix(&grpc_peer, "ipv6:")) {
    return "";
  }
  return absl::StrReplaceAll(grpc_peer, {{"%5B", "["}, {"%5D", "]"}});
}

}  // namespace blockd::server
