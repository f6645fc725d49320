#include "server/net/peer.h"

#include <grpc/grpc_security_constants.h>

#include <memory>

#include "absl/strings/match.h"

namespace blockd::server {
namespace {

constexpr char kAuthorizationKey[] = "authorization";
constexpr char kCallerKey[] = "blockd-caller";

std::vector<absl::string_view> MetadataValues(const grpc::ServerContextBase& rpc, const char* key) {
  std::vector<absl::string_view> values;
  const auto [first, last] = rpc.client_metadata().equal_range(key);
  for (auto it = first; it != last; ++it) values.emplace_back(it->second.data(), it->second.size());
  return values;
}

std::vector<absl::string_view> Properties(const grpc::AuthContext& context, const char* name) {
  std::vector<absl::string_view> values;
  for (const grpc::string_ref& value : context.FindPropertyValues(name)) {
    values.emplace_back(value.data(), value.size());
  }
  return values;
}

}  // namespace

Peer PeerOf(const grpc::ServerContextBase& rpc, const Identities& who) {
  Peer peer;
  peer.authorization = MetadataValues(rpc, kAuthorizationKey);
  peer.caller = MetadataValues(rpc, kCallerKey);
  peer.is_unix = who.has_unix_rules() && absl::StartsWith(rpc.peer(), "unix");
  if (peer.is_unix || !who.rules().client_certificates) return peer;
  const std::shared_ptr<const grpc::AuthContext> context = rpc.auth_context();
  peer.has_certificate = !Properties(*context, GRPC_X509_PEM_CERT_PROPERTY_NAME).empty();
  // Kind by kind: x509_subject_alternative_name, which is what a "peer identity" is, mixes them.
  constexpr const char* kProperties[kCertificateKinds] = {
      GRPC_PEER_URI_PROPERTY_NAME, GRPC_PEER_DNS_PROPERTY_NAME, GRPC_PEER_EMAIL_PROPERTY_NAME,
      GRPC_X509_CN_PROPERTY_NAME};
  for (size_t kind = 0; kind < kCertificateKinds; ++kind) {
    peer.names[kind] = Properties(*context, kProperties[kind]);
  }
  return peer;
}

}  // namespace blockd::server
