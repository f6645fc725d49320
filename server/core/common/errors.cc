#include "server/core/common/errors.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "blockd/engine/status_payload.h"

namespace blockd::server {
namespace {

constexpr char kNotSpdUrl[] = "blockd.core/NotPositiveDefinite";
constexpr char kNotFoundUrl[] = "blockd.core/HandleNotFound";
constexpr char kMemoryUrl[] = "blockd.core/InsufficientMemory";
constexpr char kLimitUrl[] = "blockd.core/LimitExceeded";
constexpr char kQuotaUrl[] = "blockd.core/QuotaExceeded";
constexpr char kUnreachableUrl[] = "blockd.core/DeadlineUnreachable";
constexpr char kRetryUrl[] = "blockd.core/RetryAfter";
constexpr char kDrainingUrl[] = "blockd.core/ServerDraining";

std::string_view Explanation(NotFoundReason reason) {
  switch (reason) {
    case NotFoundReason::kNeverExisted:
      return "it never existed, or belongs to another caller";
    case NotFoundReason::kReleased:
      return "it was released";
    case NotFoundReason::kEvicted:
      return "it was evicted to make room";
    case NotFoundReason::kExpired:
      return "it was not used for too long";
    case NotFoundReason::kRestarted:
      return "this server made it before it was restarted";
    case NotFoundReason::kFailedRefactor:
      return "a refactor that overwrote it failed";
    case NotFoundReason::kOtherServer:
      return "another server made it";
    case NotFoundReason::kDeviceFailed:
      return "the device that held it failed";
  }
  return "unknown reason";
}

}  // namespace

std::string_view ToString(NotFoundReason reason) {
  switch (reason) {
    case NotFoundReason::kNeverExisted:
      return "NEVER_EXISTED";
    case NotFoundReason::kReleased:
      return "RELEASED";
    case NotFoundReason::kEvicted:
      return "EVICTED";
    case NotFoundReason::kExpired:
      return "EXPIRED";
    case NotFoundReason::kRestarted:
      return "RESTARTED";
    case NotFoundReason::kFailedRefactor:
      return "FAILED_REFACTOR";
    case NotFoundReason::kOtherServer:
      return "OTHER_SERVER";
    case NotFoundReason::kDeviceFailed:
      return "DEVICE_FAILED";
  }
  return "UNKNOWN";
}

absl::Status WithinField(std::string_view path, const absl::Status& status) {
  const std::optional<InvalidField> field = InvalidFieldOf(status);
  if (!field) return status;
  return InvalidFieldError(std::string(path) + field->field, field->came, field->expected);
}

absl::Status NotSpdError(int64_t system, const NotPositiveDefinite& where,
                         std::string_view not_finite) {
  std::string message = absl::StrCat(
      "not positive definite: system ", system, ", block ", where.block, ", row ", where.row,
      where.natural_order
          ? absl::StrCat(" (leading minor of order ", where.minor, ")")
          : std::string(" (the pivot that failed in the server's own order of elimination)"));
  if (!not_finite.empty()) {
    message += "; the matrix is not finite: " + std::string(not_finite) +
               " (check_finite refuses that before anything is factored)";
  }
  return PayloadWriter()
      .Int(system)
      .Int(where.block)
      .Int(where.row)
      .Int(where.minor)
      .Int(where.natural_order)
      .AddTo(absl::InvalidArgumentError(message), kNotSpdUrl);
}

absl::Status HandleNotFoundError(const HandleNotFound& missing) {
  std::string message = "handle " + missing.handle.hex() +
                        " is not held: " + std::string(Explanation(missing.reason)) + " (" +
                        std::string(ToString(missing.reason)) + ")";
  if (missing.reason == NotFoundReason::kOtherServer) {
    message += "; this server is " + missing.server.name;
  }
  return PayloadWriter()
      .Text(missing.handle.view())
      .Int(static_cast<int64_t>(missing.reason))
      .Text(missing.server.name)
      .Text(missing.server.epoch.view())
      .AddTo(absl::NotFoundError(message), kNotFoundUrl);
}

absl::Status InsufficientMemoryError(const InsufficientMemory& memory) {
  const std::string message =
      absl::StrCat("device memory: asked for ", memory.asked_bytes, " bytes, ", memory.free_bytes,
                   " are free and ", memory.evictable_bytes, " evictable of ", memory.total_bytes);
  return PayloadWriter()
      .Int(memory.asked_bytes)
      .Int(memory.free_bytes)
      .Int(memory.evictable_bytes)
      .Int(memory.total_bytes)
      .AddTo(absl::ResourceExhaustedError(message), kMemoryUrl);
}

absl::Status LimitExceededError(std::string_view what, const LimitExceeded& limit) {
  const std::string message =
      std::string(what) + absl::StrCat(" has ", limit.asked_bytes, " bytes; ", limit.limit, " is ",
                                       limit.limit_bytes, " bytes");
  return PayloadWriter()
      .Text(limit.limit)
      .Int(limit.asked_bytes)
      .Int(limit.limit_bytes)
      .AddTo(absl::ResourceExhaustedError(message), kLimitUrl);
}

absl::Status QuotaExceededError(const QuotaExceeded& quota) {
  const std::string message = "the quota " + quota.quota + " of tenant \"" + quota.tenant +
                              absl::StrCat("\" is ", quota.limit, ": it has ", quota.used,
                                           " and asked for ", quota.asked, " more");
  return PayloadWriter()
      .Text(quota.quota)
      .Double(quota.limit)
      .Double(quota.used)
      .Double(quota.asked)
      .Text(quota.tenant)
      .AddTo(absl::ResourceExhaustedError(message), kQuotaUrl);
}

absl::Status DeadlineUnreachableError(const DeadlineUnreachable& late) {
  const std::string message =
      absl::StrCat("the deadline is in ", absl::FormatDuration(late.left),
                   ", and it would be done in ", absl::FormatDuration(late.predicted));
  return PayloadWriter()
      .Int(absl::ToInt64Nanoseconds(late.predicted))
      .Int(absl::ToInt64Nanoseconds(late.left))
      .AddTo(absl::DeadlineExceededError(message), kUnreachableUrl);
}

absl::Status RetryAfterError(std::string_view message, absl::Duration delay) {
  return WithRetryAfter(absl::UnavailableError(absl::string_view(message.data(), message.size())),
                        delay);
}

absl::Status DrainingError(std::string_view server_name, absl::Duration delay) {
  const std::string message =
      "the server " + std::string(server_name) + " is shutting down and takes no new work";
  return WithRetryAfter(
      PayloadWriter().Text(server_name).AddTo(absl::UnavailableError(message), kDrainingUrl),
      delay);
}

absl::Status WithRetryAfter(const absl::Status& status, absl::Duration delay) {
  return PayloadWriter().Int(absl::ToInt64Nanoseconds(delay)).AddTo(status, kRetryUrl);
}

std::optional<NotSpdDetail> NotSpdOf(const absl::Status& status) {
  PayloadReader in(status, kNotSpdUrl);
  if (!in.found()) return std::nullopt;
  NotSpdDetail detail;
  detail.system = in.Int();
  detail.where.block = in.Int();
  detail.where.row = in.Int();
  detail.where.minor = in.Int();
  detail.where.natural_order = in.Int() != 0;
  return detail;
}

std::optional<HandleNotFound> HandleNotFoundOf(const absl::Status& status) {
  PayloadReader in(status, kNotFoundUrl);
  if (!in.found()) return std::nullopt;
  const std::optional<Handle> handle = Handle::FromBytes(in.Text());
  if (!handle) return std::nullopt;
  HandleNotFound detail{*handle, static_cast<NotFoundReason>(in.Int())};
  detail.server.name = in.Text();
  const std::string epoch = in.Text();
  std::copy_n(epoch.begin(), std::min(epoch.size(), Epoch::kBytes),
              detail.server.epoch.bytes.begin());
  return detail;
}

std::optional<InsufficientMemory> InsufficientMemoryOf(const absl::Status& status) {
  PayloadReader in(status, kMemoryUrl);
  if (!in.found()) return std::nullopt;
  InsufficientMemory detail;
  detail.asked_bytes = in.Int();
  detail.free_bytes = in.Int();
  detail.evictable_bytes = in.Int();
  detail.total_bytes = in.Int();
  return detail;
}

std::optional<LimitExceeded> LimitExceededOf(const absl::Status& status) {
  PayloadReader in(status, kLimitUrl);
  if (!in.found()) return std::nullopt;
  LimitExceeded detail;
  detail.limit = in.Text();
  detail.asked_bytes = in.Int();
  detail.limit_bytes = in.Int();
  return detail;
}

std::optional<QuotaExceeded> QuotaExceededOf(const absl::Status& status) {
  PayloadReader in(status, kQuotaUrl);
  if (!in.found()) return std::nullopt;
  QuotaExceeded detail;
  detail.quota = in.Text();
  detail.limit = in.Double();
  detail.used = in.Double();
  detail.asked = in.Double();
  detail.tenant = in.Text();
  return detail;
}

std::optional<DeadlineUnreachable> DeadlineUnreachableOf(const absl::Status& status) {
  PayloadReader in(status, kUnreachableUrl);
  if (!in.found()) return std::nullopt;
  DeadlineUnreachable detail;
  detail.predicted = absl::Nanoseconds(in.Int());
  detail.left = absl::Nanoseconds(in.Int());
  return detail;
}

std::optional<absl::Duration> RetryAfterOf(const absl::Status& status) {
  PayloadReader in(status, kRetryUrl);
  if (!in.found()) return std::nullopt;
  return absl::Nanoseconds(in.Int());
}

std::optional<std::string> DrainingServerOf(const absl::Status& status) {
  PayloadReader in(status, kDrainingUrl);
  if (!in.found()) return std::nullopt;
  return in.Text();
}

}  // namespace blockd::server
