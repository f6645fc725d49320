// How blockctl ends. Scripts rely on these numbers; they never change their meaning.
#ifndef BLOCKD_CLIENT_BLOCKCTL_TEXT_EXIT_CODE_H_
#define BLOCKD_CLIENT_BLOCKCTL_TEXT_EXIT_CODE_H_

#include <string>
#include <string_view>

#include "absl/status/status.h"

namespace blockd::blockctl {

enum ExitCode : int {
  kSuccess = 0,
  kUsage = 1,                // a flag or a command is wrong
  kServerUnavailable = 2,    // no server there, or it stayed too busy
  kInvalidInput = 3,         // a file or the server's INVALID_ARGUMENT, FAILED_PRECONDITION
  kNotPositiveDefinite = 4,  // the matrix
  kHandleNotFound = 5,
  kOutOfMemory = 6,  // the server's, even after eviction
  kDeadline = 7,     // --timeout passed
  kInternal = 8,     // anything else
  kOverQuota = 9,    // of the tenant
  kNotAllowed = 10,  // the server does not know who asks, or that one may not
};
// For `blockctl help`.
inline constexpr std::string_view kExitCodes =
    "0 success, 1 usage, 2 server unavailable, 3 invalid input, 4 not positive definite,\n"
    "5 handle not found, 6 out of memory, 7 deadline passed, 8 internal error, 9 over a quota,\n"
    "10 not allowed";

// A mistake on the command line: an absl::Status that exits with kUsage.
absl::Status UsageError(const std::string& message);

ExitCode ExitCodeOf(const absl::Status& status);
// One sentence on what to do about it, or nothing.
std::string Advice(const absl::Status& status, const std::string& server);

}  // namespace blockd::blockctl

#endif  // BLOCKD_CLIENT_BLOCKCTL_TEXT_EXIT_CODE_H_
