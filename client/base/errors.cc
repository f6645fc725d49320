#include "blockd/client/errors.h"

#include <string>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "google/protobuf/any.pb.h"

namespace blockd::client {
namespace {

template <typename Detail>
std::string TypeUrl() {
  return absl::StrCat("type.googleapis.com/", Detail::descriptor()->full_name());
}

template <typename Detail>
std::optional<Detail> GetDetail(const absl::Status& status) {
  const auto payload = status.GetPayload(TypeUrl<Detail>());
  Detail detail;
  if (!payload.has_value() || !detail.ParseFromString(std::string(*payload))) return std::nullopt;
  return detail;
}

void AddDetails(const v1::RpcStatus& from, absl::Status& to) {
  for (const google::protobuf::Any& detail : from.details()) {
    to.SetPayload(detail.type_url(), absl::Cord(detail.value()));
  }
}

}  // namespace

std::optional<v1::InvalidField> GetInvalidField(const absl::Status& status) {
  return GetDetail<v1::InvalidField>(status);
}

std::optional<v1::NotPositiveDefinite> GetNotPositiveDefinite(const absl::Status& status) {
  return GetDetail<v1::NotPositiveDefinite>(status);
}

std::optional<v1::SingularCovariance> GetSingularCovariance(const absl::Status& status) {
  return GetDetail<v1::SingularCovariance>(status);
}

std::optional<v1::NotSmoothable> GetNotSmoothable(const absl::Status& status) {
  return GetDetail<v1::NotSmoothable>(status);
}

std::optional<v1::HandleNotFound> GetHandleNotFound(const absl::Status& status) {
  return GetDetail<v1::HandleNotFound>(status);
}

std::optional<v1::InsufficientMemory> GetInsufficientMemory(const absl::Status& status) {
  return GetDetail<v1::InsufficientMemory>(status);
}

std::optional<v1::LimitExceeded> GetLimitExceeded(const absl::Status& status) {
  return GetDetail<v1::LimitExceeded>(status);
}

std::optional<v1::ServerDraining> GetServerDraining(const absl::Status& status) {
  return GetDetail<v1::ServerDraining>(status);
}

std::optional<v1::QuotaExceeded> GetQuotaExceeded(const absl::Status& status) {
  return GetDetail<v1::QuotaExceeded>(status);
}

std::optional<v1::DeadlineUnreachable> GetDeadlineUnreachable(const absl::Status& status) {
  return GetDetail<v1::DeadlineUnreachable>(status);
}

bool WaitingHelps(const absl::Status& status) {
  if (absl::IsUnavailable(status)) return true;
  if (!absl::IsResourceExhausted(status) || !GetRetryAfter(status).has_value()) return false;
  const auto quota = GetQuotaExceeded(status);
  if (quota.has_value() && quota->asked() > quota->limit()) return false;
  const auto memory = GetInsufficientMemory(status);
  if (memory.has_value() && memory->asked_bytes() > memory->total_bytes()) return false;
  return !GetLimitExceeded(status).has_value();
}

std::optional<absl::Duration> GetRetryAfter(const absl::Status& status) {
  const auto detail = GetDetail<v1::RetryAfter>(status);
  if (!detail.has_value() || !detail->has_delay()) return std::nullopt;
  return absl::Seconds(detail->delay().seconds()) + absl::Nanoseconds(detail->delay().nanos());
}

absl::Status ToStatus(const v1::RpcStatus& status) {
  absl::Status result(static_cast<absl::StatusCode>(status.code()), status.message());
  AddDetails(status, result);
  return result;
}

absl::Status MakeStatus(absl::StatusCode code, const std::string& message,
                        const std::string& serialized_details) {
  absl::Status result(code, message);
  v1::RpcStatus details;
  if (!serialized_details.empty() && details.ParseFromString(serialized_details)) {
    AddDetails(details, result);
  }
  return result;
}

absl::Status InvalidFieldError(const std::string& field, const std::string& came,
                               const std::string& expected) {
  absl::Status result =
      absl::InvalidArgumentError(absl::StrCat(field, " is ", came, ", expected ", expected));
  v1::InvalidField detail;
  detail.set_field(field);
  detail.set_came(came);
  detail.set_expected(expected);
  result.SetPayload(TypeUrl<v1::InvalidField>(), absl::Cord(detail.SerializeAsString()));
  return result;
}

}  // namespace blockd::client
