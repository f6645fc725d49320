#include "client/blockctl/text.h"

#include <cstdint>

#include "absl/strings/str_format.h"
#include "absl/time/time.h"

namespace blockd::blockctl {

std::string BytesText(double bytes) {
  static constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  int unit = 0;
  for (; bytes >= 1024 && unit < 4; ++unit) bytes /= 1024;
  return absl::StrFormat("%.*f %s", unit == 0 ? 0 : 1, bytes, kUnits[unit]);
}

std::string SecondsText(double seconds) {
  if (seconds < 1e-3) return absl::StrFormat("%.1f us", seconds * 1e6);
  if (seconds < 1) return absl::StrFormat("%.2f ms", seconds * 1e3);
  if (seconds < 120) return absl::StrFormat("%.2f s", seconds);
  return absl::FormatDuration(absl::Seconds(static_cast<int64_t>(seconds)));
}

}  // namespace blockd::blockctl
