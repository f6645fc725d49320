// Who may come in, and through what: the flags of identity, TLS, health port and reflection.
//
// Plain data with the defaults that serve, as ServerOptions is, of which it is a part.
#ifndef BLOCKD_SERVER_ACCESS_OPTIONS_H_
#define BLOCKD_SERVER_ACCESS_OPTIONS_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace blockd::server {

struct AccessOptions {
  std::string tenants_file{};
  std::string certificate_identity = "uri,dns";
  std::string trust_caller_metadata = "auto";  // auto, true, false
  std::string tls_min_version = "1.3";         // 1.3, 1.2
  absl::Duration tls_watch_interval = absl::Seconds(10);
  int32_t health_port = -1;         // 0: any free one; -1: none
  std::string reflection = "auto";  // auto, true, false
};

// Of the rest of the options, what access depends on.
struct Surroundings {
  absl::string_view address;
  bool tls = false;
  bool client_certificates = false;
};

// INVALID_ARGUMENT, naming the flag, its value and what was expected. Also where nobody could ever
// get in.
absl::Status CheckAccess(const AccessOptions& access, const Surroundings& surroundings);

// What "auto" means. Metadata is trusted, and reflection served, where only this machine reaches
// the server; metadata not where clients show certificates.
bool TrustsCallerMetadata(const AccessOptions& access, const Surroundings& surroundings);
bool ServesReflection(const AccessOptions& access, const Surroundings& surroundings);
// Tokens cross a network only inside TLS.
bool AcceptsTokens(const Surroundings& surroundings);

// 127.0.0.0/8, ::1, localhost and Unix sockets.
bool IsLoopback(absl::string_view address);

AccessOptions AccessFromFlags();
bool HashTokenAsked();  // --hash_token

}  // namespace blockd::server

#endif  // BLOCKD_SERVER_ACCESS_OPTIONS_H_
