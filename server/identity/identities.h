// Who may ask, while the server runs: the rules of the command line and the tenants file, which may
// be read again.
//
// Thread-safe. A call takes the table that is in force when it begins.
#ifndef BLOCKD_SERVER_IDENTITY_IDENTITIES_H_
#define BLOCKD_SERVER_IDENTITY_IDENTITIES_H_

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "server/identity/identify.h"
#include "server/identity/tenants_file.h"

namespace blockd::server {

class Identities {
 public:
  // `path`: the tenants file; empty for none, so that each caller is a tenant of its own.
  // `unix_rules`: for who comes through the Unix socket, if there is one.
  static absl::StatusOr<std::unique_ptr<Identities>> Load(
      std::string path, IdentityRules rules,
      std::optional<IdentityRules> unix_rules = std::nullopt);

  absl::StatusOr<Principal> Identify(const Peer& peer) const {
    return server::Identify(peer, peer.is_unix && unix_rules_ ? *unix_rules_ : rules_,
                            tenants()->identities);
  }
  const IdentityRules& rules() const { return rules_; }
  bool has_unix_rules() const { return unix_rules_.has_value(); }
  std::shared_ptr<const ListedTenants> tenants() const;  // those in force

  // Reads the file again: whether it says something else than before. After an error, which says
  // what is wrong, the old one is still in force.
  absl::StatusOr<bool> Reload();

 private:
  Identities(std::string path, IdentityRules rules, std::optional<IdentityRules> unix_rules)
      : path_(std::move(path)), rules_(std::move(rules)), unix_rules_(std::move(unix_rules)) {}

  const std::string path_;
  const IdentityRules rules_;
  const std::optional<IdentityRules> unix_rules_;
  mutable absl::Mutex mutex_;
  std::shared_ptr<const ListedTenants> tenants_ ABSL_GUARDED_BY(mutex_) =
      std::make_shared<ListedTenants>();
};

}  // namespace blockd::server

#endif  // BLOCKD_SERVER_IDENTITY_IDENTITIES_H_
