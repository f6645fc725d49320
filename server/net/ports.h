// Where the server listens, and the file that says so.
#ifndef BLOCKD_SERVER_NET_PORTS_H_
#define BLOCKD_SERVER_NET_PORTS_H_

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/net/listener.h"
#include "server/options/options.h"

namespace blockd::server {

// Ports that the options turn off have no socket.
struct Ports {
  Listener calls;  // of TCP and the Unix socket
  Listener probes;
  Listener scrapes;
  Listener shared_memory;
};

// All of them, or ALREADY_EXISTS with the flags of the one that cannot be had.
absl::StatusOr<Ports> ListenOnPorts(const ServerOptions& options);

// --port_file, if there is one. Written under another name first, so that a script never reads half
// of it.
absl::Status WritePortFile(const ServerOptions& options, int grpc_port, int metrics_port);

}  // namespace blockd::server

#endif  // BLOCKD_SERVER_NET_PORTS_H_
