#include "server/access_options.h"

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

absl::Status CheckSomebodyGetsIn(const AccessOptions& access, const Surroundings& surroundings) {
  const bool tokens = !access.tenants_file.empty() && AcceptsTokens(surroundings);
  if (surroundings.client_certificates || tokens || TrustsCallerMetadata(access, surroundings)) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "--address=", surroundings.address,
      ": nobody could say who asks. Expected --tls_client_ca_file (client certificates), or TLS "
      "and "
      "--tenants_file (bearer tokens), or --trust_caller_metadata=true, by which whoever reaches "
      "the server may be anybody"));
}

}  // namespace

absl::Status CheckAccess(const AccessOptions& access, const Surroundings& surroundings) {
  absl::Status status = ParseCertificateKinds(access.certificate_identity).status();
  status.Update(
      CheckOneOf("trust_caller_metadata", access.trust_caller_metadata, {"auto", "true", "false"}));
  status.Update(CheckOneOf("reflection", access.reflection, {"auto", "true", "false"}));
  status.Update(CheckOneOf("tls_min_version", access.tls_min_version, {"1.3", "1.2"}));
  status.Update(CheckDuration("tls_watch_interval", access.tls_watch_interval,
                              absl::Milliseconds(1), absl::Hours(24)));
  status.Update(CheckNumber("health_port", access.health_port, -1,
                            IsUnixAddress(surroundings.address) ? -1 : 65535));
  status.Update(CheckSomebodyGetsIn(access, surroundings));
  return status;
}

bool TrustsCallerMetadata(const AccessOptions& access, const Surroundings& surroundings) {
  if (access.trust_caller_metadata != "auto") return access.trust_caller_metadata == "true";
  return IsLoopback(surroundings.address) && !surroundings.client_certificates;
}

bool ServesReflection(const AccessOptions& access, const Surroundings& surroundings) {
  if (access.reflection != "auto") return access.reflection == "true";
  return IsLoopback(surroundings.address);
}

bool AcceptsTokens(const Surroundings& surroundings) {
  return surroundings.tls || IsLoopback(surroundings.address);
}

bool IsLoopback(absl::string_view address) {
  if (address == "localhost" || address == "::1" || address == "[::1]") return true;
  if (IsUnixAddress(address)) return true;
  // A name may begin with these digits too, and be anywhere.
  return absl::StartsWith(address, "127.") &&
         address.find_first_not_of("0123456789.") == absl::string_view::npos;
}

AccessOptions AccessFromFlags() {
  AccessOptions access;
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
