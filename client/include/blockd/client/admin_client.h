// The operator's client of a server: the service of proto/blockd/v1/admin.proto.
//
//     auto admin = AdminClient::Connect("127.0.0.1:7117", {.token = token});
//     for (const v1::Tenant& tenant : *admin->ListTenants()) ...
//
// It goes to the server itself: a router sends it to any one of those behind it.
// Errors: as errors.h says; PERMISSION_DENIED for who lacks the role `admin`. Every call is retried
// as those of SolverClient are, and may be made twice. Thread-safe; a value, whose copies share the
// connection.
#ifndef BLOCKD_CLIENT_ADMIN_CLIENT_H_
#define BLOCKD_CLIENT_ADMIN_CLIENT_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "blockd/client/client_options.h"
#include "blockd/client/errors.h"
#include "blockd/v1/admin.pb.h"

namespace blockd::client {

class Connection;

// Which factorizations of all; each condition that is set holds.
struct FactorizationFilter {
  std::optional<std::string> tenant{};
  bool pinned_only = false;    // or leased
  absl::Duration min_idle{};   // not used for so long
  int64_t min_held_bytes = 0;  // on the device
};

class AdminClient {
 public:
  // As SolverClient's.
  static absl::StatusOr<AdminClient> Connect(const std::string& target,
                                             const ClientOptions& options = {});
  bool WaitUntilConnected(absl::Duration limit) const;

  // Page after page.
  absl::StatusOr<std::vector<v1::TenantFactorization>> ListFactorizations(
      const FactorizationFilter& filter = {}) const;
  // Any number of handles, of any tenants; a call takes 1000. Those that are not held are in the
  // answer, and are no error.
  absl::StatusOr<v1::EvictReply> Evict(std::span<const std::string> handles) const;
  absl::StatusOr<v1::UnpinReply> Unpin(std::span<const std::string> handles) const;
  absl::StatusOr<std::vector<v1::Tenant>> ListTenants() const;
  // Answers when the drain has begun.
  absl::StatusOr<v1::DrainReply> Drain() const;
  // The level before.
  absl::StatusOr<std::string> SetLogLevel(const std::string& level) const;
  // Reads the tenants file again. INVALID_ARGUMENT says what is wrong with it.
  absl::StatusOr<v1::ReloadReply> Reload() const;

 private:
  explicit AdminClient(std::shared_ptr<Connection> connection);

  std::shared_ptr<Connection> connection_;
};

}  // namespace blockd::client

#endif  // BLOCKD_CLIENT_ADMIN_CLIENT_H_
