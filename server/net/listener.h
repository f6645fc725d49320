// Sockets that listen: one for each address that a name stands for, on one port, and one with a
// file's name, for processes of the same machine.
#ifndef BLOCKD_SERVER_NET_LISTENER_H_
#define BLOCKD_SERVER_NET_LISTENER_H_

#include <sys/types.h>

#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/base/descriptors.h"

namespace blockd::server {

// "127.0.0.1:7117", "[::1]:7117": what a client connects to.
std::string HostPort(const std::string& address, int port);

// The file of a Unix domain socket that listens; removes it, unless another file has taken its
// place. Movable; empty after a move.
class SocketFile {
 public:
  SocketFile() = default;
  explicit SocketFile(std::string path);  // one that is there
  SocketFile(SocketFile&& other) noexcept { *this = std::move(other); }
  SocketFile& operator=(SocketFile&& other) noexcept {
    if (this == &other) return *this;
    Remove();
    path_ = std::exchange(other.path_, {});
    inode_ = other.inode_;
    return *this;
  }
  ~SocketFile() { Remove(); }

 private:
  void Remove();

  std::string path_;
  ino_t inode_ = 0;
};

struct Listener {
  std::vector<FileDescriptor> sockets;  // they do not block, nor does a child inherit them
  int port = -1;                        // -1: no socket of TCP
  SocketFile file;  // goes first: as long as its socket is open no other file has its inode
};

// `address`: IPv4, IPv6 or a name; 0.0.0.0 and :: both mean every address of either kind. `port` 0:
// any free one. `silence`: how long what was sent may stay unacknowledged before a connection ends.
// UNAVAILABLE, with the machine's own words, if it cannot be listened on.
absl::StatusOr<Listener> Listen(const std::string& address, int port, absl::Duration silence);

// The same on a Unix domain socket. Nobody can connect before its file has the permissions `mode`,
// whatever the umask. The file takes the place of a socket that nobody listens on any more, and of
// nothing else; servers that do so at the same time take turns.
absl::StatusOr<Listener> ListenOnUnixSocket(const std::string& path, mode_t mode);

}  // namespace blockd::server

#endif  // BLOCKD_SERVER_NET_LISTENER_H_
