// The files of TLS: read, and checked as a handshake would.
//
// Pure functions of files. Every error is in words of its own: INVALID_ARGUMENT with the flag, the
// file and what was expected.
#ifndef BLOCKD_SERVER_NET_TLS_FILES_H_
#define BLOCKD_SERVER_NET_TLS_FILES_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace blockd::server {

struct TlsPaths {
  std::string cert_file, key_file;
  std::string client_ca_file;  // empty: clients show no certificate
};

struct TlsFiles {
  std::string certificate_chain, private_key, client_authorities;  // PEM
  // The first of the chain's ends, the last of its beginnings.
  absl::Time expires, begins;
};

absl::StatusOr<TlsFiles> ReadTlsFiles(const TlsPaths& paths);

}  // namespace blockd::server

#endif  // BLOCKD_SERVER_NET_TLS_FILES_H_
