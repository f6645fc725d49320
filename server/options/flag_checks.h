// Checks of the values of flags.
//
// Pure functions. A refusal is INVALID_ARGUMENT: the flag, its value, what was expected.
#ifndef BLOCKD_SERVER_OPTIONS_FLAG_CHECKS_H_
#define BLOCKD_SERVER_OPTIONS_FLAG_CHECKS_H_

#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace blockd::server {

absl::Status RefuseFlag(absl::string_view flag, absl::string_view value,
                        absl::string_view expected);

absl::Status CheckNumber(absl::string_view flag, int64_t value, int64_t low, int64_t high);
absl::Status CheckBytes(absl::string_view flag, int64_t value, int64_t low, int64_t high);
absl::Status CheckDuration(absl::string_view flag, absl::Duration value, absl::Duration low,
                           absl::Duration high);
absl::Status CheckOneOf(absl::string_view flag, absl::string_view value,
                        std::span<const absl::string_view> allowed);

}  // namespace blockd::server

#endif  // BLOCKD_SERVER_OPTIONS_FLAG_CHECKS_H_
