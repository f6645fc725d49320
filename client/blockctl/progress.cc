#include "client/blockctl/progress.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "absl/flags/declare.h"
#include "absl/flags/flag.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "client/blockctl/command.h"

ABSL_DECLARE_FLAG(bool, quiet);

namespace blockd::blockctl {

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

std::function<void(int64_t, int64_t)> MakeProgressBar() {
  if (isatty(STDERR_FILENO) == 0 || absl::GetFlag(FLAGS_quiet) || JsonAsked()) return nullptr;
  const absl::Time start = absl::Now();
  absl::Time drawn = start + absl::Milliseconds(400);
  bool visible = false;
  return [=](int64_t sent, int64_t total) mutable {
    const absl::Time now = absl::Now();
    const bool last = sent == total;
    if (now - drawn >= absl::Milliseconds(100) && !last) {
      std::fprintf(stderr, "\r%s\x1b[K", ProgressLine(sent, total, now - start).c_str());
      drawn = now;
      visible = true;
    } else if (last && visible) {
      std::fprintf(stderr, "\r\x1b[K");
      visible = false;
    }
  };
}

}  // namespace blockd::blockctl
