#include "blockd/client/admin_client.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "blockd/v1/admin.grpc.pb.h"
#include "client/base/check_options.h"
#include "client/rpc/connection.h"
#include "client/wire/wire.h"

namespace blockd::client {
namespace {

constexpr size_t kHandlesPerCall = 1000;

template <typename Reply, typename Request>
absl::StatusOr<Reply> Ask(const Connection& connection,
                          grpc::Status (v1::Admin::Stub::*method)(grpc::ClientContext*,
                                                                  const Request&, Reply*),
                          const Request& request) {
  v1::Admin::Stub stub(connection.channel());
  Reply reply;
  const absl::Status status =
      connection.Retry(connection.Deadline({}), [&](grpc::ClientContext& context) {
        return ToStatus((stub.*method)(&context, request, &reply));
      });
  if (!status.ok()) return status;
  return reply;
}

// Calls with as many handles as a call takes, until all were named; `add` takes each answer.
template <typename Request, typename Method, typename Add>
absl::Status AskInParts(const Connection& connection, Method method,
                        std::span<const std::string> handles, Add add) {
  while (!handles.empty()) {
    const auto part = handles.first(std::min(handles.size(), kHandlesPerCall));
    handles = handles.subspan(part.size());
    Request request;
    for (const std::string& handle : part) request.add_handle(handle);
    const auto reply = Ask(connection, method, request);
    if (!reply.ok()) return reply.status();
    add(*reply);
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<AdminClient> AdminClient::Connect(const std::string& target,
                                                 const ClientOptions& options) {
  if (absl::Status status = CheckOptions(target, options); !status.ok()) return status;
  return AdminClient(Connection::Make(target, options));
}

AdminClient::AdminClient(std::shared_ptr<Connection> connection)
    : connection_(std::move(connection)) {}

bool AdminClient::WaitUntilConnected(absl::Duration limit) const {
  return connection_->WaitUntilConnected(connection_->Deadline(limit));
}

absl::StatusOr<std::vector<v1::TenantFactorization>> AdminClient::ListFactorizations(
    const FactorizationFilter& filter) const {
  v1::ListAllFactorizationsRequest request;
  if (filter.tenant.has_value()) request.set_tenant(*filter.tenant);
  request.set_pinned_only(filter.pinned_only);
  if (filter.min_idle != absl::ZeroDuration()) {
    *request.mutable_min_idle() = ToProto(filter.min_idle);
  }
  request.set_min_held_bytes(filter.min_held_bytes);
  std::vector<v1::TenantFactorization> all;
  do {
    absl::StatusOr<v1::ListAllFactorizationsReply> reply =
        Ask(*connection_, &v1::Admin::Stub::ListAllFactorizations, request);
    if (!reply.ok()) return reply.status();
    std::move(reply->mutable_factorization()->begin(), reply->mutable_factorization()->end(),
              std::back_inserter(all));
    request.set_page_token(reply->next_page_token());
  } while (!request.page_token().empty());
  return all;
}

absl::StatusOr<v1::EvictReply> AdminClient::Evict(std::span<const std::string> handles) const {
  v1::EvictReply sum;
  const absl::Status status = AskInParts<v1::EvictRequest>(
      *connection_, &v1::Admin::Stub::Evict, handles, [&](const v1::EvictReply& part) {
        sum.set_evicted(sum.evicted() + part.evicted());
        sum.set_evicted_bytes(sum.evicted_bytes() + part.evicted_bytes());
        sum.mutable_not_held()->MergeFrom(part.not_held());
      });
  if (!status.ok()) return status;
  return sum;
}

absl::StatusOr<v1::UnpinReply> AdminClient::Unpin(std::span<const std::string> handles) const {
  v1::UnpinReply sum;
  const absl::Status status = AskInParts<v1::UnpinRequest>(
      *connection_, &v1::Admin::Stub::Unpin, handles, [&](const v1::UnpinReply& part) {
        sum.set_unpinned(sum.unpinned() + part.unpinned());
        sum.mutable_not_held()->MergeFrom(part.not_held());
      });
  if (!status.ok()) return status;
  return sum;
}

absl::StatusOr<std::vector<v1::Tenant>> AdminClient::ListTenants() const {
  const absl::StatusOr<v1::ListTenantsReply> reply =
      Ask(*connection_, &v1::Admin::Stub::ListTenants, v1::ListTenantsRequest());
  if (!reply.ok()) return reply.status();
  return std::vector<v1::Tenant>(reply->tenant().begin(), reply->tenant().end());
}

absl::StatusOr<v1::DrainReply> AdminClient::Drain() const {
  return Ask(*connection_, &v1::Admin::Stub::Drain, v1::DrainRequest());
}

absl::StatusOr<std::string> AdminClient::SetLogLevel(const std::string& level) const {
  v1::SetLogLevelRequest request;
  request.set_level(level);
  const absl::StatusOr<v1::SetLogLevelReply> reply =
      Ask(*connection_, &v1::Admin::Stub::SetLogLevel, request);
  if (!reply.ok()) return reply.status();
  return reply->previous();
}

absl::StatusOr<v1::ReloadReply> AdminClient::Reload() const {
  return Ask(*connection_, &v1::Admin::Stub::Reload, v1::ReloadRequest());
}

}  // namespace blockd::client
