#include "server/identity/identify.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace blockd::server {
namespace {

absl::Status Unauthenticated(absl::string_view what) { return absl::UnauthenticatedError(what); }

absl::string_view RoleName(Role role) {
  switch (role) {
    case Role::kUse:
      return "USE";
    case Role::kAdmin:
      return "ADMIN";
    case Role::kMetrics:
      return "METRICS";
  }
  return "";
}

// As a message calls it.
absl::string_view NounOf(NameKind kind) {
  switch (kind) {
    case NameKind::kUri:
      return "URI";
    case NameKind::kDns:
      return "DNS name";
    case NameKind::kEmail:
      return "e-mail address";
    case NameKind::kCommonName:
      return "common name";
    case NameKind::kMetadata:
      return "name";
    case NameKind::kUnixUid:
      return "user id";
  }
  return "";
}

absl::StatusOr<Principal> PrincipalOf(NameKind kind, absl::string_view name,
                                      const IdentityTable& table) {
  if (const Principal* listed = table.Find(kind, name)) return *listed;
  if (name.size() > kMaxNameBytes) {
    return Unauthenticated(absl::StrCat("the ", NounOf(kind), " has ", name.size(),
                                        " characters: expected at most ", kMaxNameBytes,
                                        ", or a tenant of that name in the tenants file"));
  }
  if (table.refuse_unlisted) {
    return absl::PermissionDeniedError(
        absl::StrCat("no tenant of this server has the ", NounOf(kind), " \"", name, "\""));
  }
  return Principal{absl::StrCat(PrefixOf(kind), ":", name), table.unlisted_roles};
}

absl::StatusOr<Principal> FromToken(const std::vector<absl::string_view>& values,
                                    const IdentityRules& rules, const IdentityTable& table) {
  constexpr absl::string_view kScheme = "bearer ";
  if (values.size() != 1 || !absl::StartsWithIgnoreCase(values[0], kScheme)) {
    return Unauthenticated("metadata authorization: expected one value, \"Bearer TOKEN\"");
  }
  if (!rules.accept_tokens) {
    return Unauthenticated(
        "metadata authorization: this server takes no token over a connection without TLS, since "
        "others could read it");
  }
  const std::optional<TokenHash> hash = HashToken(values[0].substr(kScheme.size()));
  const Principal* principal = hash ? table.FindToken(*hash) : nullptr;
  if (principal == nullptr) {
    return Unauthenticated("metadata authorization: no tenant of this server has the token");
  }
  return *principal;
}

absl::StatusOr<Principal> FromMetadata(const std::vector<absl::string_view>& values,
                                       const IdentityTable& table) {
  if (values.size() != 1 || values[0].size() > kMaxNameBytes || !IsPrintableName(values[0])) {
    return Unauthenticated(absl::StrCat("metadata blockd-caller: expected one name of 1 to ",
                                        kMaxNameBytes, " printable characters"));
  }
  return PrincipalOf(NameKind::kMetadata, values[0], table);
}

// Among several names of one kind, the one whose tenant is in the file counts. Several names of the
// same tenant are allowed; names of two tenants are not.
absl::StatusOr<Principal> FromSeveral(NameKind kind, const std::vector<absl::string_view>& names,
                                      const IdentityTable& table) {
  const Principal* listed = nullptr;
  bool one_tenant = true;
  for (const absl::string_view name : names) {
    const Principal* found = table.Find(kind, name);
    if (found == nullptr) continue;
    one_tenant = one_tenant && (listed == nullptr || *listed == *found);
    listed = found;
  }
  if (listed != nullptr && one_tenant) return *listed;
  return Unauthenticated(
      absl::StrCat("the certificate has ", names.size(), " names of the kind ", PrefixOf(kind),
                   ", of which ", listed == nullptr ? "none is a tenant's" : "several are tenants'",
                   ": expected one name, or names of exactly one tenant of the tenants file"));
}

absl::StatusOr<Principal> FromCertificate(const Peer& peer, const IdentityRules& rules,
                                          const IdentityTable& table) {
  for (const NameKind kind : rules.certificate_kinds) {
    std::vector<absl::string_view> names = peer.names[static_cast<size_t>(kind)];
    if (names.empty()) continue;
    for (const absl::string_view name : names) {
      if (name.size() > kMaxListedNameBytes || !IsPrintableName(name)) {
        return Unauthenticated(absl::StrCat("a ", NounOf(kind), " in the certificate is not 1 to ",
                                            kMaxListedNameBytes, " printable ASCII characters"));
      }
      if (kind == NameKind::kDns && absl::StrContains(name, "*")) {
        return Unauthenticated("a DNS name in the certificate is a wildcard, which names nobody");
      }
    }
    std::sort(names.begin(), names.end());
    names.erase(std::unique(names.begin(), names.end()), names.end());
    return names.size() == 1 ? PrincipalOf(kind, names[0], table) : FromSeveral(kind, names, table);
  }
  return Unauthenticated(absl::StrCat(
      "the certificate has no name of a kind that counts here: expected ",
      absl::StrJoin(rules.certificate_kinds, " or ", [](std::string* out, NameKind kind) {
        absl::StrAppend(out, PrefixOf(kind));
      })));
}

// The ways in which a caller could have shown who it is.
std::string Expected(const IdentityRules& rules, const IdentityTable& table) {
  std::vector<absl::string_view> ways;
  if (rules.client_certificates) ways.push_back("a client certificate");
  if (rules.accept_tokens && table.has_tokens()) {
    ways.push_back("the metadata authorization, \"Bearer TOKEN\"");
  }
  if (ways.empty()) return "no way in is open on this address";
  return absl::StrCat("expected ", absl::StrJoin(ways, " or "));
}

}  // namespace

absl::string_view PrefixOf(NameKind kind) {
  constexpr absl::string_view kPrefixes[kNameKinds] = {"uri",         "dns",      "email",
                                                       "common_name", "metadata", "uid"};
  return kPrefixes[static_cast<size_t>(kind)];
}

bool IsPrintableName(absl::string_view name) {
  return !name.empty() && std::all_of(name.begin(), name.end(), absl::ascii_isprint);
}

absl::StatusOr<Principal> Identify(const Peer& peer, const IdentityRules& rules,
                                   const IdentityTable& table) {
  if (!peer.authorization.empty()) return FromToken(peer.authorization, rules, table);
  if (rules.trust_caller_metadata && !peer.caller.empty()) return FromMetadata(peer.caller, table);
  if (peer.has_certificate) return FromCertificate(peer, rules, table);
  if (peer.unix_uid) return PrincipalOf(NameKind::kUnixUid, absl::StrCat(*peer.unix_uid), table);
  if (rules.trust_caller_metadata && !table.refuse_unlisted) {
    return Principal{kAnonymous, table.unlisted_roles};
  }
  if (rules.trust_caller_metadata) return Unauthenticated("expected the metadata blockd-caller");
  return Unauthenticated(
      absl::StrCat("who asks? ", Expected(rules, table),
                   peer.caller.empty() ? "" : "; what blockd-caller says is not trusted here"));
}

bool IsSelfNamed(absl::string_view tenant) {
  return tenant == kAnonymous ||
         absl::StartsWith(tenant, absl::StrCat(PrefixOf(NameKind::kMetadata), ":"));
}

absl::Status CheckRole(const Principal& principal, RoleSet any_of) {
  if (principal.roles.HasAnyOf(any_of)) return absl::OkStatus();
  std::string names;
  for (const Role role : {Role::kUse, Role::kAdmin, Role::kMetrics}) {
    if (any_of.Has(role)) absl::StrAppend(&names, names.empty() ? "" : " or ", RoleName(role));
  }
  return absl::PermissionDeniedError(
      absl::StrCat("the tenant ", principal.tenant, " has not the role ", names));
}

absl::StatusOr<std::vector<NameKind>> ParseCertificateKinds(absl::string_view text) {
  std::vector<NameKind> kinds;
  for (const absl::string_view word : absl::StrSplit(text, ',')) {
    size_t k = 0;
    while (k < kCertificateKinds && PrefixOf(static_cast<NameKind>(k)) != word) ++k;
    const auto kind = static_cast<NameKind>(k);
    if (k == kCertificateKinds || std::find(kinds.begin(), kinds.end(), kind) != kinds.end()) {
      return absl::InvalidArgumentError(
          absl::StrCat("--certificate_identity=", text,
                       ": expected some of uri, dns, email, common_name, each at most once, with "
                       "commas between them"));
    }
    kinds.push_back(kind);
  }
  return kinds;
}

}  // namespace blockd::server
