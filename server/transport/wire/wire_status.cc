// The half of wire.h that turns statuses of the core into those of the wire.
#include <string>

#include "server/transport/wire/wire.h"

namespace blockd::server {
namespace {

// gRPC clients take 8 KiB of trailing metadata by default; the text goes there twice.
constexpr size_t kMaxTextBytes = 1024;

std::string Shortened(std::string_view text) {
  if (text.size() <= kMaxTextBytes) return std::string(text);
  return std::string(text.substr(0, kMaxTextBytes)) + "...";
}

v1::HandleNotFound::Reason ToWire(NotFoundReason reason) {
  switch (reason) {
    case NotFoundReason::kNeverExisted:
      return v1::HandleNotFound::NEVER_EXISTED;
    case NotFoundReason::kReleased:
      return v1::HandleNotFound::RELEASED;
    case NotFoundReason::kEvicted:
      return v1::HandleNotFound::EVICTED;
    case NotFoundReason::kExpired:
      return v1::HandleNotFound::EXPIRED;
    case NotFoundReason::kRestarted:
      return v1::HandleNotFound::RESTARTED;
    case NotFoundReason::kFailedRefactor:
      return v1::HandleNotFound::FAILED_REFACTOR;
    case NotFoundReason::kOtherServer:
      return v1::HandleNotFound::OTHER_SERVER;
    case NotFoundReason::kDeviceFailed:
      return v1::HandleNotFound::DEVICE_FAILED;
  }
  return v1::HandleNotFound::REASON_UNSPECIFIED;
}

void AddDetail(const InvalidField& field, v1::RpcStatus* wire) {
  v1::InvalidField detail;
  detail.set_field(Shortened(field.field));
  detail.set_came(Shortened(field.came));
  detail.set_expected(Shortened(field.expected));
  wire->add_details()->PackFrom(detail);
}

void AddDetail(const NotSpdDetail& failure, v1::RpcStatus* wire) {
  v1::NotPositiveDefinite detail;
  detail.set_system(failure.system);
  detail.set_block(failure.where.block);
  detail.set_row(failure.where.row);
  detail.set_minor(failure.where.minor);
  detail.set_elimination_order(!failure.where.natural_order);
  wire->add_details()->PackFrom(detail);
}

void AddDetail(const SingularCovariance& singular, v1::RpcStatus* wire) {
  v1::SingularCovariance detail;
  detail.set_matrix(singular.matrix);
  detail.set_step(singular.step);
  detail.set_row(singular.row);
  wire->add_details()->PackFrom(detail);
}

void AddDetail(const NotSmoothable& why, v1::RpcStatus* wire) {
  v1::NotSmoothable detail;
  detail.set_reason(static_cast<v1::NotSmoothable::Reason>(why.reason));  // the same numbers
  detail.set_form(static_cast<v1::SmoothForm>(why.form));
  detail.set_system(why.system);
  detail.set_step(why.step);
  detail.set_row(why.row);
  detail.set_directions(why.directions);
  detail.set_means_error(why.errors.means);
  detail.set_variances_error(why.errors.variances);
  detail.set_log_likelihood_error(why.errors.log_likelihood);
  wire->add_details()->PackFrom(detail);
}

void AddDetail(const HandleNotFound& missing, v1::RpcStatus* wire) {
  v1::HandleNotFound detail;
  detail.set_handle(std::string(missing.handle.view()));
  detail.set_reason(ToWire(missing.reason));
  detail.set_owner_epoch(std::string(missing.handle.epoch().view()));
  detail.set_server_name(missing.server.name);
  detail.set_server_epoch(std::string(missing.server.epoch.view()));
  wire->add_details()->PackFrom(detail);
}

void AddDetail(const InsufficientMemory& memory, v1::RpcStatus* wire) {
  v1::InsufficientMemory detail;
  detail.set_asked_bytes(memory.asked_bytes);
  detail.set_free_bytes(memory.free_bytes);
  detail.set_evictable_bytes(memory.evictable_bytes);
  detail.set_total_bytes(memory.total_bytes);
  wire->add_details()->PackFrom(detail);
}

void AddDetail(const LimitExceeded& limit, v1::RpcStatus* wire) {
  v1::LimitExceeded detail;
  detail.set_limit(limit.limit);
  detail.set_asked_bytes(limit.asked_bytes);
  detail.set_limit_bytes(limit.limit_bytes);
  wire->add_details()->PackFrom(detail);
}

void AddDetail(absl::Duration delay, v1::RpcStatus* wire) {
  v1::RetryAfter detail;
  server::ToWire(delay, detail.mutable_delay());
  wire->add_details()->PackFrom(detail);
}

void AddDetail(const QuotaExceeded& quota, v1::RpcStatus* wire) {
  v1::QuotaExceeded detail;
  detail.set_quota(quota.quota);
  detail.set_limit(quota.limit);
  detail.set_used(quota.used);
  detail.set_asked(quota.asked);
  detail.set_tenant(quota.tenant);
  wire->add_details()->PackFrom(detail);
}

void AddDetail(const DeadlineUnreachable& late, v1::RpcStatus* wire) {
  v1::DeadlineUnreachable detail;
  server::ToWire(late.predicted, detail.mutable_predicted());
  server::ToWire(late.left, detail.mutable_left());
  wire->add_details()->PackFrom(detail);
}

void AddDraining(std::string_view server_name, v1::RpcStatus* wire) {
  v1::ServerDraining detail;
  detail.set_server_name(std::string(server_name));
  wire->add_details()->PackFrom(detail);
}

}  // namespace

v1::RpcStatus ToRpcStatus(const absl::Status& status) {
  v1::RpcStatus wire;
  wire.set_code(static_cast<int>(status.code()));
  wire.set_message(Shortened(std::string_view(status.message().data(), status.message().size())));
  if (auto detail = InvalidFieldOf(status)) AddDetail(*detail, &wire);
  if (auto detail = NotSpdOf(status)) AddDetail(*detail, &wire);
  if (auto detail = SingularCovarianceOf(status)) AddDetail(*detail, &wire);
  if (auto detail = NotSmoothableOf(status)) AddDetail(*detail, &wire);
  if (auto detail = HandleNotFoundOf(status)) AddDetail(*detail, &wire);
  if (auto detail = InsufficientMemoryOf(status)) AddDetail(*detail, &wire);
  if (auto detail = LimitExceededOf(status)) AddDetail(*detail, &wire);
  if (auto detail = QuotaExceededOf(status)) AddDetail(*detail, &wire);
  if (auto detail = DeadlineUnreachableOf(status)) AddDetail(*detail, &wire);
  if (auto detail = RetryAfterOf(status)) AddDetail(*detail, &wire);
  if (auto name = DrainingServerOf(status)) AddDraining(*name, &wire);
  return wire;
}

grpc::Status ToGrpcStatus(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  const v1::RpcStatus wire = ToRpcStatus(status);
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()), wire.message(),
                      wire.details_size() > 0 ? wire.SerializeAsString() : std::string());
}

}  // namespace blockd::server
