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
  int64_t chunk_bytes = 1 << 20;
  // True: clients of one process, target and options use one TCP connection. False: one of its own.
  // Large transfers, and each SolveSession, have their own in any case.
  bool share_connection = true;
};

}  // namespace blockd::client

#endif  // BLOCKD_CLIENT_CLIENT_OPTIONS_H_
