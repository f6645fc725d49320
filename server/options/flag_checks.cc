#include "server/options/flag_checks.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "server/base/byte_size.h"

namespace blockd::server {

absl::Status RefuseFlag(absl::string_view flag, absl::string_view value,
                        absl::string_view expected) {
  return absl::InvalidArgumentError(absl::StrCat("--", flag, "=", value, ": expected ", expected));
}

absl::Status CheckNumber(absl::string_view flag, int64_t value, int64_t low, int64_t high) {
  if (value >= low && value <= high) return absl::OkStatus();
  return RefuseFlag(flag, absl::StrCat(value), absl::StrCat("a number from ", low, " to ", high));
}

absl::Status CheckBytes(absl::string_view flag, int64_t value, int64_t low, int64_t high) {
  if (value >= low && value <= high) return absl::OkStatus();
  return RefuseFlag(flag, AbslUnparseFlag(ByteSize{value}),
                    absl::StrCat("a size from ", AbslUnparseFlag(ByteSize{low}), " to ",
                                 AbslUnparseFlag(ByteSize{high})));
}

absl::Status CheckDuration(absl::string_view flag, absl::Duration value, absl::Duration low,
                           absl::Duration high) {
  if (value >= low && value <= high) return absl::OkStatus();
  return RefuseFlag(
      flag, absl::FormatDuration(value),
      absl::StrCat("a time from ", absl::FormatDuration(low), " to ", absl::FormatDuration(high)));
}

absl::Status CheckOneOf(absl::string_view flag, absl::string_view value,
                        std::span<const absl::string_view> allowed) {
  if (std::find(allowed.begin(), allowed.end(), value) != allowed.end()) return absl::OkStatus();
  std::string names;
  for (absl::string_view name : allowed) absl::StrAppend(&names, names.empty() ? "" : ", ", name);
  return RefuseFlag(flag, value, absl::StrCat("one of ", names));
}

}  // namespace blockd::server
