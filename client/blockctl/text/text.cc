#include "client/blockctl/text/text.h"

#include <algorithm>
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

std::string ProgressLine(int64_t sent_bytes, int64_t total_bytes, absl::Duration elapsed) {
  constexpr int kWidth = 30;
  const double part =
      total_bytes > 0 ? static_cast<double>(sent_bytes) / static_cast<double>(total_bytes) : 1;
  const int filled = std::clamp(static_cast<int>(part * kWidth), 0, kWidth);
  const double seconds = std::max(absl::ToDoubleSeconds(elapsed), 1e-9);
  return absl::StrFormat("[%s%s] %3d%%  %s of %s, %s/s", std::string(filled, '#'),
                         std::string(kWidth - filled, '-'), static_cast<int>(part * 100),
                         BytesText(static_cast<double>(sent_bytes)),
                         BytesText(static_cast<double>(total_bytes)),
                         BytesText(static_cast<double>(sent_bytes) / seconds));
}

}  // namespace blockd::blockctl
