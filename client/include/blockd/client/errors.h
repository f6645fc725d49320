// The typed details of a failed call, beyond its code and message.
//
// Every absl::Status of the client carries the server's typed details as payloads; these functions
// read them. They are pure and may be called from any thread.
//
//     if (const auto detail = GetNotPositiveDefinite(status)) Regularize(detail->block());
//
// Codes (the same as the server's):
//   INVALID_ARGUMENT     a field is wrong (InvalidField), A is not positive definite, a covariance
//                        of a model is not (SingularCovariance), or nobody can smooth a model
//                        (NotSmoothable)
//   NOT_FOUND            the handle is not held (HandleNotFound says why): factor again
//   RESOURCE_EXHAUSTED   over a quota of the tenant (QuotaExceeded); or does not fit into the
//                        server's memory (InsufficientMemory); both with a RetryAfter where waiting
//                        helps; or over a limit of the server (LimitExceeded)
//   FAILED_PRECONDITION  residual or refinement without FactorOptions::keep_matrix
//   UNAVAILABLE          no server, its queue is full (RetryAfter), or it is shutting down
//                        (RetryAfter and ServerDraining); retries were used up
//   DEADLINE_EXCEEDED    the call's timeout passed; or the server sees that it will
//                        (DeadlineUnreachable)
//   CANCELLED            a request of a SolveSession was cancelled, or replaced by a newer one
//   UNAUTHENTICATED      the server does not know who asks; PERMISSION_DENIED: it does, and refuses
//   INTERNAL             the server's device or a library failed
#ifndef BLOCKD_CLIENT_ERRORS_H_
#define BLOCKD_CLIENT_ERRORS_H_

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "blockd/v1/blockd.pb.h"

namespace blockd::client {

// Empty where the status has no such detail.
std::optional<v1::InvalidField> GetInvalidField(const absl::Status& status);
std::optional<v1::NotPositiveDefinite> GetNotPositiveDefinite(const absl::Status& status);
std::optional<v1::SingularCovariance> GetSingularCovariance(const absl::Status& status);
std::optional<v1::NotSmoothable> GetNotSmoothable(const absl::Status& status);
std::optional<v1::HandleNotFound> GetHandleNotFound(const absl::Status& status);
std::optional<v1::InsufficientMemory> GetInsufficientMemory(const absl::Status& status);
std::optional<v1::LimitExceeded> GetLimitExceeded(const absl::Status& status);
std::optional<v1::ServerDraining> GetServerDraining(const absl::Status& status);
std::optional<v1::QuotaExceeded> GetQuotaExceeded(const absl::Status& status);
std::optional<v1::DeadlineUnreachable> GetDeadlineUnreachable(const absl::Status& status);
std::optional<absl::Duration> GetRetryAfter(const absl::Status& status);

// True where the same call may succeed later, with nothing changed by who makes it: UNAVAILABLE,
// and RESOURCE_EXHAUSTED with a RetryAfter. False where it asks for more than it could ever get.
bool WaitingHelps(const absl::Status& status);

// The status that a reply carries for one system of a batch or one request of a stream.
absl::Status ToStatus(const v1::RpcStatus& status);

// A code and message, and the details of a serialized RpcStatus (`grpc-status-details-bin`).
absl::Status MakeStatus(absl::StatusCode code, const std::string& message,
                        const std::string& serialized_details);

// INVALID_ARGUMENT with an InvalidField, as the server would say it.
absl::Status InvalidFieldError(const std::string& field, const std::string& came,
                               const std::string& expected);

}  // namespace blockd::client

#endif  // BLOCKD_CLIENT_ERRORS_H_
