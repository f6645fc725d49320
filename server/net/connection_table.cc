#include "server/net/connection_table.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "server/base/descriptors.h"
#include "server/net/listener.h"
#include "server/net/watched_reads.h"

namespace blockd::server {
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
  if (InodeOf(held.get()) != connection.inode) return false;
  StopReads(fd, connection.inode);
  return shutdown(held.get(), SHUT_RDWR) == 0;
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
