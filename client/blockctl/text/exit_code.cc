#include "client/blockctl/text/exit_code.h"

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "blockd/client/errors.h"

namespace blockd::blockctl {
namespace {

constexpr char kUsageMark[] = "blockctl/usage";

std::string HandleAdvice(const absl::Status& status) {
  const auto detail = client::GetHandleNotFound(status);
  switch (detail.has_value() ? detail->reason() : v1::HandleNotFound::REASON_UNSPECIFIED) {
    case v1::HandleNotFound::RELEASED:
      return "it was released; factor again";
    case v1::HandleNotFound::EVICTED:
      return "it was evicted to make room; factor again, with --pin or a longer --lease to keep it";
    case v1::HandleNotFound::EXPIRED:
      return "it was not used for too long; factor again, with --pin to keep it";
    case v1::HandleNotFound::RESTARTED:
      return "the server was restarted since; factor again";
    case v1::HandleNotFound::OTHER_SERVER:
      return absl::StrCat("another server made it, and ", detail->server_name(),
                          " was asked; name it with its route, as HANDLE@ROUTE, or factor again");
    case v1::HandleNotFound::DEVICE_FAILED:
      return "the device that held it failed; factor again, on another one";
    case v1::HandleNotFound::FAILED_REFACTOR:
      return "a refactor with --overwrite failed and lost it; factor again";
    default:
      return "see `blockctl list`; handles belong to the --caller that made them";
  }
}

}  // namespace

absl::Status UsageError(const std::string& message) {
  absl::Status status = absl::InvalidArgumentError(message);
  status.SetPayload(kUsageMark, absl::Cord());
  return status;
}

ExitCode ExitCodeOf(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kOk:
      return kSuccess;
    case absl::StatusCode::kInvalidArgument:
      if (status.GetPayload(kUsageMark).has_value()) return kUsage;
      return client::GetNotPositiveDefinite(status) ? kNotPositiveDefinite : kInvalidInput;
    case absl::StatusCode::kFailedPrecondition:
    case absl::StatusCode::kOutOfRange:
      return kInvalidInput;
    case absl::StatusCode::kNotFound:
      return kHandleNotFound;
    case absl::StatusCode::kResourceExhausted:
      return client::GetQuotaExceeded(status) ? kOverQuota : kOutOfMemory;
    case absl::StatusCode::kUnauthenticated:
    case absl::StatusCode::kPermissionDenied:
      return kNotAllowed;
    case absl::StatusCode::kDeadlineExceeded:
      return kDeadline;
    case absl::StatusCode::kUnavailable:
      return kServerUnavailable;
    default:
      return kInternal;
  }
}

std::string Advice(const absl::Status& status, const std::string& server) {
  switch (ExitCodeOf(status)) {
    case kUsage:
      return "see `blockctl help`";
    case kServerUnavailable:
      return absl::StrCat(
          "is blockd running at ", server,
          "? Start it, name another with --server, see to --tls, or wait with --wait=30s");
    case kInvalidInput:
      return absl::IsFailedPrecondition(status) ? "factor with --keep_matrix" : "";
    case kNotPositiveDefinite:
      return "check that the block and row it names are what you meant; add to the diagonal if so";
    case kHandleNotFound:
      return HandleAdvice(status);
    case kOutOfMemory:
      return "release something (`blockctl list`, `blockctl release`) or give blockd more "
             "--device_memory";
    case kDeadline:
      return "give it more time with --timeout";
    case kOverQuota:
      return client::WaitingHelps(status)
                 ? "try again later, or ask for a larger quota (`blockctl admin tenants`)"
                 : "release something (`blockctl list`, `blockctl release`), or ask for a larger "
                   "quota (`blockctl admin tenants`)";
    case kNotAllowed:
      return "say who asks with --token_file or --tls_cert_file; `blockctl admin` needs the role "
             "ADMIN, which the server's tenants file gives";
    default:
      return absl::IsUnimplemented(status)
                 ? "the server has no such call: it is older than this blockctl, or is no blockd"
                 : "";
  }
}

}  // namespace blockd::blockctl
