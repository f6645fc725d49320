#include "server/access_options.h"

#include <algorithm>

#include "absl/flags/flag.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "server/flag_checks.h"
#include "server/identity/identify.h"
#include "server/listener.h"

// One default, in AccessOptions; the flags take theirs from here.
static const blockd::server::AccessOptions& AccessDefaults() {
  static const auto& defaults = *new blockd::server::AccessOptions;
  return defaults;
}

ABSL_FLAG(
    std::string, unix_socket, AccessDefaults().unix_socket,
    "Path of a Unix domain socket to serve gRPC on too, without TLS, for this machine; --port=-1 "
    "serves on it alone. It replaces a socket that nobody listens on any more.");
ABSL_FLAG(std::string, unix_socket_mode, AccessDefaults().unix_socket_mode,
          "Permissions of --unix_socket, octal: who may write may connect.");
ABSL_FLAG(std::string, tenants_file, AccessDefaults().tenants_file,
          "File with the tenants, as deploy/tenants.textproto is one: who each is, its quotas, its "
          "weight. Without it each caller is a tenant of its own.");
ABSL_FLAG(
    std::string, certificate_identity, AccessDefaults().certificate_identity,
    "Kinds of names in a client's certificate, in the order in which they count: some of uri, "
    "dns, email, common_name. The first that the certificate has says who asks.");
ABSL_FLAG(
    std::string, trust_caller_metadata, AccessDefaults().trust_caller_metadata,
    "Whether callers may name themselves, in the metadata blockd-caller: true, false, or auto: "
    "only on a loopback address without client certificates. Whoever reaches a server that "
    "trusts may be anybody.");
ABSL_FLAG(std::string, tls_min_version, AccessDefaults().tls_min_version,
          "Oldest version of TLS: 1.3 or 1.2.");
ABSL_FLAG(absl::Duration, tls_watch_interval, AccessDefaults().tls_watch_interval,
          "Time between two looks at the TLS files, as 10s; new ones hold for new connections.");
ABSL_FLAG(int32_t, health_port, AccessDefaults().health_port,
          "TCP port of a second server on --address, without TLS, that answers health checks "
          "(grpc.health.v1) and nothing else; 0: any free one; -1: none.");
ABSL_FLAG(std::string, reflection, AccessDefaults().reflection,
          "Whether the server describes its calls to whoever asks: true, false, or auto: only on a "
          "loopback address.");
ABSL_FLAG(bool, hash_token, false,
          "Reads a bearer token from standard input, prints its token_sha256 for the tenants file, "
          "and ends.");

namespace blockd::server {
namespace {

absl::Status CheckSomebodyGetsIn(const AccessOptions& access, const Entrance& entrance) {
  const bool tokens = !access.tenants_file.empty() && AcceptsTokens(entrance);
  if (entrance.client_certificates || tokens || TrustsCallerMetadata(access, entrance)) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      entrance.is_unix ? "--unix_socket=" : "--address=", entrance.address,
      ": nobody could say who asks. Expected ",
      entrance.is_unix ? "" : "--tls_client_ca_file (client certificates), or TLS and ",
      "--tenants_file (bearer tokens), or --trust_caller_metadata=true, by which whoever reaches "
      "the server may be anybody"));
}

absl::Status CheckUnixSocket(const AccessOptions& access) {
  if (access.unix_socket.size() > kMaxSocketPath) {
    return RefuseFlag("unix_socket", access.unix_socket,
                      absl::StrCat("a path of at most ", kMaxSocketPath, " bytes"));
  }
  return ParseSocketMode(access.unix_socket_mode).status();
}

}  // namespace

bool Entrance::IsLocal() const { return is_unix || IsLoopback(address); }

absl::Status CheckAccess(const AccessOptions& access, const std::vector<Entrance>& entrances) {
  absl::Status status = ParseCertificateKinds(access.certificate_identity).status();
  status.Update(
      CheckOneOf("trust_caller_metadata", access.trust_caller_metadata, {"auto", "true", "false"}));
  status.Update(CheckOneOf("reflection", access.reflection, {"auto", "true", "false"}));
  status.Update(CheckOneOf("tls_min_version", access.tls_min_version, {"1.3", "1.2"}));
  status.Update(CheckDuration("tls_watch_interval", access.tls_watch_interval,
                              absl::Milliseconds(1), absl::Hours(24)));
  status.Update(CheckNumber("health_port", access.health_port, -1, 65535));
  status.Update(CheckUnixSocket(access));
  for (const Entrance& entrance : entrances) status.Update(CheckSomebodyGetsIn(access, entrance));
  return status;
}

bool TrustsCallerMetadata(const AccessOptions& access, const Entrance& entrance) {
  if (access.trust_caller_metadata != "auto") return access.trust_caller_metadata == "true";
  return entrance.IsLocal() && !entrance.client_certificates;
}

bool ServesReflection(const AccessOptions& access, const std::vector<Entrance>& entrances) {
  if (access.reflection != "auto") return access.reflection == "true";
  return std::all_of(entrances.begin(), entrances.end(),
                     [](const Entrance& entrance) { return entrance.IsLocal(); });
}

bool AcceptsTokens(const Entrance& entrance) { return entrance.tls || entrance.IsLocal(); }

bool IsLoopback(absl::string_view address) {
  if (address == "localhost" || address == "::1" || address == "[::1]") return true;
  // A name may begin with these digits too, and be anywhere.
  return absl::StartsWith(address, "127.") &&
         address.find_first_not_of("0123456789.") == absl::string_view::npos;
}

absl::StatusOr<mode_t> ParseSocketMode(absl::string_view text) {
  mode_t mode = 0;
  for (const char c : text) mode = mode * 8 + static_cast<mode_t>(c - '0');
  const bool is_octal = text.find_first_not_of("01234567") == absl::string_view::npos;
  if (is_octal && (text.size() == 3 || text.size() == 4) && (mode & ~mode_t{0666}) == 0) {
    return mode;
  }
  return RefuseFlag("unix_socket_mode", text,
                    "three or four octal digits that say who may read and write, as 0660");
}

AccessOptions AccessFromFlags() {
  AccessOptions access;
  access.unix_socket = absl::GetFlag(FLAGS_unix_socket);
  access.unix_socket_mode = absl::GetFlag(FLAGS_unix_socket_mode);
  access.tenants_file = absl::GetFlag(FLAGS_tenants_file);
  access.certificate_identity = absl::GetFlag(FLAGS_certificate_identity);
  access.trust_caller_metadata = absl::GetFlag(FLAGS_trust_caller_metadata);
  access.tls_min_version = absl::GetFlag(FLAGS_tls_min_version);
  access.tls_watch_interval = absl::GetFlag(FLAGS_tls_watch_interval);
  access.health_port = absl::GetFlag(FLAGS_health_port);
  access.reflection = absl::GetFlag(FLAGS_reflection);
  return access;
}

bool HashTokenAsked() { return absl::GetFlag(FLAGS_hash_token); }

}  // namespace blockd::server
