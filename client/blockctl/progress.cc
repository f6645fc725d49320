#include "client/blockctl/progress.h"

#include <unistd.h>

#include <cstdio>

#include "absl/flags/declare.h"
#include "absl/flags/flag.h"
#include "absl/time/clock.h"
#include "client/blockctl/command.h"

ABSL_DECLARE_FLAG(bool, quiet);

namespace blockd::blockctl {

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
