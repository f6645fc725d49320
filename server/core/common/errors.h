// Statuses of the core with a typed detail that the gRPC layer turns into
// `grpc-status-details-bin`.
//
// A detail travels inside absl::Status as a payload that is meaningful in this process only; an
// absl::Status therefore stays the one error type everywhere. Pure functions, thread-safe.
#ifndef BLOCKD_SERVER_CORE_COMMON_ERRORS_H_
#define BLOCKD_SERVER_CORE_COMMON_ERRORS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "blockd/engine/model_errors.h"
#include "blockd/engine/solver.h"
#include "server/core/common/handle.h"

namespace blockd::server {

using blockd::InvalidField;
using blockd::InvalidFieldError;
using blockd::InvalidFieldOf;
using blockd::NotSmoothable;
using blockd::NotSmoothableError;
using blockd::NotSmoothableOf;
using blockd::SingularCovariance;
using blockd::SingularCovarianceError;
using blockd::SingularCovarianceOf;
using blockd::WithInvalidField;

enum class NotFoundReason {
  kNeverExisted,
  kReleased,
  kEvicted,
  kExpired,
  kRestarted,
  kFailedRefactor,
  kOtherServer,
  kDeviceFailed
};
std::string_view ToString(NotFoundReason reason);  // "NEVER_EXISTED", ...

struct HandleNotFound {
  Handle handle;
  NotFoundReason reason;
  ServerIdentity server = {};  // who does not hold it
};

struct InsufficientMemory {
  int64_t asked_bytes = 0;
  int64_t free_bytes = 0;
  int64_t evictable_bytes = 0;
  int64_t total_bytes = 0;
};

struct LimitExceeded {
  std::string limit;  // the flag's name: "max_message_bytes"
  int64_t asked_bytes = 0;
  int64_t limit_bytes = 0;
};

struct QuotaExceeded {
  std::string quota;  // its name in the tenants file, as "queue_slots", or the flag of a share
  double limit = 0, used = 0, asked = 0;
  std::string tenant;
};

struct DeadlineUnreachable {
  absl::Duration predicted;  // until it would be done
  absl::Duration left;       // until the deadline
};

struct NotSpdDetail {
  int64_t system = 0;  // index in the request
  NotPositiveDefinite where;
};

// Makers: the status code, a message for people, and the detail.
// The same status; where it is about a field, `path` stands before that: "refactor.".
absl::Status WithinField(std::string_view path, const absl::Status& status);
// INVALID_ARGUMENT. `not_finite` says, for people, where the matrix holds NaN or an infinity.
absl::Status NotSpdError(int64_t system, const NotPositiveDefinite& where,
                         std::string_view not_finite = {});
absl::Status HandleNotFoundError(const HandleNotFound& missing);         // NOT_FOUND
absl::Status InsufficientMemoryError(const InsufficientMemory& memory);  // RESOURCE_EXHAUSTED
// RESOURCE_EXHAUSTED; `what` is larger than the limit allows: "the message".
absl::Status LimitExceededError(std::string_view what, const LimitExceeded& limit);
absl::Status QuotaExceededError(const QuotaExceeded& quota);                   // RESOURCE_EXHAUSTED
absl::Status DeadlineUnreachableError(const DeadlineUnreachable& late);        // DEADLINE_EXCEEDED
absl::Status RetryAfterError(std::string_view message, absl::Duration delay);  // UNAVAILABLE
// UNAVAILABLE: the server of this name takes no new work any more.
absl::Status DrainingError(std::string_view server_name, absl::Duration delay);
// The same status, which then says after how long to try again.
absl::Status WithRetryAfter(const absl::Status& status, absl::Duration delay);

// The detail of a status, if it has one of that kind.
std::optional<NotSpdDetail> NotSpdOf(const absl::Status& status);
std::optional<HandleNotFound> HandleNotFoundOf(const absl::Status& status);
std::optional<InsufficientMemory> InsufficientMemoryOf(const absl::Status& status);
std::optional<LimitExceeded> LimitExceededOf(const absl::Status& status);
std::optional<QuotaExceeded> QuotaExceededOf(const absl::Status& status);
std::optional<DeadlineUnreachable> DeadlineUnreachableOf(const absl::Status& status);
std::optional<absl::Duration> RetryAfterOf(const absl::Status& status);
std::optional<std::string> DrainingServerOf(const absl::Status& status);  // its name

}  // namespace blockd::server

#endif  // BLOCKD_SERVER_CORE_COMMON_ERRORS_H_
