// Who asks: from what is known of a connection and of a call to a principal, or a refusal that says
// what is expected. Pure: no gRPC, no file, no clock.
//
// The first of these that the caller shows counts:
//   1. a bearer token: it must be a tenant's;
//   2. the name in `blockd-caller`, where callers are trusted to name themselves;
//   3. the certificate: of the first kind that counts and that it has a name of;
//   4. the user id of a process at a Unix socket;
//   5. nothing, where callers are trusted: the tenant "anonymous".
// A name that no tenant of the file has is a tenant of its own, "dns:NAME", unless the file
// refuses.
#ifndef BLOCKD_SERVER_IDENTITY_IDENTIFY_H_
#define BLOCKD_SERVER_IDENTITY_IDENTIFY_H_

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "server/core/common/principal.h"
#include "server/identity/identity_table.h"

namespace blockd::server {

// The tenant of whoever says nothing. No tenant of the file has this name.
inline constexpr char kAnonymous[] = "anonymous";

// Views of what the transport holds.
struct Peer {
  bool has_certificate = false;
  // The names in it, by NameKind.
  std::array<std::vector<absl::string_view>, kCertificateKinds> names;
  std::vector<absl::string_view> authorization;  // each value of this metadata
  std::vector<absl::string_view> caller;         // each value of `blockd-caller`
  bool is_unix = false;                          // came through a Unix socket
  std::optional<uint32_t> unix_uid;              // of the process there, where it is known
};

struct IdentityRules {
  std::vector<NameKind> certificate_kinds = {NameKind::kUri, NameKind::kDns};
  bool trust_caller_metadata = false;
  bool accept_tokens = false;        // false where they would cross a network as plain text
  bool client_certificates = false;  // clients must show one; for the words of a refusal
};

// UNAUTHENTICATED: nobody can be told from this. PERMISSION_DENIED: somebody whom the file refuses.
absl::StatusOr<Principal> Identify(const Peer& peer, const IdentityRules& rules,
                                   const IdentityTable& table);

// True if only the caller's own words make it this tenant, which the file does not name.
bool IsSelfNamed(absl::string_view tenant);

// PERMISSION_DENIED if it has none of these roles, naming them.
absl::Status CheckRole(const Principal& principal, RoleSet any_of);

// "uri,dns": kinds of a certificate's names, in the order in which they count. INVALID_ARGUMENT
// says what is expected.
absl::StatusOr<std::vector<NameKind>> ParseCertificateKinds(absl::string_view text);

}  // namespace blockd::server

#endif  // BLOCKD_SERVER_IDENTITY_IDENTIFY_H_
