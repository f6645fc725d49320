// Sockets that listen: one for each address that a name stands for, on one port.
#ifndef BLOCKD_SERVER_LISTENER_H_
#define BLOCKD_SERVER_LISTENER_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/descriptors.h"

namespace blockd::server {

// "127.0.0.1:7117", "[::1]:7117".
std::string HostPort(const std::string& address, int port);

struct Listener {
  std::vector<FileDescriptor> sockets;  // they do not block, nor does a child inherit them
  int port = 0;
};

// `address`: IPv4, IPv6 or a name; 0.0.0.0 and :: both mean every address of either kind. `port` 0:
// any free one. `silence`: how long what was sent may stay unacknowledged before a connection ends.
// UNAVAILABLE, with the machine's own words, if it cannot be listened on.
absl::StatusOr<Listener> Listen(const std::string& address, int port, absl::Duration silence);

}  // namespace blockd::server

#endif  // BLOCKD_SERVER_LISTENER_H_
