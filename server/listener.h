// Sockets that listen: one for each address that a name stands for, on one port, or one with a
// file's name, for processes of the same machine.
#ifndef BLOCKD_SERVER_LISTENER_H_
#define BLOCKD_SERVER_LISTENER_H_

#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "server/descriptors.h"

namespace blockd::server {

// "127.0.0.1:7117", "[::1]:7117", "unix:/run/blockd.sock": what a client connects to.
std::string HostPort(const std::string& address, int port);

// Whether it names a Unix domain socket: "unix:PATH", "unix:///PATH".
inline bool IsUnixAddress(absl::string_view address) { return address.substr(0, 5) == "unix:"; }

// The file of a Unix domain socket that listens; removes it. Movable; empty after a move.
class SocketFile {
 public:
  SocketFile() = default;
  explicit SocketFile(std::string path) : path_(std::move(path)) {}
  SocketFile(SocketFile&& other) noexcept : path_(std::exchange(other.path_, {})) {}
  SocketFile& operator=(SocketFile&& other) noexcept {
    std::swap(path_, other.path_);
    return *this;
  }
  ~SocketFile();

 private:
  std::string path_;
};

struct Listener {
  std::vector<FileDescriptor> sockets;  // they do not block, nor does a child inherit them
  int port = 0;                         // 0 of a Unix domain socket
  SocketFile file;
};

// `address`: IPv4, IPv6 or a name; 0.0.0.0 and :: both mean every address of either kind; or a Unix
// domain socket, whose file has the mode that the umask leaves, and takes the place of one that
// nobody listens on any more. `port` 0: any free one. `silence`: how long what was sent may stay
// unacknowledged before a connection ends. UNAVAILABLE, with the machine's own words, if it cannot
// be listened on.
absl::StatusOr<Listener> Listen(const std::string& address, int port, absl::Duration silence);

}  // namespace blockd::server

#endif  // BLOCKD_SERVER_LISTENER_H_
