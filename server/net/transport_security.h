// TLS that follows its files: what they hold when a connection begins is what that connection gets.
//
// New files are checked before they count. Wrong ones leave the old in force, and a line of the log
// says so. Connections that stand keep what they began with. Thread-safe.
#ifndef BLOCKD_SERVER_NET_TRANSPORT_SECURITY_H_
#define BLOCKD_SERVER_NET_TRANSPORT_SECURITY_H_

#include <grpcpp/security/server_credentials.h>

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/net/tls_files.h"

namespace blockd::server {

struct TlsOptions {
  TlsPaths paths;
  std::string min_version = "1.3";  // or "1.2"; one for all servers of a process
  absl::Duration watch_interval = absl::Seconds(10);
};

class TransportSecurity {
 public:
  // Reads the files, and watches them from a thread of its own. INVALID_ARGUMENT: one of them is
  // wrong, in words of its own.
  static absl::StatusOr<std::unique_ptr<TransportSecurity>> Start(const TlsOptions& options);
  ~TransportSecurity();

  // For any number of ports. This object outlives the servers that have them.
  std::shared_ptr<grpc::ServerCredentials> credentials();

  // Looks at the files now. An error says what is wrong with them; the old ones are in force.
  absl::Status Refresh();
  // Until the first certificate of the chain in force ends; negative once it has.
  absl::Duration TimeToExpiry() const;

 private:
  class Impl;
  explicit TransportSecurity(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace blockd::server

#endif  // BLOCKD_SERVER_NET_TRANSPORT_SECURITY_H_
