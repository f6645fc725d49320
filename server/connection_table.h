// Which sockets that were given away are still open, and an end to one of them, or to those that
// bring more than is answered.
//
// Whoever owns them now does not say when it closes one. A socket's inode does: another file that
// gets the same number has another inode. Not thread-safe.
#ifndef BLOCKD_SERVER_CONNECTION_TABLE_H_
#define BLOCKD_SERVER_CONNECTION_TABLE_H_

#include <sys/socket.h>
#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"

namespace blockd::server {

// How much a connection may bring while nothing is sent to it. A client that keeps to HTTP/2's
// windows does not bring much: of a message, however long, gRPC lets it send on all the time. A
// header block is in no window, and gRPC 1.51 keeps one that does not end, without a bound.
struct UnansweredLimit {
  int64_t bytes = 0;            // of a connection without an open call. 0: no limit
  int64_t bytes_with_call = 0;  // of one with a call
  int64_t bytes_per_call = 0;   // more, for each call
  int64_t most_bytes = 0;       // however many calls it has
  // The open calls of each connection, by the peer's name. Null: there are none.
  std::function<absl::flat_hash_map<std::string, int64_t>()> open_calls = nullptr;
};

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

  // Looks at what each connection brought, and ends those that were beyond the limit at each of the
  // last kLooks looks: a call may be about to begin. Returns their peers. The kernel counts no
  // bytes of Unix domain sockets.
  std::vector<std::string> EndUnanswered(const UnansweredLimit& limit);
  static constexpr int kLooks = 5;

 private:
  struct Connection {
    ino_t inode = 0;
    std::string peer;
    int64_t sent = 0;        // bytes to the peer, at the last look
    int64_t answered = 0;    // bytes from the peer, when that was more than before
    int64_t unanswered = 0;  // bytes from the peer since then
    int beyond = 0;          // looks in a row
    int64_t number = 0;      // how many were added before
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

#endif  // BLOCKD_SERVER_CONNECTION_TABLE_H_
