// How a SolverClient connects and how patient it is.
#ifndef BLOCKD_CLIENT_CLIENT_OPTIONS_H_
#define BLOCKD_CLIENT_CLIENT_OPTIONS_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/time/time.h"
#include "blockd/client/backoff.h"

namespace blockd::client {

// PEM text, not file names.
struct TlsOptions {
  std::string root_certificates{};  // empty: the system's
  std::string certificate{};        // the client's own, with its key, where the server asks for one
  std::string private_key{};
  std::string server_name{};  // expected in the server's certificate; empty: the target's host
};

struct ClientOptions {
  std::optional<TlsOptions> tls{};  // absent: plain text
  // The name that the handles belong to: only clients of the same name see each other's. A server
  // may know who asks from the certificate or the token, and not listen to this.
  std::string caller{};
  // A secret that says who asks, sent with every call as `authorization: Bearer TOKEN`. Visible
  // ASCII. Needs `tls`, but for a target on this host: localhost, a loopback address, a Unix
  // socket.
  std::string token{};
  // For calls whose options name none. Retries, uploads and waiting count.
  absl::Duration timeout = absl::Seconds(60);
  RetryOptions retry{};
  // Matrices, right-hand sides and solutions of more bytes than this travel as a stream of chunks.
  // Both must stay below the server's limit on messages.
  int64_t stream_threshold_bytes = 2 << 20;
  int64_t chunk_bytes = 2 << 20;
  // A matrix that travels so goes over so many TCP connections at once, each with a thread of its
  // own: 1 to 16. 0: one for each 64 MiB, at most 4 and at most half of this host's processors.
  int upload_connections = 0;
  // True: clients of one process, target and options use one TCP connection. False: one of its own.
  // Large transfers, and each SolveSession, have their own in any case.
  bool share_connection = true;
  // More than 0, for a target unix:PATH whose server has --shared_memory: so many bytes are shared
  // with it, and what factors, solves and releases goes through them: calls, sessions, handles that
  // go out of scope. What does not fit, and all other calls, go over gRPC as ever. Connect then
  // waits for the server, up to `timeout`, and says UNAVAILABLE where it shares none. All copies of
  // a client share the memory.
  int64_t shared_memory_bytes = 0;
  // How long a thread that waits for a call goes on looking for the reply before it sleeps: to be
  // woken takes longer than a small Solve. Over gRPC one thread looks for others of its connection
  // too, and none does beside another that waits for a connection of its own, beside a SolveAsync
  // under way, or once the process has had a session or a Solve above the stream threshold over
  // gRPC. 0: it sleeps at once. Negative:
  // 200us, or 0 on fewer than 4 processors, where it would take one from the server.
  absl::Duration poll = -absl::Microseconds(1);
};

}  // namespace blockd::client

#endif  // BLOCKD_CLIENT_CLIENT_OPTIONS_H_
