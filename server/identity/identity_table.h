// Which identity is whom: the tenants file's identities, to be asked once a call.
//
// Built by one thread, then shared as const.
#ifndef BLOCKD_SERVER_IDENTITY_IDENTITY_TABLE_H_
#define BLOCKD_SERVER_IDENTITY_IDENTITY_TABLE_H_

#include <array>
#include <cstddef>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"
#include "server/core/common/principal.h"
#include "server/identity/token.h"

namespace blockd::server {

// Each a namespace of its own. The first four are those of a certificate.
enum class NameKind { kUri, kDns, kEmail, kCommonName, kMetadata, kUnixUid };
inline constexpr size_t kCertificateKinds = 4, kNameKinds = 6;

// "uri", "dns", "email", "common_name", "metadata", "uid": the prefix of tenants that no file
// names.
absl::string_view PrefixOf(NameKind kind);

// The longest name of a tenant and value of `blockd-caller`; the longest identity in the tenants
// file.
inline constexpr size_t kMaxNameBytes = 128, kMaxListedNameBytes = 512;

// Printable ASCII, the blank included, and not empty: one word of a log line, once it is quoted.
bool IsPrintableName(absl::string_view name);

class IdentityTable {
 public:
  // False, and nothing changes, if a tenant has it already.
  bool Add(NameKind kind, absl::string_view name, const Principal& principal) {
    return names_[static_cast<size_t>(kind)].emplace(name, principal).second;
  }
  bool AddToken(const TokenHash& hash, const Principal& principal) {
    if (FindToken(hash) != nullptr) return false;
    tokens_.emplace_back(hash, principal);
    return true;
  }

  // Null if no tenant has it.
  const Principal* Find(NameKind kind, absl::string_view name) const {
    const auto& names = names_[static_cast<size_t>(kind)];
    const auto found = names.find(name);
    return found == names.end() ? nullptr : &found->second;
  }
  // Looks at every token, whichever it is.
  const Principal* FindToken(const TokenHash& hash) const {
    const Principal* found = nullptr;
    for (const auto& [listed, principal] : tokens_) {
      if (SameHash(listed, hash)) found = &principal;
    }
    return found;
  }
  bool has_tokens() const { return !tokens_.empty(); }

  friend bool operator==(const IdentityTable&, const IdentityTable&) = default;

  // The roles of callers that no tenant names.
  RoleSet unlisted_roles = {Role::kUse};
  bool refuse_unlisted = false;

 private:
  std::array<absl::flat_hash_map<std::string, Principal>, kNameKinds> names_;
  std::vector<std::pair<TokenHash, Principal>> tokens_;
};

}  // namespace blockd::server

#endif  // BLOCKD_SERVER_IDENTITY_IDENTITY_TABLE_H_
