#include "server/options/access_options.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "server/base/descriptors.h"
#include "server/identity/identify.h"
#include "server/options/flag_checks.h"

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

}  // namespace blockd::server
