// Which sockets that were given away are still open, and an end to one of them.
//
// Their owner does not tell when it closes one. The inode of a socket does: another file that gets
// the same number has another inode. Not thread-safe.
#ifndef BLOCKD_SERVER_NET_CONNECTION_TABLE_H_
#define BLOCKD_SERVER_NET_CONNECTION_TABLE_H_

#include <sys/socket.h>
#include <sys/types.h>

#include <cstdint>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"

namespace blockd::server {

class ConnectionTable {
 public:
  void Add(int fd, std::string peer);  // an open socket, and who is at its other end

  // At least as many as are open: of those that were closed, only those are forgotten whose number
  // was used again.
  int64_t AtMost() const { return static_cast<int64_t>(open_.size()); }
  // As many as are open. Looks at each, in about 0.3 us.
  int64_t Count();
  // Ends the connection: its owner finds it closed. False if there is none, or none any more, or
  // if `peer` is empty: those who have no name cannot be told apart.
  bool End(absl::string_view peer);
  // Ends the one that was added first, and forgets it. False if none is open.
  bool EndOldest();

 private:
  struct Connection {
    ino_t inode = 0;
    std::string peer;
    int64_t number = 0;  // how many were added before
  };
  static bool Shutdown(int fd, const Connection& connection);

  int64_t added_ = 0;
  absl::flat_hash_map<int, Connection> open_;
};

// "127.0.0.1:7117" or "[::1]:7117", of an address of IPv4 in the form of IPv6 too; else empty:
// at a Unix socket clients have no name.
std::string PeerName(const sockaddr_storage& address);
// The same of what gRPC calls the peer.
std::string PeerName(absl::string_view grpc_peer);

}  // namespace blockd::server

#endif  // BLOCKD_SERVER_NET_CONNECTION_TABLE_H_
