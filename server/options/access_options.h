// Who may come in, and through what: the flags of identity, TLS, Unix socket, health port and
// reflection.
//
// Plain data with the defaults that serve, as ServerOptions is, of which it is a part.
#ifndef BLOCKD_SERVER_OPTIONS_ACCESS_OPTIONS_H_
#define BLOCKD_SERVER_OPTIONS_ACCESS_OPTIONS_H_

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace blockd::server {

struct AccessOptions {
  std::string unix_socket{};  // a path; empty: none
  std::string unix_socket_mode = "0660";
  std::string tenants_file{};
  std::string certificate_identity = "uri,dns";
  std::string trust_caller_metadata = "auto";  // auto, true, false
  std::string tls_min_version = "1.3";         // 1.3, 1.2
  absl::Duration tls_watch_interval = absl::Seconds(10);
  int32_t health_port = -1;         // 0: any free one; -1: none
  std::string reflection = "auto";  // auto, true, false
};

// One place where callers come in: a port, or a Unix socket, which has no TLS.
struct Entrance {
  absl::string_view address;  // or a path
  bool tls = false;
  bool client_certificates = false;
  bool is_unix = false;

  bool IsLocal() const;  // only this machine reaches it
};

// INVALID_ARGUMENT, naming the flag, its value and what was expected. Also where there is an
// entrance through which nobody could ever get in.
absl::Status CheckAccess(const AccessOptions& access, const std::vector<Entrance>& entrances);

// The meaning of "auto". The server trusts metadata and serves reflection if only this machine can
// reach it; it does not trust metadata if clients show certificates.
bool TrustsCallerMetadata(const AccessOptions& access, const Entrance& entrance);
bool ServesReflection(const AccessOptions& access, const std::vector<Entrance>& entrances);
// Tokens cross a network only inside TLS.
bool AcceptsTokens(const Entrance& entrance);

// 127.0.0.0/8, ::1 and localhost.
bool IsLoopback(absl::string_view address);

// "0660": three or four octal digits, read and write only. INVALID_ARGUMENT says what is expected.
absl::StatusOr<mode_t> ParseSocketMode(absl::string_view text);

}  // namespace blockd::server

#endif  // BLOCKD_SERVER_OPTIONS_ACCESS_OPTIONS_H_
